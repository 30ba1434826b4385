"""Attacks on zonotopes in the worst direction: what errors have to hold must lie in them, in every direction at once.

At known values of the old unknowns what is left of the true value of a node, or of several nodes together, has to lie
in the set Σ_m G_m ν_m + e of what the zonotope says of new unknowns (|ν_m| ≤ 1) and of own errors. That is a convex
problem, which `membership.py` solves; gradient steps on the old unknowns make the residual as large as they can.

`python -m vertex_lab.fuzz.directions --seeds A B [--out FILE.json] [--minutes M] [--kind K]`
"""
