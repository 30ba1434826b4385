"""From a PyTorch module to a graph, held against the module itself."""
