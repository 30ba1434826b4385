"""The importer of PyTorch modules: from a module to a graph, which is compared with the module itself."""
