"""Balls of columns: no point of them is farther along any functional."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.certificate.checker.ball_cases import balls_of, dot, point
from tests.certificate.checker.helpers import module

unknowns = module("unknowns")


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_reach(order: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    y = chance.standard_normal((30, 9)) * 10.0 ** chance.integers(-3, 3, (30, 9))
    y[:, 8] *= chance.random(30) < 0.5
    far = unknowns.reach(y, balls_of(order)) * unknowns.more_roundings(9)
    for row, most in zip(y, far, strict=True):
        best = max(dot(row, point(row, order, chance)) for _ in range(8))
        assert best <= Fraction(float(most))
        assert float(best) >= float(most) * (0.7 if order == 1 else 0.8)


def test_columns_that_are_left_out() -> None:
    used = np.array([1, 0, 1, 0, 0, 1, 1, 0, 1], dtype=bool)
    (only,) = unknowns.kept(balls_of(2), used)
    assert only.places.tolist() == [0, 1, 2]
    used[4] = True
    first, second = unknowns.kept(balls_of(2), used)
    assert (first.places.tolist(), second.places.tolist()) == ([0, 1, 3], [2])
