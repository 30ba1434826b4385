"""The two lines of every function of one number, against high precision and dense grids, over any interval.

Tolerance: 1e-12 of |f(x)| + |slope·x| + |intercept|, and ABSOLUTE·(1 + |x|) where the function itself cancels (GELU).
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import mpmath
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from vertex_softmax.bounds.boxes import by_intervals
from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops import OPS
from vertex_softmax.ops import elementwise as e
from vertex_softmax.ops.activations import Elu, HardSwish, Mish, Softplus
from vertex_softmax.ops.contract import Context
from vertex_softmax.ops.elementwise import Curved, Elementwise, Gelu
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.line_relaxations import CurvedRelaxation
from vertex_softmax.ops.lines import Fan, Lines, below, chord_slope
from vertex_softmax.ops.rounding import Round
from vertex_softmax.ops.rules import ReluSlope, Rules

mp = mpmath.mp.clone()
mp.dps = 40


def _gelu_tanh(x: mpmath.mpf) -> mpmath.mpf:
    return x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)))


def _softplus(x: mpmath.mpf) -> mpmath.mpf:
    return max(x, mp.mpf(0)) + mp.log1p(mp.exp(-abs(x)))


def _between(x: mpmath.mpf) -> mpmath.mpf:
    """x cut to [0, 1]."""
    return max(min(x, mp.mpf(1)), mp.mpf(0))


FUNCTIONS = {
    "Relu": (e.Relu(), lambda x: max(x, mp.mpf(0)), "real"),
    "Gelu": (e.Gelu(), lambda x: x * mp.erfc(max(min(-x / mp.sqrt(2), 1e4), -1e4)) / 2, "real"),
    "Gelu tanh": (e.Gelu(tanh=True), _gelu_tanh, "real"),
    "Silu": (e.Silu(), lambda x: x / (1 + mp.exp(-x)), "real"),
    "Tanh": (e.Tanh(), mp.tanh, "real"),
    "Sigmoid": (e.Sigmoid(), lambda x: 1 / (1 + mp.exp(-x)), "real"),
    "Erf": (e.Erf(), mp.erf, "real"),
    "Exp": (e.Exp(), mp.exp, "small"),
    "Square": (e.Square(), lambda x: x * x, "real"),
    "Log": (e.Log(), mp.log, "positive"),
    "Sqrt": (e.Sqrt(), mp.sqrt, "positive"),
    "Rsqrt": (e.Rsqrt(), lambda x: 1 / mp.sqrt(x), "positive"),
    "Reciprocal": (e.Reciprocal(), lambda x: 1 / x, "nonzero"),
    "Elu": (Elu(), lambda x: max(x, mp.mpf(0)) + mp.expm1(min(x, mp.mpf(0))), "real"),
    "Softplus": (Softplus(), _softplus, "real"),
    "Softplus with a threshold": (Softplus(2.0), lambda x: x if x > 2 else _softplus(x), "real"),
    "Mish": (Mish(), lambda x: x * mp.tanh(_softplus(x)), "real"),
    "HardSwish": (HardSwish(), lambda x: x * _between(x / 6 + mp.mpf(1) / 2), "real"),
    "HardSwish single": (
        HardSwish(single=True),
        lambda x: x * _between(x * mp.mpf(float(torch.tensor(1 / 6))) + mp.mpf(1) / 2),
        "real",
    ),
    "Round": (Round(), mp.nint, "real"),
    "Round in a range": (Round(-3.0, 200.0), lambda x: mp.nint(max(min(x, mp.mpf(200)), mp.mpf(-3))), "real"),
}
ABSOLUTE = {"Gelu": 1e-15, "Gelu tanh": 1e-15}
ABSOLUTE |= dict.fromkeys(("Elu", "Mish", "HardSwish", "HardSwish single", "Softplus with a threshold"), 1e-15)
each = pytest.mark.parametrize("name", FUNCTIONS)


def test_every_function_of_one_number_is_here() -> None:
    known = {type(op).__name__ for op, _, _ in FUNCTIONS.values()}
    assert known == {name for name, op in OPS.items() if issubclass(op, Elementwise)}


@st.composite
def intervals(draw: st.DrawFn) -> tuple[float, float]:
    """Ends from ±1e-12 to ±1e3, widths from 0 to 2e3; ends at 0 and symmetric ones too."""
    end = st.one_of(
        st.floats(-10, 10),
        st.floats(-1e3, 1e3),
        st.sampled_from([0.0, -1.0, 1.0, 1e3, -1e3, 1e-12, -1e-12, 1.4142135623730951]),
    )
    a = draw(end)
    b = draw(st.one_of(end, st.floats(0, 1e-6).map(lambda w: a + w), st.just(a), st.just(-a)))
    return min(a, b), max(a, b)


def inside(domain: str, low: float, high: float) -> tuple[float, float]:
    """The interval taken into a function's domain."""
    if domain == "real":
        return low, high
    if domain == "small":
        return min(max(low, -700.0) if high > -700 else low, 700.0), min(high, 700.0)
    low, high = (math.exp(min(max(end, -690.0), 690.0) / 3) for end in (low, high))
    return (-high, -low) if domain == "nonzero" and high > 3 else (low, high)


