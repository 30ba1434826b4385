"""The demonstration: the theorem on one attention row, and a small transformer with its data and training."""
