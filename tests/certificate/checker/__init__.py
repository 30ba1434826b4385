"""Tests of the checker of certificates; helpers.py and mutants.py serve all of them."""
