"""Functions of one number: their curvature is what curves.py says, and every line and image is on the safe side.

The functions are written here a second time, and their derivatives come from power series.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.certificate.checker.curve_cases import (
    BUMPS,
    NAMES,
    POSITIVE,
    SMOOTH,
    TINIEST,
    anywhere,
    argmin,
    bend,
    boxes,
    curves,
    file,
    places,
    scale,
    series,
    sides,
    slopes,
    special,
    value,
)
from tests.certificate.checker.helpers import PRECISION, above, below, holds, precisely

# What curves.py says of the functions


@pytest.mark.parametrize("name", SMOOTH)
@precisely
def test_values_and_derivatives(name: str) -> None:
    """f and f' of curves.py are the functions of their names; and `bend` has the sign of f''."""
    curve = curves.CURVES[name]
    x = anywhere(name, np.random.default_rng(0), 150, 30.0)
    for v in x:
        f, slope, second = series(name, float(v))
        for theirs, mine in ((curve.f, f), (curve.slope, slope)):
            ball = theirs(arb(float(v)))
            assert ball.overlaps(mine), (name, v)
            assert ball.rad() <= arb(2) ** -200 * (1 + abs(mine)), (name, v)
        assert (second > 0) == (bend(name, arb(float(v))) > 0), (name, v)
        assert (second < 0) == (bend(name, arb(float(v))) < 0), (name, v)


@pytest.mark.parametrize("name", SMOOTH)
@precisely
def test_the_pieces_cover_the_domain_but_for_less_than_a_float(name: str) -> None:
    pieces = sides(name)
    assert (pieces[0][0], pieces[-1][1]) == curves.CURVES[name].domain
    for (_, stop, sign), (start, _, other) in itertools.pairwise(pieces):
        assert sign == -other
        assert stop == start or math.nextafter(stop, math.inf) == start
        assert start - stop <= 2.0**-51
        if start != stop:
            for x in (stop, start, (stop + start) / 2):
                assert abs(series(name, x)[1]) <= 2
            assert bool(bend(name, arb(stop)) * sign > 0)
            assert bool(bend(name, arb(start)) * other > 0)
            beyond = math.nextafter(start, math.inf), math.nextafter(stop, -math.inf)
            assert bool(bend(name, arb(beyond[0])) * other > 0)
            assert bool(bend(name, arb(beyond[1])) * sign > 0)
            assert bool(series(name, stop)[2] * sign > 0)
            assert bool(series(name, start)[2] * other > 0)


def certain(name: str, lo: arb, hi: arb, sign: int, depth: int = 60) -> int:
    """f'' has the sign everywhere on [lo, hi], by halving; the number of parts."""
    if bool(bend(name, lo.union(hi)) * sign > 0):
        return 1
    assert depth, f"{name} has not the curvature {sign} near {lo}"
    middle = (lo + hi) / 2
    return certain(name, lo, middle, sign, depth - 1) + certain(name, middle, hi, sign, depth - 1)


@pytest.mark.parametrize("name", SMOOTH)
def test_curvature_on_whole_intervals(name: str) -> None:
    """On [−40, 40] but for slivers of 2⁻⁴⁰ at the inflections, in parts that leave no gap."""
    sliver = 2.0**-40
    with ctx.workprec(120):
        for start, stop, sign in sides(name):
            lo, hi = max(start, -40.0), min(stop, 40.0)
            lo, hi = lo + sliver * (start > -40), hi - sliver * (stop < 40)
            assert lo < hi
            assert certain(name, arb(lo), arb(hi), sign) < 10_000


@pytest.mark.parametrize("name", SMOOTH)
@precisely
def test_curvature_far_out(name: str) -> None:
    for start, stop, sign in sides(name):
        for x in (41.0, 1e3, 1e10, 1e100, 1e300):
            for v in {x, -x, 1 / x, -1 / x}:
                if start < v < stop:
                    assert bool(bend(name, arb(v)) * sign > 0)


@pytest.mark.parametrize("name", BUMPS)
@precisely
def test_the_curvature_falls_on_either_side_of_zero(name: str) -> None:
    """So that it changes its sign once: bend is even, and falls as x grows, at many numbers."""
    x = np.unique([*np.linspace(0, 4, 200), *np.linspace(4, 40, 50), *10.0 ** np.arange(2, 100, 7)])
    values = [bend(name, arb(float(v))) for v in x]
    assert all(bool(b < a) for a, b in itertools.pairwise(values))
    assert all(bend(name, arb(float(-v))).overlaps(w) for v, w in zip(x, values, strict=True))


@pytest.mark.parametrize("name", NAMES)
@precisely
def test_where_a_curve_is_least(name: str) -> None:
    curve = curves.CURVES[name]
    if math.isfinite(curve.least):
        least = value(name, arb(curve.least))
        assert all(bool(least <= value(name, arb(float(v))) + 1e-14) for v in np.linspace(-6, 6, 301))
    else:
        grows = curve.least < 0
        for x in anywhere(name, np.random.default_rng(1), 60, 20.0):
            assert bool(series(name, float(x))[1] > 0) == grows


