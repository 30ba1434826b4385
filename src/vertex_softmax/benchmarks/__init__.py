"""Benchmarks: what `vertex bench` runs. Two things are always compared in one run, and their ratio is the result."""
