"""A benchmark to give away: attention networks with norms as ONNX and VNNLIB files, in the layout of VNN-COMP."""
