"""Narrowing, in rationals: no input at which the objective may be at most the level is left out, to the last bit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.certificate.checker.helpers import Array, module

narrowing = module("narrowing")
input_sets = module("input_sets")
Rejected = module("file").Rejected


class Drawn(NamedTuple):
    """A box, a linear bound over it, and points of it, some of them at its corners."""

    given: Any
    bound: Any
    points: Array


def drawn(seed: int) -> Drawn:
    """Numbers of very different sizes; among them coefficients that are 0, and numbers that do not move."""
    chance = np.random.default_rng(seed)
    n = int(chance.integers(1, 9))
    scale = 10.0 ** chance.integers(-6, 6, n)
    centre, width = chance.standard_normal(n) * scale, chance.random(n) * scale * 10.0 ** chance.integers(-8, 2, n)
    width[chance.random(n) < 0.15] = 0.0
    given = input_sets.CheckedBox(lower=centre - width, upper=centre + width)
    A, deviation = chance.standard_normal((2, n)) * 10.0 ** chance.integers(-3, 3, (2, n))
    A[chance.random(n) < 0.15] = 0.0
    deviation *= (chance.random(n) < 0.6) * chance.choice([0.0, 1.0])
    bound = narrowing.ProvedBound(A, deviation, float(chance.standard_normal()))
    t = chance.random((40, n))
    corners = chance.random((40, n)) < 0.5
    mixed = np.where(chance.random((40, n)) < 0.3, t, corners)
    points = given.lower + np.concatenate([t, corners, mixed]) * (given.upper - given.lower)
    return Drawn(given, bound, np.clip(points, given.lower, given.upper))


def dot(a: Array, x: Array) -> Fraction:
    return sum((Fraction(p) * Fraction(q) for p, q in zip(a.tolist(), x.tolist(), strict=True)), Fraction(0))


def value(one: Drawn, x: Array, *, constant: bool = True) -> Fraction:
    """Σ A·x + Σ deviation·ξ + constant for the ξ of x."""
    total = dot(one.bound.A, x) + (Fraction(one.bound.constant) if constant else 0)
    parts = (one.bound.deviation, x, one.given.centre, one.given.reach)
    for d, at, c, r in zip(*(part.tolist() for part in parts), strict=True):
        total += Fraction(d) * (Fraction(at) - Fraction(c)) / Fraction(r)
    return total


def float_above(x: Fraction) -> float:
    near = float(x)
    return near if Fraction(near) >= x else float(np.nextafter(near, np.inf))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_may_be_at_the_level_is_in_the_half_space(seed: int) -> None:
    """The level is the value at a point, rounded up by less than one unit in the last place: the point must stay."""
    one = drawn(seed)
    for x in one.points[::4]:
        half = narrowing.half_space(one.given, one.bound, float_above(value(one, x)))
        assert dot(half.slope, x) <= Fraction(half.limit)


def test_a_corner_of_a_number_that_hardly_moves() -> None:
    """Its slope would leave every range; what it adds is at its worst."""
    tiny = np.array([1e-200])
    given = input_sets.CheckedBox(lower=-tiny, upper=tiny)
    one = Drawn(given, narrowing.ProvedBound(np.zeros(1), np.ones(1), 0.5), np.array([-tiny, tiny]))
    half = narrowing.half_space(given, one.bound, float_above(value(one, -tiny)))
    assert dot(half.slope, -tiny) <= Fraction(half.limit)


@pytest.mark.parametrize("seed", range(40))
def test_the_half_space_is_no_larger_than_rounding_makes_it(seed: int) -> None:
    one = drawn(seed)
    level = float(value(one, one.points[0]))
    half = narrowing.half_space(one.given, one.bound, level)
    parts = np.abs(half.slope) @ one.given.box.size + np.abs(one.bound.deviation).sum()
    parts += np.abs(one.bound.deviation / one.given.reach) @ np.abs(one.given.centre) + abs(one.bound.constant)
    moves = one.given.reach > 1e-100
    left_out = float(np.abs(one.bound.deviation[~moves]).sum())
    for x in one.points[::8]:
        over = float(value(one, x)) - level
        assert float(dot(half.slope, x) - Fraction(half.limit)) >= over - 2 * left_out - 1e-13 * (parts + abs(level))


@pytest.mark.parametrize("seed", range(40))
def test_the_needed_box_has_every_point_of_the_half_space(seed: int) -> None:
    """The limit is Σ slope·x of a point, rounded up: of points at the least corner but for one number, above all."""
    one = drawn(seed)
    slope = one.bound.A
    least = np.where(slope > 0, one.given.lower, one.given.upper)
    points = list(one.points[:20])
    for j in range(len(slope)):
        for x in one.points[:5]:
            points.append(least.copy())
            points[-1][j] = x[j]
    for x in points:
        half = narrowing.HalfSpace(slope, float_above(dot(slope, x)))
        box = narrowing.needed(one.given, half)
        assert ((box.lo <= x) & (x <= box.hi)).all()
        assert ((box.lo >= one.given.lower) & (box.hi <= one.given.upper)).all()


def test_the_needed_box_is_small() -> None:
    given = input_sets.CheckedBox(lower=np.array([-1.0, -1.0, 2.0]), upper=np.array([1.0, 1.0, 4.0]))
    box = narrowing.needed(given, narrowing.HalfSpace(np.array([1.0, -2.0, 0.0]), -2.0))
    np.testing.assert_allclose(box.lo, [-1.0, 0.5, 2.0], atol=1e-12)
    np.testing.assert_allclose(box.hi, [0.0, 1.0, 4.0], atol=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_a_box_that_is_one_unit_too_narrow_is_rejected(seed: int) -> None:
    one = drawn(seed)
    level = float(value(one, one.points[seed]))
    half = narrowing.half_space(one.given, one.bound, level)
    box = narrowing.needed(one.given, half)
    narrowing.narrower(one.given, half, box.lo, box.hi)
    narrowing.narrower(one.given, half, box.lo - 1.0, box.hi + 1.0)
    for j in range(len(half.slope)):
        for ends, way in (((box.lo.copy(), box.hi), np.inf), ((box.lo, box.hi.copy()), -np.inf)):
            end = ends[0] if way > 0 else ends[1]
            for wrong in (np.nextafter(end[j], way), np.nan, way):
                end[j] = wrong
                with pytest.raises(Rejected, match="leaves out"):
                    narrowing.narrower(one.given, half, *ends)


def cut(one: Drawn, share: float) -> Any:
    """The box cut so that this share of the way of Σ slope·x is left."""
    slope = np.random.default_rng(7).standard_normal(len(one.bound.A)) / np.maximum(one.given.reach, 1e-3)
    ends = sorted(dot(slope, x) for x in one.points)
    half = narrowing.HalfSpace(slope, float_above(ends[0] + Fraction(share) * (ends[-1] - ends[0])))
    return narrowing.CheckedCut(lower=one.given.lower, upper=one.given.upper, half=half)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_no_bound_over_a_cut_box_is_above_a_value(seed: int, share: float) -> None:
    """Of the objective, of the cut's own slope both ways, and of one that the cut decides."""
    one = drawn(seed)
    given = cut(one, share)
    zero = np.zeros_like(one.bound.A)
    asked = [(one.bound.A, one.bound.deviation), (given.half.slope, zero), (-given.half.slope, zero)]
    asked += [(one.bound.A - 3 * given.half.slope, one.bound.deviation)]
    asked += [(-factor * given.half.slope, zero) for factor in (0.7, 1.3, np.pi, 1e-3, 1e5)]  # the mix cancels
    found = given.lowest(*(np.stack(each) for each in zip(*asked, strict=True)))
    held = [x for x in one.points if dot(given.half.slope, x) <= Fraction(given.half.limit)]
    assert held
    for (A, deviation), bound in zip(asked, found, strict=True):
        other = one._replace(bound=narrowing.ProvedBound(A, deviation, 0.0))
        assert min(value(other, x) for x in held) >= Fraction(float(bound))
    assert (found >= input_sets.CheckedBox.lowest(given, *(np.stack(e) for e in zip(*asked, strict=True)))).all()


