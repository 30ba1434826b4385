"""Tests of vertex_softmax.graph; models.py and onnx_models.py hold the models that are read."""
