"""Functions of one number, written again with derivatives from power series; boxes, slopes and points to try."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import arb, arb_series, ctx, fmpq

from tests.certificate.checker.helpers import PRECISION, Array, module

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


def sides(name: str) -> list[tuple[float, float, int]]:
    """Where the curve is said to be convex (1) and concave (−1), in order, within its domain."""
    curve = curves.CURVES[name]
    lo, hi = curve.domain
    pieces = [(*piece, 1) for piece in curve.convex] + [(*piece, -1) for piece in curve.concave]
    return sorted((max(a, lo), min(b, hi), sign) for a, b, sign in pieces)


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
