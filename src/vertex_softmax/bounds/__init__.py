"""Bounds over a graph: boxes of all nodes, backward passes, their optimisation, zonotopes, and branch and bound."""
