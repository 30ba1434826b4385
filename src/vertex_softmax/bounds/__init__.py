"""The walks: interval forward, linear bounds backward. They know the op contract and nothing of single ops."""