@pytest.mark.parametrize("seed", range(20))
def test_a_bound_over_a_cut_box_is_the_best_one(seed: int) -> None:
    """As linear programming finds it."""
    chance = np.random.default_rng(seed)
    n = 6
    lower, slope, A = chance.standard_normal((3, n))
    upper = lower + chance.random(n)
    least = float(np.where(slope > 0, slope * lower, slope * upper).sum())
    half = narrowing.HalfSpace(slope, least + 0.3 * float(np.abs(slope) @ (upper - lower)))
    given = narrowing.CheckedCut(lower=lower, upper=upper, half=half)
    best = linprog(A, A_ub=slope[None], b_ub=[half.limit], bounds=list(zip(lower, upper, strict=True))).fun
    assert float(given.lowest(A[None], np.zeros((1, n)))[0]) == pytest.approx(best, abs=1e-9)


def test_a_bound_that_is_not_finite_narrows_nothing() -> None:
    one = drawn(3)
    for bound, level in (
        (one.bound._replace(constant=float("nan")), 0.0),
        (one.bound._replace(constant=float("-inf")), 0.0),
        (one.bound._replace(A=one.bound.A * np.inf), 0.0),
        (one.bound, float("inf")),
        (one.bound, float("nan")),
    ):
        with pytest.raises(Rejected, match="not finite"):
            narrowing.half_space(one.given, bound, level)


def test_a_set_that_is_no_box_is_not_narrowed() -> None:
    one = np.ones(2)
    ball = input_sets.CheckedBalls(
        norm=2, middle=0 * one, radius=one, members=np.zeros(2, dtype=np.int64), lower=-one, upper=one
    )
    with pytest.raises(Rejected, match="no box"):
        narrowing.half_space(ball, narrowing.ProvedBound(one, 0 * one, 0.0), 0.0)
