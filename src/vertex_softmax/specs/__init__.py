"""Specifications: properties that a network may have, and the VNNLIB files they are read from."""
