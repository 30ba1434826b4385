"""Runs: the verification of many inputs or many instances, and its results as files that the report reads."""