def grid(low: float, high: float, count: int = 200) -> Tensor:
    t = torch.linspace(0, 1, count, dtype=torch.float64)
    near = 10.0 ** torch.linspace(-16, 0, 40, dtype=torch.float64)
    x = torch.cat([low + t * (high - low), low + near * (high - low), high - near * (high - low), near, -near])
    return x.clamp(low, high)


def number(x: float) -> Tensor:
    return torch.tensor([x], dtype=torch.float64)


def parts(lines: Lines) -> list[Tensor]:
    """Lower slope and intercept, upper slope and intercept."""
    return [getattr(lines, field.name) for field in dataclasses.fields(lines)]


def relaxed(op: Curved, box: Interval, rules: Rules) -> CurvedRelaxation:
    found = op.relax(Context(boxes=(box,), rules=rules))
    assert isinstance(found, CurvedRelaxation)
    return found


def lines_of(op: Elementwise, low: float, high: float, rules: Rules) -> Lines:
    return op.lines(Interval(number(low), number(high)), rules)


def violation(name: str, low: float, high: float, rules: Rules = Rules()) -> float:  # noqa: B008
    """By how many tolerances the worst point lies outside the lines or the interval; at most 1 is fine."""
    op, function, domain = FUNCTIONS[name]
    low, high = inside(domain, low, high)
    found = lines_of(op, low, high, rules)
    assert all(bool(x.isfinite().all()) for x in parts(found)), (name, low, high, found)
    ends = op.interval(Interval(number(low), number(high)))
    x = grid(low, high)
    f = op.evaluate(x)
    gaps = [f - (found.lower_slope * x + found.lower_intercept), found.upper_slope * x + found.upper_intercept - f]
    worst = 0.0
    for gap, slope, intercept in zip(gaps, parts(found)[::2], parts(found)[1::2], strict=True):
        tolerance = 1e-12 * (f.abs() + (slope * x).abs() + intercept.abs()) + ABSOLUTE.get(name, 1e-300) * (1 + x.abs())
        for i in {int(gap.argmin()), int((gap / tolerance).argmin()), 0, 199}:
            sign = 1 if gap is gaps[0] else -1
            at = mp.mpf(float(x[i]))
            true = sign * (function(at) - mp.mpf(float(slope)) * at - mp.mpf(float(intercept)))
            worst = max(worst, float(-true) / float(tolerance[i]))
            over = max(float(ends.lower) - float(f[i]), float(f[i]) - float(ends.upper))
            worst = max(worst, over / float(tolerance[i]))
    return worst