# Lines under the functions


def check_floor(name: str, sign: int, rng: np.random.Generator, count: int) -> int:
    lo, hi = boxes(name, rng, count)
    inside = np.clip(lo + (hi - lo) * rng.random((2, count)), lo, hi)
    k = slopes(name, sign, rng, inside[0])
    touch = np.stack(
        [
            inside[rng.integers(0, 2, count), np.arange(count)],
            rng.standard_normal(count) * 10 ** rng.uniform(-3, 20, count),
        ]
    )
    touch[1, ::3] = rng.choice([-math.inf, math.inf, 0.0], len(touch[1, ::3]))
    found = curves.floor(name, sign, k, touch, lo, hi)
    assert found.shape == (count,)
    done = 0
    with ctx.workprec(PRECISION):
        for i in range(count):
            a, b, slope = float(lo[i]), float(hi[i]), float(k[i])
            more = [float(t) for t in touch[:, i]] + ([argmin(name, sign, slope, a, b)] if i % 4 == 0 else [])
            for x in places(name, rng, a, b, more):
                truth = sign * value(name, arb(x)) - arb(slope) * arb(x)
                assert below(float(found[i]), truth), (name, sign, slope, touch[:, i], a, b, x, found[i])
                done += 1
    return done


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", NAMES)
def test_lines_are_below(name: str, sign: int) -> None:
    assert check_floor(name, sign, np.random.default_rng(2), 120) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", NAMES)
def test_many_lines_are_below(name: str, sign: int) -> None:
    for seed in range(10):
        check_floor(name, sign, np.random.default_rng(100 + seed), 400)


number = st.floats(-1e6, 1e6)


@settings(max_examples=300)
@given(st.sampled_from(NAMES), st.sampled_from([1, -1]), number, number, number, number, st.floats(0, 1))
def test_any_line_is_below(name: str, sign: int, a: float, b: float, k: float, touch: float, part: float) -> None:
    a, b = (abs(x) for x in (a, b)) if name in POSITIVE else (a, b)
    a, b = min(a, b), max(a, b)
    assume(name not in ("Log", "Rsqrt") or a > 0)
    assume(name != "Reciprocal" or a > 0 or b < 0)
    found = curves.floor(name, sign, np.array([k]), np.array([[touch]]), np.array([a]), np.array([b]))[0]
    with ctx.workprec(PRECISION):
        for x in {
            a,
            b,
            min(max(a + (b - a) * part, a), b),
            min(max(touch, a), b),
            *(s for s in special(name) if a <= s <= b),
        }:
            assert below(found, sign * value(name, arb(x)) - arb(k) * arb(x))


def flat(name: str, sign: int, k: float, lo: float, hi: float) -> list[float]:
    """Where sign·f' = k in the part of the box in every convex piece of sign·f, or the end nearest to it."""
    found = []
    for start, stop, side in sides(name):
        a, b = max(start, lo), min(stop, hi)
        if side == sign and a < b:
            for _ in range(70):
                middle = (a + b) / 2
                a, b = (a, middle) if bool(sign * series(name, middle)[1] > k) else (middle, b)
            found.append(a)
    return (found * 2 + [lo, hi])[:2]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", NAMES)
def test_lines_that_touch_in_the_right_place_are_tight(name: str, sign: int) -> None:
    """With the right points to touch the bound is the least value, to 1e-9 of what is added up."""
    rng, count = np.random.default_rng(3), 40
    lo = scale(name, rng.standard_normal(count) * 3)
    hi = lo + 10 ** rng.uniform(-2, 1, count)
    if name == "Reciprocal":
        lo = np.abs(lo) + 0.05
        hi = lo + hi - np.minimum(lo, hi)
    lo = np.maximum(lo, 1e-3) if name in POSITIVE else lo
    hi = np.maximum(lo, hi)
    with ctx.workprec(PRECISION):
        t = np.clip(lo + (hi - lo) * rng.random(count), lo, hi)  # the slopes are the curve's own there
        k = np.array([float(sign * series(name, float(x))[1]) for x in t])
        touch = np.stack([flat(name, sign, float(k[i]), float(lo[i]), float(hi[i])) for i in range(count)], axis=1)
        found = curves.floor(name, sign, k, touch, lo, hi)
        for i in range(count):
            x = arb(argmin(name, sign, *(float(v[i]) for v in (k, lo, hi)), rounds=9))
            truth = sign * value(name, x) - arb(k[i]) * x
            size = 1 + abs(value(name, x)) + abs(arb(k[i]) * x)
            assert bool(arb(found[i]) >= truth - 1e-9 * size), (name, sign, k[i], lo[i], hi[i], found[i], truth)


