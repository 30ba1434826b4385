"""Numbers that are certainly on the safe side of the real ones: intervals, and sums with a proved rounding term.

u = 2⁻⁵³, and TINY = 2⁻¹⁰²² is more than a product loses by underflow. (`check` refuses to run where small numbers are
flushed to zero.)

The lemma (Higham, Accuracy and Stability, section 3.1). Let E be a sum of products of floats in which no number passes
through more than n roundings, in whatever order sums are taken, fused or not; let |E| be the same with every number
replaced by its absolute value. If nothing overflows, then each product enters E with a factor (1 + δ), |δ| ≤ γ_n =
n u / (1 − n u), so |fl(E) − E| ≤ γ_n |E| + (number of products) · TINY. The same holds of fl(|E|), so |E| ≤ (fl(|E|) +
products · TINY) / (1 − γ_n). (Where a product is multiplied again, what it lost by underflow is paid for apart.) Hence
for n u < 1/100

    |fl(E) − E| ≤ rounding(n) · fl(|E|) + 2 · products · TINY,  rounding(n) = 2 (n + 2) u :

the factor 2 pays for 1/(1 − γ_n), for the rounding of the right-hand side, and for its own terms. A product of matrices
is such an expression with n = its inner dimension, provided that the library forms Σ_k a_ik b_kj itself, in any order
(Strassen's method does not; no BLAS that numpy is built with uses it). What overflows is infinite or NaN, and neither
is ever accepted. + − × ÷ √ of numpy are IEEE's: the neighbouring float is beyond the real result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

Array = NDArray[np.float64]
UNIT = 2.0**-53
TINY = 2.0**-1022
DIGITS = 100
"""Bits of Arb's arithmetic."""
MORE = 1 + 2.0**-40
"""A number ≥ 0 times this is above what it would be without its last 4,000 roundings."""


def rounding(n: int) -> float:
    """The lemma's factor for n roundings."""
    if n >= 1 << 46:
        raise ValueError("a sum of more than 2⁴⁶ numbers: the lemma needs n u < 1/100")
    return 2 * (n + 2) * UNIT


def down(x: Array) -> Array:
    """The float below."""
    return np.nextafter(x, -np.inf)


def up(x: Array) -> Array:
    """The float above."""
    return np.nextafter(x, np.inf)


