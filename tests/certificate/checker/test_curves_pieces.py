"""Functions of one number that are not smooth, or not continuous: every line and image is on the safe side."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from flint import arb, fmpq

from tests.certificate.checker.curve_cases import (
    PIECEWISE,
    anywhere,
    boxes,
    curves,
    file,
    places,
    series,
    sides,
    slopes,
    softplus,
    special,
    value,
)
from tests.certificate.checker.helpers import below, precisely


@pytest.mark.parametrize("name", PIECEWISE)
@precisely
def test_pieces_that_may_be_straight(name: str) -> None:
    """They leave no gap wider than a float; values and slopes are those of the function; each piece bends as said."""
    curve, pieces = curves.CURVES[name], sides(name)
    assert (pieces[0][0], pieces[-1][1]) == curve.domain
    for (_, stop, sign), (start, _, other) in itertools.pairwise(pieces):
        assert sign == -other
        assert math.nextafter(stop, math.inf) == start
        assert start - stop <= 2.0**-51
        assert bool(abs(curve.slope(arb(stop))) <= 2)
        assert bool(abs(curve.slope(arb(start))) <= 2)
    rng = np.random.default_rng(0)
    for v in [*anywhere(name, rng, 100, 30.0), *special(name)]:
        found = series(name, float(v))
        assert curve.f(arb(float(v))).overlaps(found[0]), (name, v)
        assert curve.slope(arb(float(v))).overlaps(found[1]), (name, v)
    for start, stop, sign in pieces:
        for _ in range(200):
            a, b = sorted(rng.uniform(max(start, -9.0), min(stop, 9.0), 2))
            a, b = (start if rng.random() < 0.2 and start > -9 else a), (stop if rng.random() < 0.2 and stop < 9 else b)
            middle = (arb(a) + arb(b)) / 2
            above = (value(name, arb(a)) + value(name, arb(b))) / 2 - value(name, middle)
            assert bool(sign * above >= -(arb(2) ** -150)), (name, a, b)


@pytest.mark.parametrize("name", ["HardSwish", "HardSwishSingle"])
@precisely
def test_between_the_floats_at_a_kink(name: str) -> None:
    """Real numbers between the floats at a kink, and lines that touch there, on either side of it."""
    stop = curves.CURVES[name].convex[0][1]
    start = math.nextafter(stop, math.inf)
    inside = [arb(stop) + (arb(start) - arb(stop)) * i / 8 for i in range(9)]
    for side, sign in itertools.product((1, -1), (1, -1)):
        for ends in ((stop, start), (0.0, start), (stop, 4.0), (0.5, 4.0), (start - 1e-9, start + 1e-9)):
            lo, hi = sorted(side * x for x in ends)
            for k in (1.5, 1.0, 0.0, -0.5, 1.25, -0.25, 1e12):
                touch = np.array([[stop], [start], [-stop], [-start]])
                found = curves.floor(name, sign, np.array([sign * k]), touch, np.array([lo]), np.array([hi]))[0]
                at = [*(side * x for x in inside), arb(lo), arb(hi)]
                assert all(below(found, sign * value(name, x) - arb(sign * k) * x) for x in at if lo <= x <= hi)


def test_lines_under_the_softplus_of_torch() -> None:
    """Below both branches, at the step too, and nowhere by more than the step is high."""
    rng = np.random.default_rng(6)
    lo, hi = boxes("Softplus", rng, 200)
    lo[::3], hi[::3] = 20 - rng.random(len(lo[::3])), 20 + rng.choice([0.0, 4e-15, 1e-9, 0.5], len(hi[::3]))
    lo, hi = np.minimum(lo, hi), np.maximum(lo, hi)
    for sign in (1, -1):
        k = slopes("Softplus", sign, rng, lo)
        touch = np.stack([lo, hi, np.full_like(lo, 20.0)])
        found = curves.floor("SoftplusTorch", sign, k, touch, lo, hi)
        assert (
            np.asarray(found) >= curves.floor("Softplus", sign, k, touch, lo, hi) - 2.1e-9 - 1e-15 * np.abs(found)
        ).all()
        for i in range(len(lo)):
            for x in {*places("Softplus", rng, float(lo[i]), float(hi[i]), [20.0, math.nextafter(20, 30)])}:
                f = arb(x) if x > 20 else softplus(arb(x))
                assert below(float(found[i]), sign * f - arb(float(k[i])) * arb(x)), (sign, k[i], lo[i], hi[i], x)
    image = curves.image("SoftplusTorch", np.array([21.0]), np.array([22.0]))
    assert image.lo[0] <= 21
    assert image.hi[0] >= 22


def whole_numbers(x: float) -> list[float]:
    """What x may be rounded to: every whole number within ½ and SLACK of it."""
    half = 0.5 + curves.SLACK * max(1.0, abs(x))
    return [
        n for n in np.arange(math.floor(x) - 2.0, math.ceil(x) + 3.0) if abs(fmpq_of(n) - fmpq_of(x)) <= fmpq_of(half)
    ]


def fmpq_of(x: float) -> fmpq:
    return fmpq(*float(x).as_integer_ratio())


def test_lines_under_roundings() -> None:
    """Below every whole number that a number may be rounded to: at ties, next to them, at the ends and between."""
    rng, count = np.random.default_rng(7), 400
    centre = np.round(rng.standard_normal(count) * 10 ** rng.uniform(0, 4, count) * 2) / 2
    lo = centre - rng.choice([0.0, 1e-9, 1e-6, 0.3, 0.5, 2.0, 40.0], count)
    hi = centre + rng.choice([0.0, 1e-9, 1e-6, 0.3, 0.5, 2.0, 40.0], count)
    ties = lo + (hi - lo) * rng.random((3, count))
    for sign in (1, -1):
        k = sign * rng.choice([0.0, 1.0, 0.5, 0.97, 1.03, -2.0, 1e6], count)
        found = curves.floor("Round", sign, k, np.zeros((1, count)), lo, hi)
        for i in range(count):
            half = np.floor(ties[:, i]) + 0.5
            near = [v for t in half for v in (t, math.nextafter(t, -1e9), math.nextafter(t, 1e9), t + 1e-7, t - 1e-7)]
            for x in {float(v) for v in (lo[i], hi[i], *ties[:, i], *near) if lo[i] <= v <= hi[i]}:
                for y in whole_numbers(x):
                    truth = fmpq_of(sign * y) - fmpq_of(float(k[i])) * fmpq_of(x)
                    assert fmpq_of(float(found[i])) <= truth, (sign, k[i], lo[i], hi[i], x, y)
        image = curves.image("Round", lo, hi)
        assert (image.lo >= np.rint(lo) - 1.001).all()
        assert (image.hi <= np.rint(hi) + 1.001).all()
    exact = curves.image("Round", np.array([1.6]), np.array([2.4]))
    assert exact.lo[0] <= 2 <= exact.hi[0]
    assert exact.hi[0] - exact.lo[0] < 1e-14


def test_a_rounding_of_what_is_no_number_bounds_nothing() -> None:
    for lo, hi in ((1.0, 0.0), (math.nan, 1.0)):
        with pytest.raises(file.Rejected, match="not defined"):
            curves.image("Round", np.array([lo]), np.array([hi]))
    for k in (math.nan, math.inf, -math.inf):
        assert (
            curves.floor("Round", 1, np.array([k]), np.zeros((0, 1)), np.array([-1.0]), np.array([2.0]))[0] == -math.inf
        )
    assert curves.floor("Round", 1, np.zeros(1), np.zeros((0, 1)), np.array([-np.inf]), np.array([2.0]))[0] == -math.inf
