"""Functions f of one number: lower bounds of f(x) − k x over an interval, for any slope k; f and f' are taken from Arb.

On an interval where f is concave, f(x) − k x is least at an end. Where it is convex, f lies above its tangent at any
point t, f(x) − k x ≥ f(t) − k t + (f'(t) − k)(x − t), which is least at an end. So a line needs a slope and a point of
tangency, and every choice of both is sound. Where an inflection of f is not a float, the intervals end at the floats
next to it; the gap between them (less than 2⁻⁵¹) is covered by |f'| ≤ 2 there.

Curvature. gelu'' = φ(x)(2 − x²). silu'' has the sign of 2 − x tanh(x/2), and x tanh(x/2) grows with |x|. For the tanh
form of gelu, with g = k (x + c x³) and y = c x², f'' has the sign of 1 + 6 y − k x tanh(g) (1 + 3 y)², that is of
1 − k x tanh(g) (1 + 9 y²/(1 + 6 y)), which falls as |x| grows. Each changes its sign once on either side of 0.
softplus'' = σ(x) σ(−x). mish'', with u = 1 + eˣ and q = 1 + u², has the sign of 2 u q + x ((eˣ + u) q − 4 u² eˣ). It is
nearly 4 + 2 x far to the left and, over e³ˣ, nearly 2 − 2 x far to the right; between, its two roots are isolated by
interval arithmetic (tests/certificate/checker/test_curves.py).
ELU is convex: its derivative, eˣ below 0 and 1 above, grows. Hardswish is x (x + 3)/6 on [−3, 3], 0 to the left and x
to the right: convex in the middle, and straight outside. A kink is treated as an inflection: the pieces end at the
floats next to it, and each has its own slope there.

Two functions are no curves, and have floors of their own. "SoftplusTorch" is log(1 + eˣ), and x itself above 20, which
is less by log(1 + e⁻ˣ) at most. "Round" stands for every whole number within ½ + SLACK max(1, |x|) of x, so that it
does not matter which way a tie, or a number next to one, is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from flint import arb

from .file import Rejected
from .rounding import Array, ProvedInterval, down, enclose, up

INFINITY = math.inf
SLACK = 2.0**-20
"""The share of a number by which it may lie beyond a tie and be rounded across it: 16 roundings of float32."""
THRESHOLD = 20.0
"""Above it "SoftplusTorch" is x."""
Pieces = tuple[tuple[float, float], ...]
REAL: Pieces = ((-INFINITY, INFINITY),)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A function of one number, with its derivative and its curvature."""

    f: Callable[[arb], arb]
    """the function, on Arb's balls"""
    slope: Callable[[arb], arb]
    """its derivative, on Arb's balls"""
    convex: Pieces
    """the intervals on which f is convex"""
    concave: Pieces
    """the intervals on which f is concave"""
    least: float
    """a float near the minimum of f; ±inf if f falls towards that end"""
    domain: tuple[float, float] = (-INFINITY, INFINITY)
    """the interval on which f is defined"""


def _normal(x: arb) -> arb:
    return (1 + (x / arb(2).sqrt()).erf()) / 2


def _gelu_slope(x: arb) -> arb:
    return _normal(x) + x * (-x * x / 2).exp() / (2 * arb.pi()).sqrt()


def _sigmoid(x: arb) -> arb:
    return 1 / (1 + (-x).exp())


def _silu_slope(x: arb) -> arb:
    return _sigmoid(x) * (1 + x * _sigmoid(-x))


def _softplus(x: arb) -> arb:
    """log(1 + eˣ), by the exponential that is small."""
    return x + (-x).exp().log1p() if x > 0 else x.exp().log1p()


def _mish(x: arb) -> arb:
    """x tanh(log(1 + eˣ)) = x p / (p + r) with p = eˣ (eˣ + 2) and r = 2; both over e²ˣ above 0."""
    e = (-x).exp() if x > 0 else x.exp()
    p, r = (1 + 2 * e, 2 * e * e) if x > 0 else (e * (e + 2), arb(2))
    return x * p / (p + r)


def _mish_slope(x: arb) -> arb:
    """g + x g' with g = tanh(log(1 + eˣ)) and g' = 4 u eˣ / q², u = 1 + eˣ, q = 1 + u²."""
    e = (-x).exp() if x > 0 else x.exp()
    u = 1 + e
    if x > 0:  # u and q times e⁻ˣ and e⁻²ˣ
        q = e * e + u * u
        return (1 + 2 * e) / (1 + 2 * e + 2 * e * e) + x * 4 * u * e * e / (q * q)
    q = 1 + u * u
    return e * (e + 2) / q + x * 4 * u * e / (q * q)


