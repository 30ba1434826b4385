"""How zonotopes pass through ops: one file for each kind of op."""
