"""Models in: a graph of ops from PyTorch or ONNX, simplified."""