@each
@settings(max_examples=15)
@given(ends=intervals())
@example(ends=(-1e3, 1e3))
@example(ends=(-1e3, -1e3))
@example(ends=(0.0, 1e-12))
@example(ends=(-1.5, 1.5))
@example(ends=(-8.0, -0.1))
@example(ends=(-2.0, 1e3))
def test_lines_hold(name: str, ends: tuple[float, float]) -> None:
    for relu in ReluSlope if name == "Relu" else (ReluSlope.ADAPTIVE,):
        assert violation(name, *ends, Rules(relu=relu)) <= 1


@pytest.mark.slow
@each
@settings(max_examples=1500)
@given(ends=intervals())
def test_lines_hold_over_many_intervals(name: str, ends: tuple[float, float]) -> None:
    assert violation(name, *ends) <= 1


@each
def test_lines_are_tight(name: str) -> None:
    """At a point they meet the function; over a short interval they are off by its square. (A tie may go both ways.)"""
    op, _, domain = FUNCTIONS[name]
    for at in (-2.0, -0.4 if isinstance(op, Round) else -0.5, 0.3, 1.7):
        x = math.exp(at) if domain in {"positive", "nonzero"} else at
        for width in (0.0, 1e-3):
            found = lines_of(op, x, x + width, Rules())
            middle = x + width / 2
            apart = (found.upper_slope - found.lower_slope) * middle + found.upper_intercept - found.lower_intercept
            assert -1e-12 <= float(apart) <= 1e-12 + 1e3 * width**2, name


@pytest.mark.parametrize("name", [name for name, (op, _, _) in FUNCTIONS.items() if isinstance(op, Curved)])
def test_convex_where_said(name: str) -> None:
    """f' rises on the convex pieces and falls on the concave ones, in high precision; and `derivative` is f'.

    The kinks of hardswish are at the ends of its pieces, where f' is that of the middle (`activations.py`).
    """
    op, function, _ = FUNCTIONS[name]
    c = 1.4185040087908283555 if name == "Gelu tanh" else math.sqrt(2)
    convex, concave = (((-c, c),), ((-math.inf, -c), (c, math.inf))) if isinstance(op, Gelu) else op.curvature()
    for pieces, sign in ((convex, 1), (concave, -1)):
        for start, stop in pieces:
            left, right = max(start, -12.0), min(stop, 12.0)
            if isinstance(op, HardSwish):
                left, right = left + 1e-9, right - 1e-9
            xs = [mp.mpf(left) + (mp.mpf(right) - left) * k / 60 for k in range(61)]
            slopes = [mp.diff(function, x) for x in xs]
            steps = [(v - u) * sign for u, v in itertools.pairwise(slopes)]
            assert min(steps) >= -(mp.mpf(10) ** -15), name
            found = op.derivative(torch.tensor([float(x) for x in xs], dtype=torch.float64))
            for x, want, got in zip(xs, slopes, found.tolist(), strict=True):
                assert abs(float(want) - got) <= 1e-13 * (1 + abs(float(x))), (name, float(x))


@pytest.mark.parametrize(("name", "low", "high"), [
    ("Reciprocal", -1.0, 1.0), ("Reciprocal", 0.0, 1.0), ("Reciprocal", -1.0, 0.0), ("Reciprocal", 0.0, 0.0),
    ("Sqrt", -1.0, 3.0), ("Sqrt", -2.0, -1.0), ("Sqrt", -1e-300, 1.0), ("Sqrt", -1.0, 0.0),
    ("Log", 0.0, 1.0), ("Log", -1.0, 1.0), ("Log", -2.0, -1.0), ("Rsqrt", 0.0, 1.0), ("Rsqrt", -1.0, 2.0),
    ("Rsqrt", -2.0, -1.0),
])  # fmt: skip
def test_no_bound_outside_the_domain(name: str, low: float, high: float) -> None:
    op = FUNCTIONS[name][0]
    found = lines_of(op, low, high, Rules())
    assert all(bool(x.isnan().all()) for x in parts(found)), found
    ends = op.interval(Interval(number(low), number(high)))
    assert not any(bool(end.isfinite().all()) for end in ends) or any(bool(end.isnan().any()) for end in ends)


