"""Functions of one number: their curvature is what curves.py says, and every line and image is on the safe side.

The functions are written here a second time, and their derivatives come from power series.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from flint import arb, arb_series, ctx, fmpq
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.certificate.checker.helpers import PRECISION, Array, above, below, holds, module, precisely

curves, file = module("curves"), module("file")
NAMES = sorted(curves.CURVES)
PIECEWISE = ("Elu", "HardSwish", "HardSwishSingle")
"""Functions of several pieces, of which some are straight."""
SMOOTH = [name for name in NAMES if name not in PIECEWISE]
BUMPS = ("Gelu", "GeluTanh", "GeluTanhDouble", "GeluTanhSingle", "Silu")
TANH = ("GeluTanh", "GeluTanhDouble", "GeluTanhSingle")
POSITIVE = ("Log", "Sqrt", "Rsqrt")
TINIEST = 5e-324

SINGLE = tuple(float(np.float32(x)) for x in (math.sqrt(2 / math.pi), 0.044715))


def constants(name: str) -> tuple[arb, arb]:
    """k and c of tanh(k (x + c x³)): real numbers, or rounded to float64 or float32."""
    if name == "GeluTanhDouble":
        return arb(math.sqrt(2 / math.pi)), arb(0.044715)
    if name == "GeluTanh":
        return (2 / arb.pi()).sqrt(), arb(fmpq(44715, 10**6))
    return arb(SINGLE[0]), arb(SINGLE[1])


def sigmoid(x: Any) -> Any:
    """Of a ball or of a power series, by exponentials that are small."""
    first = x if isinstance(x, arb) else x[0]
    small = (x if first < 0 else -x).exp()
    return small / (1 + small) if first < 0 else 1 / (1 + small)


def softplus(x: Any) -> Any:
    """Of a ball or of a power series, by exponentials that are small."""
    first = x if isinstance(x, arb) else x[0]
    return (1 + x.exp()).log() if first < 0 else x + (1 + (-x).exp()).log()


def piecewise(name: str, x: Any) -> Any:
    """Of a ball or of a power series: the piece is that of its first number."""
    first = x if isinstance(x, arb) else x[0]
    if name == "Elu":
        return x if first > 0 else (x.expm1() if isinstance(x, arb) else x.exp() - 1)
    k = arb(fmpq(1, 6)) if name == "HardSwish" else arb(float(np.float32(1 / 6)))
    gate = k * first + arb(1) / 2
    return x * 0 if gate < 0 else x if gate > 1 else x * (k * x + arb(1) / 2)


def value(name: str, x: Any) -> Any:
    """f of a ball or of a power series, without cancellation: far from 0 too."""
    if name == "Gelu":
        return x * (-x / arb(2).sqrt()).erfc() / 2
    if name in TANH:
        k, c = constants(name)
        return x * sigmoid(2 * k * (x + c * x * x * x))
    if name == "Tanh":
        return 1 - 2 * sigmoid(-2 * x)
    if name in PIECEWISE:
        return piecewise(name, x)
    return {
        "Silu": lambda: x * sigmoid(x),
        "Softplus": lambda: softplus(x),
        "Mish": lambda: x * (1 - 2 * sigmoid(-x) ** 2 / (1 + sigmoid(-x) ** 2)),
        "Sigmoid": lambda: sigmoid(x),
        "Erf": x.erf,
        "Exp": x.exp,
        "Square": lambda: x * x,
        "Log": x.log,
        "Sqrt": x.sqrt,
        "Rsqrt": x.rsqrt,
        "Reciprocal": lambda: 1 / x,
    }[name]()


def bend_of_mish(x: arb) -> arb:
    """2 u q + x ((eˣ + u) q − 4 u² eˣ) with u = 1 + eˣ and q = 1 + u²; over e³ˣ to the right of 0."""
    left = x < 0
    e = x.exp() if left else (-x).exp()
    u = 1 + e
    q = (1 if left else e * e) + u * u
    return 2 * u * q + x * (((e if left else 1) + u) * q - 4 * u * u * (e if left else 1))


def bend(name: str, x: arb) -> arb:
    """A number with the sign of f''(x), for a ball x."""
    if name in TANH:
        k, c = constants(name)
        y = c * x * x
        return 1 - k * x * (k * x * (1 + y)).tanh() * (1 + 9 * y * y / (1 + 6 * y))
    return {
        "Gelu": lambda: 2 - x * x,
        "Silu": lambda: 2 - x * (x / 2).tanh(),
        "Softplus": lambda: arb(1),
        "Mish": lambda: bend_of_mish(x),
        "Tanh": lambda: -x,
        "Sigmoid": lambda: -x,
        "Erf": lambda: -x,
        "Exp": lambda: arb(1),
        "Square": lambda: arb(1),
        "Log": lambda: arb(-1),
        "Sqrt": lambda: arb(-1),
        "Rsqrt": lambda: arb(1),
        "Reciprocal": lambda: x,
    }[name]()


def series(name: str, x: float) -> tuple[arb, arb, arb]:
    """f, f' and f'' at a number."""
    with ctx.workprec(3 * PRECISION):
        found = value(name, arb_series([arb(x), 1], 3))
        return found[0], found[1], 2 * found[2]


def anywhere(name: str, rng: np.random.Generator, count: int, far: float = 300.0) -> Array:
    """Numbers where f is defined: small, ordinary and far."""
    x = rng.standard_normal(count) * 10 ** rng.uniform(-4, math.log10(far), count)
    x = np.clip(x, -far, far)
    return np.abs(x) if name in POSITIVE else x


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


