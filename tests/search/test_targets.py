"""Conjunctions and what is known of them: nothing is excluded by what is no bound, or by rounding."""

from __future__ import annotations

import math

import torch

from vertex_softmax.search.targets import Target


def target(*limits: float) -> Target:
    """Rows (1, 0), (0, 1), … with limits."""
    return Target(0, 0, torch.eye(len(limits)).double(), torch.tensor(limits).double())


def test_bounds_are_of_what_lies_above_the_limit_and_only_rise() -> None:
    found = target(1.0, 2.0)
    found.learn(torch.tensor([0.0, 1.5]).double())
    assert found.best == -0.5
    assert not found.excluded
    found.learn(torch.tensor([-5.0, 0.0]).double())
    assert found.best == -0.5
    found.learn_best(-3.0)
    assert found.best == -0.5
    found.learn(torch.tensor([1.25, 0.0]).double())
    assert found.best == 0.25
    assert found.excluded


def test_what_is_no_bound_excludes_nothing() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        found = target(1.0, 1.0)
        found.learn(torch.tensor([bad, 0.0]).double())
        assert found.best == -1.0
        assert not found.excluded


def test_the_guard_has_to_be_cleared_and_only_rises() -> None:
    found = target(0.0)
    found.require(0.5)
    found.require(0.1)
    assert found.guard == 0.5
    found.learn(torch.tensor([0.5]).double())
    assert not found.excluded
    found.learn(torch.tensor([0.75]).double())
    assert found.excluded


def test_a_mix_is_a_row_with_its_own_limit() -> None:
    found = target(1.0, 2.0)
    found.learn(torch.tensor([0.0, 0.0]).double())
    found.add_mix(torch.tensor([2.0, 3.0]).double())
    assert found.C.tolist() == [[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]]
    assert found.d.tolist() == [1.0, 2.0, 8.0]
    assert found.rows.tolist() == [-1.0, -2.0, -math.inf]
