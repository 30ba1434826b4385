"""Deliberate faults in copies of the package: the suite must kill every one. `python -m tests.mutation` keeps score."""