def _elu(x: arb) -> arb:
    return x if x > 0 else x.expm1()


def _elu_slope(x: arb) -> arb:
    return arb(1) if x > 0 else x.exp()


def _hardswish(steepness: Callable[[], arb], end: float) -> Curve:
    """x min(max(k x + ½, 0), 1); `end` is the largest float that is not above 1/(2k), where the middle ends."""

    def f(x: arb) -> arb:
        if abs(x) > end:
            return x if x > 0 else arb(0)
        return x * (steepness() * x + arb(1) / 2)

    def slope(x: arb) -> arb:
        if abs(x) > end:
            return arb(1) if x > 0 else arb(0)
        return 2 * steepness() * x + arb(1) / 2

    beyond = math.nextafter(end, INFINITY)
    outside = ((-INFINITY, -beyond), (beyond, INFINITY))
    return Curve(f=f, slope=slope, convex=((-end, end),), concave=outside, least=-end / 2)


def _bump(inflection: float, f: Callable[[arb], arb], slope: Callable[[arb], arb], least: float) -> Curve:
    """A curve that is convex between −i and i and concave outside; `inflection` is the largest float below i."""
    beyond = math.nextafter(inflection, INFINITY)
    return Curve(
        f=f,
        slope=slope,
        convex=((-inflection, inflection),),
        concave=((-INFINITY, -beyond), (beyond, INFINITY)),
        least=least,
    )


def _rising(f: Callable[[arb], arb], slope: Callable[[arb], arb]) -> Curve:
    """An increasing curve that is convex below 0 and concave above 0."""
    return Curve(f=f, slope=slope, convex=BELOW, concave=ABOVE, least=-INFINITY)


def _tanh_gelu(constants: Callable[[], tuple[arb, arb]], inflection: float, least: float) -> Curve:
    """The tanh form of GELU, x (1 + tanh(k (x + c x³))) / 2, with the constants k and c."""

    def f(x: arb) -> arb:
        k, c = constants()
        return x * (1 + (k * (x + c * x * x * x)).tanh()) / 2

    def slope(x: arb) -> arb:
        k, c = constants()
        t = (k * (x + c * x * x * x)).tanh()
        return (1 + t) / 2 + x * (1 - t * t) * k * (1 + 3 * c * x * x) / 2

    return _bump(inflection, f, slope, least)


BELOW, ABOVE = ((-INFINITY, 0.0),), ((0.0, INFINITY),)
TINIEST = 5e-324
"""The smallest float above 0."""
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
    "Softplus": Curve(f=_softplus, slope=_sigmoid, convex=REAL, concave=(), least=-INFINITY),
    "Mish": Curve(
        f=_mish,
        slope=_mish_slope,
        convex=((-2.256376396360793, 1.4905711794854284),),
        concave=((-INFINITY, -2.2563763963607935), (1.4905711794854286, INFINITY)),
        least=-1.1924312145154952,
    ),
    "Elu": Curve(f=_elu, slope=_elu_slope, convex=REAL, concave=(), least=-INFINITY),
    "HardSwish": _hardswish(lambda: arb(1) / 6, 3.0),
    "HardSwishSingle": _hardswish(lambda: arb(11184811) / 2**26, 2.999999910593035),
    "Tanh": _rising(arb.tanh, lambda x: 1 / x.cosh() ** 2),
    "Sigmoid": _rising(_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
    "Erf": _rising(arb.erf, lambda x: 2 / arb.pi().sqrt() * (-x * x).exp()),
    "Exp": Curve(f=arb.exp, slope=arb.exp, convex=REAL, concave=(), least=-INFINITY),
    "Square": Curve(f=lambda x: x * x, slope=lambda x: 2 * x, convex=REAL, concave=(), least=0.0),
    "Log": Curve(
        f=arb.log,
        slope=lambda x: 1 / x,
        convex=(),
        concave=REAL,
        least=-INFINITY,
        domain=(TINIEST, INFINITY),
    ),
    "Sqrt": Curve(
        f=arb.sqrt,
        slope=lambda x: 1 / (2 * x.sqrt()),
        convex=(),
        concave=REAL,
        least=-INFINITY,
        domain=(0.0, INFINITY),
    ),
    "Rsqrt": Curve(
        f=arb.rsqrt,
        slope=lambda x: -x.rsqrt() / (2 * x),
        convex=REAL,
        concave=(),
        least=INFINITY,
        domain=(TINIEST, INFINITY),
    ),
    "Reciprocal": Curve(f=lambda x: 1 / x, slope=lambda x: -1 / (x * x), convex=ABOVE, concave=BELOW, least=INFINITY),
}
"""The curves by the names of their ops; the constants of "GeluTanhDouble" and "GeluTanhSingle" are rounded numbers."""
NO_CURVES = ("Round", "SoftplusTorch")
"""Functions of one number that are not continuous."""
FUNCTIONS = (*CURVES, *NO_CURVES)
"""The names of all functions of one number that `floor` and `image` know."""


