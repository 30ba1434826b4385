"""From an ONNX file to a graph, held against onnxruntime."""
