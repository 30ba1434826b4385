"""Small public language models, read from their own files into ordinary PyTorch modules."""