def sides(name: str) -> list[tuple[float, float, int]]:
    """Where the curve is said to be convex (1) and concave (−1), in order, within its domain."""
    curve = curves.CURVES[name]
    lo, hi = curve.domain
    pieces = [(*piece, 1) for piece in curve.convex] + [(*piece, -1) for piece in curve.concave]
    return sorted((max(a, lo), min(b, hi), sign) for a, b, sign in pieces)


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
            assert bool(sign * above >= -arb(2) ** -150), (name, a, b)


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


# Lines under the functions


def scale(name: str, x: Array) -> Array:
    """Into where f is defined."""
    return np.maximum(np.abs(x), TINIEST) if name in POSITIVE else x


def special(name: str) -> list[float]:
    """Numbers at which something happens: inflections and their neighbours, the least, 0, and far."""
    ends = [end for *both, _ in sides(name) for end in both if math.isfinite(end)]
    found = [0.0, 1.0, -1.0, *ends, curves.CURVES[name].least]
    near = [math.nextafter(x, to) for x in ends for to in (-math.inf, math.inf)]
    return [x for x in (*found, *near) if math.isfinite(x)]


def boxes(name: str, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Random boxes: points, tiny, ordinary, wide, from one special number to another, far."""
    kind = rng.integers(0, 7, count)
    centre = rng.standard_normal(count) * rng.choice([0.1, 1.0, 3.0, 10.0], count)
    some = np.array(special(name))
    centre = np.where(kind == 4, rng.choice(some, count), centre)
    far = rng.choice([-1.0, 1.0], count) * 10 ** rng.uniform(1, 3 if name == "Exp" else 15, count)
    far = np.where(
        rng.random(count) < (0.2 if name != "Exp" else 0), np.sign(far) * 10 ** rng.uniform(15, 300, count), far
    )
    centre = np.where(kind == 5, far, centre)
    widths = np.select(
        [kind == 0, kind == 1, kind == 2, kind == 3, kind == 4, kind == 5],
        [
            np.zeros(count),
            10 ** rng.uniform(-15, -3, count),
            rng.random(count) * 3,
            rng.random(count) * 60,
            rng.choice([0.0, 1e-16, 1e-15, 1e-8, 0.3, 5.0], count),
            np.abs(far) * rng.random(count),
        ],
        0,
    )
    ends = np.stack([centre - widths * rng.random(count), centre + widths * rng.random(count)])
    ends[:, kind == 6] = rng.choice(some, (2, int((kind == 6).sum())))
    ends = scale(name, ends)
    lo, hi = ends.min(0), ends.max(0)
    if name == "Reciprocal":
        crosses = (lo <= 0) & (hi >= 0)
        lo = np.where(crosses, np.where(hi > 0, hi / 7, -1.0), lo)
        hi = np.where(crosses, np.where(hi > 0, hi, -0.5), hi)
        lo, hi = np.where(lo == 0, 1e-3, lo), np.where(hi == 0, 1e-3, hi)
        lo, hi = np.minimum(lo, hi), np.maximum(lo, hi)
    return lo, hi


def slopes(name: str, sign: int, rng: np.random.Generator, inside: Array) -> Array:
    """Half of them f' at a number of the box, the others 0, silly or huge."""
    with ctx.workprec(100):
        own = [float(sign * curves.CURVES[name].slope(arb(float(x)))) for x in inside]
    kind, random = rng.integers(0, 8, inside.shape), rng.standard_normal(inside.shape)
    other = np.select([kind == 4, kind == 5, kind == 6], [0.0, random * 10, random * 1e9], random)
    found = np.where(kind < 4, np.array(own), other)
    return np.where(np.isfinite(found), found, 0.0)


def argmin(name: str, sign: int, k: float, lo: float, hi: float, rounds: int = 4) -> float:
    """Near where sign·f − k x is least, among floats: a grid, then finer ones."""
    x = np.unique(np.clip([lo, hi, *special(name), *np.linspace(lo, hi, 30)], lo, hi))
    with ctx.workprec(100):
        for _ in range(rounds):
            found = [float(sign * value(name, arb(float(v))) - arb(k) * arb(float(v))) for v in x]
            i = int(np.argmin(found))
            best, x = float(x[i]), np.clip(np.linspace(x[max(i - 1, 0)], x[min(i + 1, len(x) - 1)], 12), lo, hi)
    return best


def places(name: str, rng: np.random.Generator, lo: float, hi: float, more: list[float]) -> set[float]:
    """Where to compare: the ends, what is special, random floats, and floats next to each other."""
    random = lo + (hi - lo) * rng.random(12)
    near = [math.nextafter(x, to) for x in (lo, hi) for to in (-math.inf, math.inf)]
    return {float(x) for x in (lo, hi, *special(name), *random, *near, *more) if lo <= x <= hi}


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


# Functions that are not continuous


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
        assert (np.asarray(found) >= curves.floor("Softplus", sign, k, touch, lo, hi) - 2.1e-9 - 1e-15 * np.abs(found)).all()
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
    return [n for n in np.arange(math.floor(x) - 2.0, math.ceil(x) + 3.0) if abs(fmpq_of(n) - fmpq_of(x)) <= fmpq_of(half)]


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
        assert curves.floor("Round", 1, np.array([k]), np.zeros((0, 1)), np.array([-1.0]), np.array([2.0]))[0] == -math.inf
    assert curves.floor("Round", 1, np.zeros(1), np.zeros((0, 1)), np.array([-np.inf]), np.array([2.0]))[0] == -math.inf