def floor(name: str, sign: int, k: Array, touch: Sequence[Array] | Array, lo: Array, hi: Array) -> Array:
    """A lower bound of sign·f(x) − k x over all x in [lo, hi], sign = ±1; arrays broadcast.

    `touch` lists points of tangency to try where sign·f is convex; every choice is sound.
    """
    if name == "Round":
        return _rounded(sign, k, lo, hi)
    if name == "SoftplusTorch":  # between log(1 + eˣ) and that less its step
        least = floor("Softplus", sign, k, touch, lo, hi)
        step = enclose(lambda x: (-x).exp().log1p(), np.array(THRESHOLD)).hi
        return np.asarray(np.where((hi > THRESHOLD) & (sign > 0), down(least - step), least))
    curve = CURVES[name]
    inside = (lo >= curve.domain[0]) & (hi <= curve.domain[1]) & (lo <= hi)
    if name == "Reciprocal":
        inside &= (lo > 0) | (hi < 0)
    if not inside.all():
        raise Rejected(f"{name} is not defined on all of an interval over which a bound is needed")

    def value_at(x: Array) -> ProvedInterval:
        value = enclose(curve.f, x)
        return (value if sign > 0 else -value) - ProvedInterval(k) * x

    least = np.minimum(value_at(lo).lo, value_at(hi).lo)
    for start, stop in curve.convex if sign > 0 else curve.concave:
        left, right = np.maximum(lo, start), np.minimum(hi, stop)
        overlaps = left < right
        if overlaps.any():
            left, right = np.where(overlaps, left, lo), np.where(overlaps, right, lo)
            best = np.full(np.broadcast_shapes(k.shape, left.shape), -np.inf)
            for point in touch:
                t = np.clip(point, left, right)
                slope = enclose(curve.slope, t)
                slope = (slope if sign > 0 else -slope) - k
                best = np.maximum(best, _above_tangent(value_at(t), slope, t, left, right))
            least = np.where(overlaps, np.minimum(least, best), least)
    if len(curve.concave) > 1:  # its inflections are not floats
        least = down(least - 2.0**-50 * (2 + np.abs(k)))
    return np.asarray(np.where(np.isfinite(least), least, -np.inf))


def _rounded(sign: int, k: Array, lo: Array, hi: Array) -> Array:
    """`floor` of "Round": y ≥ x − h and y ≥ ⌈lo − h⌉, and y ≤ x + h and y ≤ ⌊hi + h⌋, whichever says more."""
    if not (lo <= hi).all():
        raise Rejected("Round is not defined on all of an interval over which a bound is needed")
    half = up(0.5 + up(SLACK * np.maximum(np.maximum(np.abs(lo), np.abs(hi)), 1)))
    slope = ProvedInterval(float(sign)) - ProvedInterval(k)
    near = down(np.minimum((slope * lo).lo, (slope * hi).lo) - half)
    ends = [(ProvedInterval(k) * end).hi for end in (lo, hi)]
    whole = np.ceil(down(lo - half)) if sign > 0 else -np.floor(up(hi + half))
    least = np.fmax(near, down(whole - np.maximum(*ends)))
    return np.asarray(np.where(np.isfinite(least), least, -np.inf))


def _above_tangent(value: ProvedInterval, slope: ProvedInterval, t: Array, left: Array, right: Array) -> Array:
    """A lower bound on [left, right] of a convex function, from its value and slope at t: its tangent's least value."""
    ends = [(slope * (ProvedInterval(end) - t)).lo for end in (left, right)]
    return np.asarray((value + np.minimum(*ends)).lo)


def image(name: str, lo: Array, hi: Array) -> ProvedInterval:
    """An enclosure of the range of f over [lo, hi]; same shape."""
    zero, least = np.zeros_like(lo), CURVES[name].least if name in CURVES else -INFINITY
    points = [np.full_like(lo, end) for end in (-INFINITY, INFINITY)]
    bottom = [*points, np.full_like(lo, least)] if math.isfinite(least) else points
    return ProvedInterval(floor(name, 1, zero, bottom, lo, hi), -floor(name, -1, zero, points, lo, hi))
