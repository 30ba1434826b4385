"""Classifiers of sentences: the data, the networks and their training."""