def test_slopes_of_many_objectives_at_once() -> None:
    """k (S, n) and points (T, S, n) for boxes (n,)."""
    rng = np.random.default_rng(4)
    lo, hi = np.array([-3.0, -0.5, 1.0]), np.array([2.0, 0.5, 4.0])
    k, touch = rng.standard_normal((5, 3)), rng.standard_normal((2, 5, 3)) * 3
    for name, sign in itertools.product(("Gelu", "Silu", "Tanh", "Exp"), (1, -1)):
        whole = curves.floor(name, sign, k, touch, lo, hi)
        assert whole.shape == (5, 3)
        for s, i in np.ndindex(5, 3):
            one = [x[..., i : i + 1] for x in (k[s], touch[:, s], lo, hi)]
            assert whole[s, i] == curves.floor(name, sign, *one)[0]


def test_no_line_where_there_is_no_function() -> None:
    wrong: dict[str, list[tuple[float, float]]] = {
        "Log": [(0.0, 1.0), (-1.0, 1.0)],
        "Sqrt": [(-TINIEST, 1.0)],
        "Rsqrt": [(0.0, 1.0), (-2.0, -1.0)],
        "Reciprocal": [(-1.0, 1.0), (0.0, 1.0), (-1.0, 0.0), (0.0, 0.0)],
        "Gelu": [(1.0, 0.0), (math.nan, 1.0), (0.0, math.nan)],
    }
    for name, ends in wrong.items():
        for lo, hi in ends:
            for call in (curves.image, lambda n, a, b: curves.floor(n, -1, np.zeros(1), np.zeros((1, 1)), a, b)):
                with pytest.raises(file.Rejected, match="not defined"):
                    call(name, np.array([lo]), np.array([hi]))


def test_a_slope_or_a_point_that_is_no_number_bounds_nothing() -> None:
    ends = np.array([-1.0]), np.array([2.0])
    for name, sign in itertools.product(("Gelu", "Tanh", "Exp", "Silu"), (1, -1)):
        for k in (math.nan, math.inf, -math.inf):
            assert curves.floor(name, sign, np.array([k]), np.zeros((1, 1)), *ends)[0] == -math.inf
        assert curves.floor(name, sign, np.zeros(1), np.zeros((0, 1)), *ends)[0] < 0
    assert curves.floor("Exp", 1, np.zeros(1), np.full((1, 1), math.nan), *ends)[0] == -math.inf
    assert curves.floor("Exp", 1, np.zeros(1), np.zeros((0, 1)), *ends)[0] == -math.inf


@pytest.mark.parametrize("name", BUMPS)
@precisely
def test_between_the_floats_at_an_inflection(name: str) -> None:
    """The real numbers there are in no piece: a box that ends there, or begins, or is no wider, holds for them too."""
    stop = curves.CURVES[name].convex[0][1]
    start = math.nextafter(stop, math.inf)
    inside = [arb(stop) + (arb(start) - arb(stop)) * i / 8 for i in range(9)]
    for side, sign in itertools.product((1, -1), (1, -1)):
        for ends in ((stop, start), (0.0, start), (stop, 3.0), (0.5, 3.0), (start - 1e-9, start + 1e-9)):
            lo, hi = sorted(side * x for x in ends)
            own = float(sign * curves.CURVES[name].slope(arb(side * stop)))
            for k in (own, 0.0, own + 1e-15, own - 1e-15, 3.0, -1e6, 1e12):
                touch = np.array([[stop], [start], [-stop], [-start]])
                found = curves.floor(name, sign, np.array([k]), touch, np.array([lo]), np.array([hi]))[0]
                assert all(below(found, sign * value(name, side * x) - arb(k) * side * x) for x in inside)


# Images


@pytest.mark.parametrize("name", NAMES)
@precisely
def test_images(name: str) -> None:
    rng = np.random.default_rng(5)
    lo, hi = boxes(name, rng, 150)
    found = curves.image(name, lo, hi)
    assert (found.lo <= found.hi).all()
    for i in range(len(lo)):
        values = [value(name, arb(x)) for x in places(name, rng, float(lo[i]), float(hi[i]), [])]
        assert all(holds(found[i], v) for v in values), (name, lo[i], hi[i])
        if max(abs(lo[i]), abs(hi[i])) < 100 and (name not in (*POSITIVE, "Reciprocal") or abs(lo[i]) > 1e-3):
            room = 1e-9 * (1 + max(abs(float(v)) for v in values))
            assert above(float(found.lo[i]) + room, min(values, key=float)), (name, lo[i], hi[i])
            assert below(float(found.hi[i]) - room, max(values, key=float)), (name, lo[i], hi[i])


def test_images_keep_their_shape() -> None:
    lo = np.zeros((2, 3, 1))
    assert curves.image("Gelu", lo, lo + 1).lo.shape == (2, 3, 1)
    assert curves.image("Sqrt", lo, lo + 1).hi.max() < 1 + 1e-9
