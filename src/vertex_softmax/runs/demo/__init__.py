"""The demonstration: a small transformer, its data and training, and one attention row."""
