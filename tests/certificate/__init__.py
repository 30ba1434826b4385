"""Tests of vertex_softmax.certificate."""
