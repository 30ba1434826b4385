"""Runs: what was asked of many inputs, and what came out, as one file that the report reads."""
