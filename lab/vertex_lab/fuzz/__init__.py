"""Random networks through the whole path (torch, ONNX, import, bounds, attack), and what must hold of them."""
