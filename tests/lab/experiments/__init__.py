"""Tests of the experiments; `made` makes trials by hand, `killed_writer` is run and killed."""