class Interval:
    """lo ≤ x ≤ hi, elementwise; every operation contains the exact result."""

    __array_priority__ = 100

    def __init__(self, lo: Any, hi: Any = None) -> None:
        self.lo: Array = np.asarray(lo, dtype=np.float64)
        self.hi: Array = self.lo if hi is None else np.asarray(hi, dtype=np.float64)

    def __add__(self, other: Any) -> Interval:
        y = other if isinstance(other, Interval) else Interval(other)
        return Interval(down(self.lo + y.lo), up(self.hi + y.hi))

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    def __sub__(self, other: Any) -> Interval:
        y = other if isinstance(other, Interval) else Interval(other)
        return Interval(down(self.lo - y.hi), up(self.hi - y.lo))

    def __mul__(self, other: Any) -> Interval:
        y = other if isinstance(other, Interval) else Interval(other)
        ends = np.stack(np.broadcast_arrays(self.lo * y.lo, self.lo * y.hi, self.hi * y.lo, self.hi * y.hi))
        return Interval(down(ends.min(0)), up(ends.max(0)))

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Interval:
        return Interval(other) - self

    def __truediv__(self, other: Any) -> Interval:
        y = other if isinstance(other, Interval) else Interval(other)
        ends = np.stack(np.broadcast_arrays(self.lo / y.lo, self.lo / y.hi, self.hi / y.lo, self.hi / y.hi))
        fine = (y.lo > 0) | (y.hi < 0)  # else there is no bound
        return Interval(np.where(fine, down(ends.min(0)), -np.inf), np.where(fine, up(ends.max(0)), np.inf))

    def __rtruediv__(self, other: Any) -> Interval:
        return Interval(other) / self

    def __getitem__(self, index: Any) -> Interval:
        return Interval(self.lo[index], self.hi[index])

    @property
    def size(self) -> Array:
        """The largest |x|."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    def sqrt(self) -> Interval:
        """Of what is not negative."""
        return Interval(np.maximum(down(np.sqrt(np.maximum(self.lo, 0))), 0), up(np.sqrt(self.hi)))

    def square(self) -> Interval:
        """At least 0."""
        least = np.where((self.lo <= 0) & (self.hi >= 0), 0.0, np.minimum(np.abs(self.lo), np.abs(self.hi)))
        return Interval(np.maximum(down(least * least), 0), up(self.size * self.size))

    def sum(self, axis: int = -1) -> Interval:
        """By the lemma."""
        more = rounding(self.lo.shape[axis]) * self.size.sum(axis)
        return Interval(down(self.lo.sum(axis) - more), up(self.hi.sum(axis) + more))

    def meet(self, other: Interval) -> Interval:
        """Both hold."""
        return Interval(np.maximum(self.lo, other.lo), np.minimum(self.hi, other.hi))

    def middle(self) -> Array:
        """A float between, or near it: nothing depends on where."""
        return np.asarray(self.lo / 2 + self.hi / 2)

    def reach(self, point: Array) -> Array:
        """At least |x − point|."""
        return np.maximum(np.maximum(up(self.hi - point), up(point - self.lo)), 0)

    def where(self, this: NDArray[np.bool_], other: Interval) -> Interval:
        """Itself where it is true, else the other; a condition per row or per number."""
        this = this if this.ndim == self.lo.ndim else this[..., None]
        return Interval(np.where(this, self.lo, other.lo), np.where(this, self.hi, other.hi))


def product(x: Interval, y: Interval) -> Interval:
    """x @ y in midpoint and radius: x_m y_m ± (|x_m| y_r + x_r |y| + rounding)."""
    a, b = x.middle(), y.middle()
    r, s = x.reach(a), y.reach(b)
    size = np.abs(b) + s
    off = np.abs(a) @ s + r @ size + rounding(a.shape[-1]) * ((np.abs(a) + r) @ size) + 8 * a.shape[-1] * TINY
    centre, off = a @ b, off * (1 + rounding(a.shape[-1] + 8))
    return Interval(down(centre - off), up(centre + off))


def enclose(f: Callable[[arb], arb], x: Array) -> Interval:
    """f of every float by Arb, between floats."""
    before, ctx.prec = ctx.prec, DIGITS
    try:
        pairs = [_ends(f(arb(float(v)))) for v in x.ravel()]
    finally:
        ctx.prec = before
    ends = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return Interval(down(ends[:, 0]).reshape(x.shape), up(ends[:, 1]).reshape(x.shape))


def _ends(value: arb) -> tuple[float, float]:
    """Arb's two ends as the nearest floats (the caller steps outward): what is no number has none."""
    return (float(value.lower()), float(value.upper())) if value.is_finite() else (-np.inf, np.inf)


COARSE, FINE = 2.0**-6, 2.0**-12
LEAST_LOG = -64.0
_tables: list[Interval] = []


def exp_on_grid(r: Array) -> tuple[Array, Interval]:
    """The multiple of 2⁻¹² next to r in [−64, 0], and its exponential: a product of two numbers of Arb's tables."""
    if not _tables:
        for step, count in ((COARSE, int(-LEAST_LOG / COARSE) + 1), (FINE, int(COARSE / FINE))):
            _tables.append(enclose(arb.exp, np.asarray(-step * np.arange(count, dtype=np.float64))))
    steps = np.rint(np.clip(np.nan_to_num(-r), 0.0, -LEAST_LOG) / FINE).astype(np.int64)
    coarse, fine = np.divmod(steps, int(COARSE / FINE))
    return np.asarray(-steps * FINE), _tables[0][coarse] * _tables[1][fine]
