"""What is known of a conjunction: bounds only rise, and nothing that is no number counts."""

from __future__ import annotations

import math

import pytest
import torch

from vertex_softmax.search.targets import Target


def test_a_bound_that_is_no_number_teaches_nothing() -> None:
    target = Target(0, 0, torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    target.learn(torch.tensor([torch.nan, torch.inf, -1.0], dtype=torch.float64))
    assert not target.excluded
    assert target.best == -1.0
    target.learn(torch.tensor([torch.nan, 2.0, torch.nan], dtype=torch.float64))
    assert target.rows.tolist() == [-torch.inf, 2.0, -1.0]
    assert target.excluded


def test_bounds_and_guards_only_rise() -> None:
    target = Target(1, 2, torch.ones(2, 1).double(), torch.tensor([1.0, -1.0]).double())
    assert (target.case, target.number, target.best, target.excluded) == (1, 2, -math.inf, False)
    target.learn(torch.tensor([1.5, -4.0]).double())
    assert (target.rows.tolist(), target.best) == ([0.5, -3.0], 0.5)
    target.learn(torch.tensor([-9.0, -1.75]).double())
    assert (target.rows.tolist(), target.best) == ([0.5, -0.75], 0.5)
    target.learn_best(0.25)
    assert target.best == 0.5
    target.require(0.5)
    assert not target.excluded  # at its guard is not above it
    target.require(0.125)
    assert target.guard == 0.5
    target.learn_best(0.75)
    assert target.excluded


def test_a_mix_is_a_row_of_its_own() -> None:
    target = Target(0, 0, torch.tensor([[1.0, 0.0], [2.0, 4.0]]).double(), torch.tensor([1.0, 3.0]).double())
    target.learn(torch.tensor([0.0, 0.0]).double())
    target.add_mix(torch.tensor([0.5, 0.25]).double())
    assert target.C.tolist() == [[1.0, 0.0], [2.0, 4.0], [1.0, 1.0]]
    assert target.d.tolist() == [1.0, 3.0, 1.25]
    assert target.rows.tolist() == [-1.0, -3.0, -math.inf]
    assert target.best == pytest.approx(-1.0)
