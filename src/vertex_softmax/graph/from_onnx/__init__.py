"""The importer of ONNX files: from a file to a graph, which is compared with onnxruntime on the file."""
