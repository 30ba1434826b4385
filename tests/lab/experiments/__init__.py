"""Tests of the experiments; `made` makes trials by hand."""