@pytest.mark.parametrize(("name", "low", "high"), [
    ("Reciprocal", 1e-300, 1.0), ("Reciprocal", 1e-300, 1e-299), ("Reciprocal", 1e200, 3e200),
    ("Rsqrt", 1e-300, 1e-290),
    ("Rsqrt", 1e-310, 1e300), ("Log", 1e-310, 1e300), ("Log", 5e-324, 1e-323), ("Sqrt", 0.0, 1e300),
    ("Sqrt", 5e-324, 1e-320), ("Exp", 708.0, 709.0), ("Exp", -800.0, 705.0), ("Exp", 700.0, 1e3),
    ("Exp", -760.0, -740.0),
    ("Square", -1e200, 1e200), ("Square", 1e150, 1e154), ("Relu", -1e-320, 1e300), ("Silu", -800.0, 800.0),
    ("Sigmoid", -800.0, 800.0), ("Gelu", -1e300, 1e300), ("Tanh", -1e300, 1e-300), ("Gelu tanh", -1e150, 1e150),
])  # fmt: skip
def test_where_floats_end(name: str, low: float, high: float) -> None:
    """Lines that overflow are NaN or bound nothing; those that are finite hold."""
    op, function, _ = FUNCTIONS[name]
    found = lines_of(op, low, high, Rules())
    for x in grid(low, high)[::7].tolist():
        true = function(mp.mpf(x))
        for sign, slope, intercept in ((1, *parts(found)[:2]), (-1, *parts(found)[2:])):
            line = float(slope) * x + float(intercept)
            size = abs(float(slope) * x) + abs(float(intercept)) + float(abs(true) if abs(true) < 1e308 else 1e308)
            vacuous = math.isnan(line) or line == -sign * math.inf
            tolerance = 1e-12 * size + ABSOLUTE.get(name, 0.0) * (1 + abs(x)) + 1e-300
            assert vacuous or sign * (true - mp.mpf(line)) >= -tolerance, (name, x, sign, line)


@settings(max_examples=30)
@given(ends=intervals(), slope=st.floats(-3, 3))
def test_any_slope_is_sound(ends: tuple[float, float], slope: float) -> None:
    """`below` gives the intercept of a line under f for whatever slope."""
    low, high = (torch.tensor([end], dtype=torch.float64) for end in ends)
    for op, (a, b) in ((e.Silu(), e.Silu.convex[0]), (e.Tanh(), e.Tanh.convex[0])):
        left, right = low.clamp(min=a), high.clamp(max=b)
        away = left > right
        piece = (torch.where(away, low, left), torch.where(away, low, right))
        found = below(op.evaluate, op.derivative, [piece], number(slope), low, high)
        x = grid(*ends)
        gap = op.evaluate(x) - slope * x - found
        assert (gap >= -1e-12 * (1 + x.abs() * (1 + abs(slope)))).all()


def test_chord_of_a_point_is_the_tangent() -> None:
    x = torch.tensor([0.3, -1.0], dtype=torch.float64)
    assert torch.equal(chord_slope(torch.exp, torch.exp, x, x), x.exp())


CURVED = [name for name, (op, _, _) in FUNCTIONS.items() if isinstance(op, Curved)]
TURNS = [(-1.0, -1.0), (1.0, 1.0), (-1.0, 1.0), (0.0, 0.0), (-0.37, 0.81), (0.5, -0.02), (1e-9, -1e-9)]


