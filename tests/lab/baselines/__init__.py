"""Tests of the score-box baselines."""
