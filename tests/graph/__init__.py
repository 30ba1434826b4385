"""Tests of vertex_softmax.softmax_box; helpers.py, boxes.py, checks.py and mutants.py serve all of them."""