def check_free_lines(name: str, low: float, high: float, turns: list[tuple[float, float]]) -> None:
    """Lines between those of the middle and of the two ends, on a grid."""
    op = FUNCTIONS[name][0]
    relaxation = relaxed(op, Interval(number(low), number(high)), Rules(free=True))
    fan = relaxation.fan
    assert isinstance(fan, Fan)
    x = grid(low, high)
    f = op.evaluate(x)
    mixing = 1e-15 * sum(float(part.abs()) for lines in fan for part in parts(lines)[1::2])  # rounding of those mixed
    for down, up in turns:
        found = relaxation.with_parameters({"below": number(down)[None], "above": number(up)[None]})
        low_slope, low_at, high_slope, high_at = (float(part) for part in parts(found.lines))
        for gap, slope, at in (
            (f - low_slope * x - low_at, low_slope, low_at),
            (high_slope * x + high_at - f, high_slope, high_at),
        ):
            tolerance = 1e-12 * (f.abs() + (slope * x).abs() + abs(at)) + ABSOLUTE.get(name, 1e-300) * (1 + x.abs())
            over = -gap - tolerance - mixing
            assert (over <= 0).all(), f"{name} over [{low}, {high}] at {down, up}: off by {float(over.max()):.3g}"


@pytest.mark.parametrize("name", CURVED)
@settings(max_examples=12)
@given(ends=intervals(), turn=st.tuples(st.floats(-1, 1), st.floats(-1, 1)))
@example(ends=(-1e3, 1e3), turn=(-1.0, 1.0))
@example(ends=(-3.0, 3.0), turn=(0.3, -0.3))
@example(ends=(0.0, 0.0), turn=(0.3, -0.3))
@example(ends=(-1.5, 1e-12), turn=(1.0, -1.0))
def test_lines_between_those_of_the_ends_hold(name: str, ends: tuple[float, float], turn: tuple[float, float]) -> None:
    check_free_lines(name, *ends, [*TURNS, turn])


@pytest.mark.parametrize("name", CURVED)
def test_the_middle_of_a_fan_is_the_default(name: str) -> None:
    op = FUNCTIONS[name][0]
    box = Interval(number(-1.3), number(2.1))
    free, plain = relaxed(op, box, Rules(free=True)), relaxed(op, box, Rules())
    start = free.parameters()
    assert set(start) == {"below", "above"} == set(free.ranges)
    assert plain.parameters() == {}
    for a, b in zip(parts(free.with_parameters(start).lines), parts(plain.lines), strict=True):
        assert torch.equal(a, b)
    fan = free.fan
    assert fan is not None
    for turn, ends in ((-1.0, fan.left), (1.0, fan.right)):
        at = torch.full_like(fan.middle.lower_slope, turn)
        for a, b in zip(parts(fan.mixed(at, at)), parts(ends), strict=True):
            assert torch.allclose(a, b, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("dtype", OUTWARD)
@pytest.mark.parametrize("name", ["Gelu", "Gelu tanh", "HardSwish", "HardSwish single"])
def test_intervals_hold_values_that_are_tiny_because_much_cancels(name: str, dtype: torch.dtype) -> None:
    """Weights behind them may make much of these, so the boxes hold them to rounding relative to themselves."""
    op, exact, _ = FUNCTIONS[name]
    near = -3 - torch.logspace(-7, -1, 60) if "HardSwish" in name else torch.linspace(-9, -2, 300)
    x = torch.cat([near, -6 - near]).to(dtype) if "HardSwish" in name else near.to(dtype)
    source = build.source(tuple(x.shape))
    node = Node("y", op, (source,), tuple(x.shape))
    low, high = (end[0].tolist() for end in by_intervals(node, {source: Interval(x[None], x[None])}))
    for at, lower, upper in zip(x.tolist(), low, high, strict=True):
        assert lower <= exact(mp.mpf(at)) <= upper, at


def test_a_step_between_two_floats_is_where_it_is_given() -> None:
    """The float32 next to 0.1 lies above it: there softplus with the threshold 0.1 is x itself."""
    x = torch.tensor([0.1], dtype=torch.float32)
    op = Softplus(threshold=0.1)
    box = op.interval(Interval(x, x))
    lines = op.lines(Interval(x, x), Rules())
    for low in (box.lower, lines.lower_slope * x + lines.lower_intercept):
        assert float(low) <= float(x) + 1e-6
    assert float(op.evaluate(x)) == float(x)
