"""Functions of one number: below f(x) − k x over an interval, for any slope k; values and derivatives by Arb.

On an interval where f is concave, f(x) − k x is least at an end. Where it is convex, f lies above its tangent at any
point t, f(x) − k x ≥ f(t) − k t + (f'(t) − k)(x − t), which is least at an end. So a line needs a slope and a point to
touch near, and every choice of both is sound. Where f changes its curvature at a number that is no float the intervals
end at floats inside; what lies between (less than 2⁻⁵¹) is paid for by |f'| ≤ 2 there.

Curvature. gelu'' = φ(x)(2 − x²). silu'' has the sign of 2 − x tanh(x/2), and x tanh(x/2) grows with |x|. For the tanh
form of gelu, with g = k (x + c x³) and y = c x², f'' has the sign of 1 + 6 y − k x tanh(g) (1 + 3 y)², that is of
1 − k x tanh(g) (1 + 9 y²/(1 + 6 y)), which falls as |x| grows. Each changes its sign once on either side of 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from flint import arb

from .file import Rejected
from .rounding import Array, Interval, down, enclose

INFINITY = math.inf
Pieces = tuple[tuple[float, float], ...]
REAL: Pieces = ((-INFINITY, INFINITY),)


class Curve(NamedTuple):
    """f and f' on balls, where f is convex and where concave, and where it is least (an infinity: at that end)."""

    f: Callable[[arb], arb]
    slope: Callable[[arb], arb]
    convex: Pieces
    concave: Pieces
    least: float
    domain: tuple[float, float] = (-INFINITY, INFINITY)


def _normal(x: arb) -> arb:
    return (1 + (x / arb(2).sqrt()).erf()) / 2


def _gelu_slope(x: arb) -> arb:
    return _normal(x) + x * (-x * x / 2).exp() / (2 * arb.pi()).sqrt()


def _sigmoid(x: arb) -> arb:
    return 1 / (1 + (-x).exp())


def _silu_slope(x: arb) -> arb:
    return _sigmoid(x) * (1 + x * _sigmoid(-x))


def _bump(inflection: float, f: Callable[[arb], arb], slope: Callable[[arb], arb], least: float) -> Curve:
    """Convex between two inflections (the float given is the one below), concave outside."""
    beyond = math.nextafter(inflection, INFINITY)
    return Curve(f, slope, ((-inflection, inflection),), ((-INFINITY, -beyond), (beyond, INFINITY)), least)


def _tanh_gelu(constants: Callable[[], tuple[arb, arb]], inflection: float, least: float) -> Curve:
    def f(x: arb) -> arb:
        k, c = constants()
        return x * (1 + (k * (x + c * x * x * x)).tanh()) / 2

    def slope(x: arb) -> arb:
        k, c = constants()
        t = (k * (x + c * x * x * x)).tanh()
        return (1 + t) / 2 + x * (1 - t * t) * k * (1 + 3 * c * x * x) / 2

    return _bump(inflection, f, slope, least)


BELOW, ABOVE = ((-INFINITY, 0.0),), ((0.0, INFINITY),)
CURVES: dict[str, Curve] = {
    "Gelu": _bump(1.414213562373095, lambda x: x * _normal(x), _gelu_slope, -0.7517915246935645),
    "GeluTanh": _tanh_gelu(
        lambda: ((2 / arb.pi()).sqrt(), arb(44715) / 1000000), 1.4185040087908283, -0.7524614220710163
    ),
    "GeluTanhDouble": _tanh_gelu(
        lambda: (arb(0.7978845608028654), arb(0.044715)), 1.4185040087908283, -0.7524614220710162
    ),
    "GeluTanhSingle": _tanh_gelu(
        lambda: (arb(0.7978845834732056), arb(0.044714998453855515)), 1.4185039771280708, -0.7524614044087226
    ),
    "Silu": _bump(2.3993572805154676, lambda x: x * _sigmoid(x), _silu_slope, -1.2784645427610738),
    "Tanh": Curve(arb.tanh, lambda x: 1 / x.cosh() ** 2, BELOW, ABOVE, -INFINITY),
    "Sigmoid": Curve(_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x), BELOW, ABOVE, -INFINITY),
    "Erf": Curve(arb.erf, lambda x: 2 / arb.pi().sqrt() * (-x * x).exp(), BELOW, ABOVE, -INFINITY),
    "Exp": Curve(arb.exp, arb.exp, REAL, (), -INFINITY),
    "Square": Curve(lambda x: x * x, lambda x: 2 * x, REAL, (), 0.0),
    "Log": Curve(arb.log, lambda x: 1 / x, (), REAL, -INFINITY, (TINIEST := 5e-324, INFINITY)),
    "Sqrt": Curve(arb.sqrt, lambda x: 1 / (2 * x.sqrt()), (), REAL, -INFINITY, (0.0, INFINITY)),
    "Rsqrt": Curve(arb.rsqrt, lambda x: -x.rsqrt() / (2 * x), REAL, (), INFINITY, (TINIEST, INFINITY)),
    "Reciprocal": Curve(lambda x: 1 / x, lambda x: -1 / (x * x), ABOVE, BELOW, INFINITY),
}


def floor(name: str, sign: int, k: Array, touch: Sequence[Array] | Array, lo: Array, hi: Array) -> Array:
    """At most sign·f(x) − k x for every x in [lo, hi]; arrays broadcast."""
    curve = CURVES[name]
    inside = (lo >= curve.domain[0]) & (hi <= curve.domain[1]) & (lo <= hi)
    if name == "Reciprocal":
        inside &= (lo > 0) | (hi < 0)
    if not inside.all():
        raise Rejected(f"{name} is not defined on the whole of a box that it is asked for")

    def at(x: Array) -> Interval:
        value = enclose(curve.f, x)
        return (value if sign > 0 else -value) - Interval(k) * x

    least = np.minimum(at(lo).lo, at(hi).lo)
    for start, stop in curve.convex if sign > 0 else curve.concave:
        left, right = np.maximum(lo, start), np.minimum(hi, stop)
        there = left < right
        if there.any():
            left, right = np.where(there, left, lo), np.where(there, right, lo)
            best = np.full(np.broadcast_shapes(k.shape, left.shape), -np.inf)
            for point in touch:
                best = np.maximum(best, _tangent(curve, sign, k, np.clip(point, left, right), left, right, at))
            least = np.where(there, np.minimum(least, best), least)
    if len(curve.concave) > 1:  # it changes its curvature at a number that is no float
        least = down(least - 2.0**-50 * (2 + np.abs(k)))
    return np.asarray(np.where(np.isfinite(least), least, -np.inf))


def _tangent(
    curve: Curve, sign: int, k: Array, t: Array, left: Array, right: Array, at: Callable[[Array], Interval]
) -> Array:
    """At most sign·f(x) − k x on [left, right], where sign·f is convex, by its tangent at t."""
    slope = enclose(curve.slope, t)
    slope = (slope if sign > 0 else -slope) - k
    ends = [(slope * (Interval(end) - t)).lo for end in (left, right)]
    return np.asarray((at(t) + np.minimum(*ends)).lo)


def image(name: str, lo: Array, hi: Array) -> Interval:
    """The range of f over [lo, hi], or a little more."""
    zero, least = np.zeros_like(lo), CURVES[name].least
    points = [np.full_like(lo, end) for end in (-INFINITY, INFINITY)]
    bottom = [*points, np.full_like(lo, least)] if math.isfinite(least) else points
    return Interval(floor(name, 1, zero, bottom, lo, hi), -floor(name, -1, zero, points, lo, hi))
