"""Functions of one number, f(x) for a form x.

To first order: the band slope·x + [low, high] of checker/curves.py, with the slope and the points of the file.
To second order, with |x'| ≤ h: f(c + x') = f + f' x' + f'' x'²/2 + f''' x'³/6 + e, |e| ≤ h⁴ max|f''''|/24 over the
interval, where x'³ = ¾h² x' ± h³/4 (Chebyshev). The derivatives are coefficients of power series of Arb, at the centre
and over a ball of radius h. ReLU has parabolas of its own (relu.py).
Of x'² = ℓ² + ℓ r + r x' the first is kept, and the rest is a sum of elementwise products.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from flint import arb, arb_series, ctx

from .. import curves
from ..lines import relu_lines
from ..rounding import DIGITS, MORE, Array, ProvedInterval, down, rounding, up
from . import pairs, relu
from .affine import MEAN
from .choices import Lines, Pick
from .forms import LOST, Form, chosen, grown, with_products
from .products import with_product_errors
from .relu import ProvedParabola

Series = Callable[[arb_series], arb_series]
PIECE = 0.1
"""The radius of the balls over which fourth derivatives are bounded."""
MOST_PIECES = 10
"""How many of them, at most; then they are larger."""


def _sigmoid(x: arb_series) -> arb_series:
    """1/(1 + e^{−x}) from its derivatives, which are polynomials of u = σ − ½: over a ball they stay small."""
    low, high = (1 / (1 + (-end).exp()) for end in (x[0].lower(), x[0].upper()))  # it grows
    u = low.union(high) - arb(1) / 2
    w = arb(1) / 4 - u * u
    away = x - x[0]
    third, fourth = w * (u * u - arb(1) / 12), u * w * (arb(1) / 6 - u * u)
    return u + arb(1) / 2 + away * (w + away * (-u * w + away * (third + away * fourth)))


def _tanh(x: arb_series) -> arb_series:
    return 2 * _sigmoid(2 * x) - 1


def _gelu_tanh(constants: Callable[[], tuple[arb, arb]]) -> Series:
    def f(x: arb_series) -> arb_series:
        k, c = constants()
        return x * (1 + _tanh(k * (x + c * x * x * x))) / 2

    return f


SERIES: dict[str, Series] = {
    "Gelu": lambda x: x * (1 + (x / arb(2).sqrt()).erf()) / 2,
    "GeluTanh": _gelu_tanh(lambda: ((2 / arb.pi()).sqrt(), arb(44715) / 1000000)),
    "GeluTanhDouble": _gelu_tanh(lambda: (arb(0.7978845608028654), arb(0.044715))),
    "GeluTanhSingle": _gelu_tanh(lambda: (arb(0.7978845834732056), arb(0.044714998453855515))),
    "Silu": lambda x: x * _sigmoid(x),
    "Tanh": _tanh,
    "Sigmoid": _sigmoid,
    "Erf": lambda x: x.erf(),
    "Exp": lambda x: x.exp(),
    "Square": lambda x: x * x,
    "Log": lambda x: x.log(),
    "Sqrt": lambda x: x.sqrt(),
    "Rsqrt": lambda x: x.rsqrt(),
    "Reciprocal": lambda x: 1 / x,
}
"""The smooth curves by the names of their ops."""


def bent(x: Form, op: str, box: ProvedInterval, lines: Lines | None) -> tuple[Form, Array]:
    """By the band over the box of x, and half its width."""
    if op == "Relu":
        band = relu_lines(box)
        slope, low, high = band.band_slope, band.band_lower, band.band_upper
    else:
        slope, below, above = (lines or ())[4:7]
        low = curves.floor(op, 1, slope, below, box.lo, box.hi)
        high = -curves.floor(op, -1, -slope, above, box.lo, box.hi)
    middle = low / 2 + high / 2
    half, size = ProvedInterval(low, high).reach(middle), np.abs(slope)
    slack = size * x.slack + rounding(4) * (size * x.size + np.abs(middle)) + LOST
    found = Form(
        centre=slope * x.centre + middle,
        blocks={key: slope * columns for key, columns in x.blocks.items()},
        own=(size * x.own + half) * MORE,
        slack=slack * MORE,
    )
    return found, half


# Seven: the form, the function with its box and lines, and what every op on forms takes (count, key, pick).
def curved(x: Form, op: str, box: ProvedInterval, lines: Lines | None, count: int, key: int, pick: Pick) -> Form:
    """f(x), (*rows, d); each row to whichever order has less error."""
    first, half = bent(x, op, box, lines)
    if not (count and x.count) or (op != "Relu" and op not in SERIES) or x.centre.ndim < 2:
        return first
    h = np.fmin(x.tight, box.reach(x.centre))
    near = relu.parabola(x, box, h, pick) if op == "Relu" else smooth(op, x.centre, h)
    value, steep, second = near.value, near.slope, near.bow
    size = np.abs(steep)
    slack = size * x.slack + rounding(4) * (np.abs(value) + size * x.rough) + near.lost + LOST
    found = Form(
        centre=value,
        blocks={k: steep * columns for k, columns in x.blocks.items()},
        own=(size * x.own + near.own) * MORE,
        slack=slack * MORE,
    )
    line = x.lines(count)
    error = rounding(6) * np.abs(second) * np.square(np.abs(line).sum(0)) * grown(2 * count) + LOST
    pair, square = (second * part for part in pairs.outer(line, line))
    found = with_products(found, (pair, square), error)
    found = with_product_errors(found, [(x.linear, x.rest), (x.rest, x)], second, key, pick)
    balls = found.blocks.get(key)
    length = 0.0 if balls is None else np.sqrt(np.square(balls).sum((1, -1))).sum(0)
    left = length + MEAN * (found.own - size * x.own).sum(-1)
    usable = np.isfinite(found.rough).all(-1)
    return chosen((pick("second", left < MEAN * half.sum(-1)) & usable)[..., None], found, first)


def smooth(op: str, centre: Array, h: Array) -> ProvedParabola:
    """Of f(c + x') for |x'| ≤ h, from Taylor's polynomial."""
    terms, fourth = taylor(op, centre, h)
    value, slope, second, third = (term.middle() for term in terms)  # second and third over 2! and 3!
    off = [term.reach(middle) for term, middle in zip(terms, (value, slope, second, third), strict=True)]
    lost = off[0] + off[1] * h + off[2] * h**2 + off[3] * h**3
    lost = lost + rounding(4) * (np.abs(slope) + np.abs(third) * h * h) * h  # of the sum that is the slope
    return ProvedParabola(
        value=value,
        slope=slope + third * (0.75 * h * h),
        bow=second,
        own=(np.abs(third) * h**3 / 4 + fourth * h**4) * MORE,
        lost=lost * MORE,
    )


def taylor(op: str, centre: Array, h: Array) -> tuple[list[ProvedInterval], Array]:
    """f, f', f''/2 and f'''/6 at each centre, and max|f''''|/24 within h of it; infinite where f is not smooth."""
    f = SERIES[op]
    lows, highs = np.full((4, centre.size), -np.inf), np.full((4, centre.size), np.inf)
    fourth = np.full(centre.size, np.inf)
    old_precision, ctx.prec = ctx.prec, DIGITS
    try:
        for i, (c, radius) in enumerate(zip(centre.ravel(), h.ravel(), strict=True)):
            if not (np.isfinite(c) and np.isfinite(radius)):
                continue
            at = _coefficients(f, arb(float(c)), 4)
            most = _fourth(f, float(c), float(radius))
            if all(x.is_finite() for x in (*at, most)):
                lows[:, i], highs[:, i] = [float(x.lower()) for x in at], [float(x.upper()) for x in at]
                fourth[i] = float(most.upper())
    finally:
        ctx.prec = old_precision
    shape = centre.shape
    terms = [ProvedInterval(down(a).reshape(shape), up(b).reshape(shape)) for a, b in zip(lows, highs, strict=True)]
    return terms, up(fourth).reshape(shape)


def _fourth(f: Series, c: float, radius: float) -> arb:
    """max|f''''|/24 within a radius of c, or more: over a few balls, each of which is small."""
    pieces = min(max(math.ceil(radius / PIECE), 1), MOST_PIECES)
    whole = arb(c, radius)
    step = (whole.upper() - whole.lower()) / pieces
    found = arb(0)
    for k in range(pieces):
        low = whole.lower() + k * step
        found = found.max(abs(_coefficients(f, low.union(low + step), 5)[4]))
    return found


def _coefficients(f: Series, x: arb, terms: int) -> list[arb]:
    """The first coefficients of the power series of f around x, which may be a ball; not finite where there is none."""
    try:
        found = f(arb_series([x, 1], prec=terms))
    except ValueError:  # a ball that may be 0 is in a denominator
        return [arb("nan")] * terms
    return [found[i] for i in range(terms)]
