"""Networks as graphs of ops: the graph itself, the importers from PyTorch and ONNX, and the simplification."""
