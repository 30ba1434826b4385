"""The reach of a linear function in a cut ball: never below an exact value, in rationals, whatever the multiplier."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.certificate.checker.helpers import Array, module

duality = module("duality")


def drawn(seed: int, norm: int) -> tuple[Array, Array]:
    """Sizes b and ways e, (S, k), of very different sizes; among them zeros, ties, and ways of 1."""
    chance = np.random.default_rng(seed)
    k = int(chance.integers(1, 9))
    b = np.abs(chance.standard_normal((24, k))) * 10.0 ** chance.integers(-3, 3, (24, k))
    b *= 10.0 ** chance.choice([0, 0, 0, -160, -300, 150], (24, 1))
    b[chance.random(b.shape) < 0.15] = 0.0
    b[:4] = np.round(b[:4])  # ties
    way = chance.random(b.shape) ** chance.integers(1, 6)
    way[chance.random(b.shape) < 0.5] = 1.0
    way[chance.random(b.shape) < 0.1] = 0.0
    if norm == 2:
        way[:, 0] = np.where(chance.random(24) < 0.3, 1e-9, way[:, 0])
    return b, way


def exact_in_l1(b: Array, way: Array) -> Fraction:
    """The optimum: the largest sizes first, until the ball is used up."""
    left, total = Fraction(1), Fraction(0)
    for size, end in sorted(zip(b.tolist(), way.tolist(), strict=True), reverse=True):
        t = min(Fraction(end), left)
        total, left = total + Fraction(size) * t, left - t
    return total


def dual_value(b: Array, way: Array, norm: int, price: float) -> Fraction:
    """The bound at a multiplier without rounding."""
    lam, total = Fraction(price), Fraction(price)
    for size, end in zip(map(Fraction, b.tolist()), map(Fraction, way.tolist()), strict=True):
        if norm == 1:
            total += end * max(size - lam, Fraction(0))
        else:
            t = end if size >= 2 * lam * end else size / (2 * lam)
            total += size * t - lam * t * t
    return total


def a_point_in_l2(b: Array, way: Array) -> Array:
    """A point of the cut ball, nearly the best, by bisection; the sum of its squares is at most 1 in rationals."""
    most = b.max()
    if not most > 0:
        return np.zeros_like(b)
    part = b / most
    low, high = 0.0, float(np.sqrt(np.square(part).sum())) + 1.0
    for _ in range(200):
        middle = (low + high) / 2
        t = np.minimum(way, part / (2 * middle)) if middle > 0 else way
        low, high = (middle, high) if np.square(t).sum() > 1 else (low, middle)
    t = np.minimum(way, np.where(part > 0, part / (2 * high) if high > 0 else way, 0.0))
    while sum(Fraction(x) ** 2 for x in t.tolist()) > 1:
        t = t * (1 - 2.0**-50)
    return np.asarray(t)


@pytest.mark.parametrize("seed", range(12))
def test_the_l1_ball(seed: int) -> None:
    b, way = drawn(seed, 1)
    found = duality.farthest(b, way, 1)
    for i in range(len(b)):
        best = exact_in_l1(b[i], way[i])
        assert Fraction(float(found[i])) >= best
        assert found[i] <= float(best) * (1 + 1e-12) + 1e-300


@pytest.mark.parametrize("seed", range(12))
def test_the_l2_ball(seed: int) -> None:
    b, way = drawn(seed, 2)
    found = duality.farthest(b, way, 2)
    for i in range(len(b)):
        t = a_point_in_l2(b[i], way[i])
        value = sum(Fraction(x) * Fraction(y) for x, y in zip(b[i].tolist(), t.tolist(), strict=True))
        assert Fraction(float(found[i])) >= value
        if b[i].max() > 1e-100:
            assert found[i] <= float(value) * (1 + 1e-7) + 1e-300


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_every_multiplier_is_sound(norm: int, seed: int) -> None:
    """At nonsense too, the value is at least the one without rounding, which is at least the optimum."""
    b, way = drawn(seed, norm)
    chance = np.random.default_rng(seed)
    for price in (0.0, 5e-324, 1e-200, 1e-9, 0.5, 3.0, 1e9, 1e200, 1e308, *np.abs(chance.standard_normal(4)).tolist()):
        found = duality.value(b, way, norm, np.full(len(b), price))
        for i in range(len(b)):
            assert not math.isnan(found[i])
            if math.isinf(found[i]):
                continue
            assert Fraction(float(found[i])) >= dual_value(b[i], way[i], norm, price)
            if norm == 1:
                assert Fraction(float(found[i])) >= exact_in_l1(b[i], way[i])


@pytest.mark.parametrize("norm", [1, 2])
def test_a_whole_ball_by_its_closed_form(norm: int) -> None:
    b = np.abs(np.random.default_rng(3).standard_normal((50, 7)))
    found = duality.farthest(b, np.ones_like(b), norm)
    for row, value in zip(b, found, strict=True):
        square = sum(Fraction(x) ** 2 for x in row.tolist())
        if norm == 1:
            assert Fraction(float(value)) >= Fraction(float(row.max()))
            assert value <= row.max() * (1 + 1e-14)
        else:
            assert Fraction(float(value)) ** 2 >= square
            assert Fraction(float(value)) ** 2 <= square * Fraction(1 + 1e-13)


@pytest.mark.parametrize("norm", [1, 2])
def test_what_is_no_number_is_never_a_bound(norm: int) -> None:
    ways = np.array([[1.0, 0.5]] * 3)
    found = duality.farthest(np.array([[np.nan, 1.0], [np.inf, 1.0], [1e308, 1e308]]), ways, norm)
    assert not (found[:2] < np.inf).any()
    assert not found[2] < 1e308
