"""Floating-point arithmetic that encloses the real results: intervals, and sums with a proved rounding term.

u = 2⁻⁵³ is the unit roundoff, and TINY = 2⁻¹⁰²² is more than a product loses by underflow. (`check` refuses to run
where subnormal numbers are flushed to zero.)

The lemma (Higham, Accuracy and Stability, section 3.1). Let E be a sum of products of floats in which no number passes
through more than n roundings, in whatever order sums are taken, fused or not; let |E| be the same with every number
replaced by its absolute value. If nothing overflows, then each product enters E with a factor (1 + δ), |δ| ≤ γ_n =
n u / (1 − n u), so |fl(E) − E| ≤ γ_n |E| + (number of products) · TINY. The same holds of fl(|E|), so |E| ≤ (fl(|E|) +
products · TINY) / (1 − γ_n). (Where a product is multiplied again, its underflow is accounted for separately.) Hence
for n u < 1/100

    |fl(E) − E| ≤ rounding(n) · fl(|E|) + 2 · products · TINY,  rounding(n) = 2 (n + 2) u :

the factor 2 covers 1/(1 − γ_n), the rounding of the right-hand side, and its own terms. A product of matrices is such
an expression with n = its inner dimension, provided that the library forms Σ_k a_ik b_kj itself, in any order
(Strassen's method does not; no BLAS that numpy is built with uses it). A result that overflows is infinite or NaN, and
neither is ever accepted. numpy's + − × ÷ √ are those of IEEE 754: the neighbouring float is beyond the real result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

Array = NDArray[np.float64]
UNIT = 2.0**-53
"""The unit roundoff u of float64."""
TINY = 2.0**-1022
"""The smallest normal float64: more than a product loses by underflow."""
DIGITS = 100
"""Precision of Arb's arithmetic, in bits."""
MORE = 1 + 2.0**-40
"""A number ≥ 0 that went through at most 4,000 roundings, times this factor, is at least the unrounded number."""


def rounding(n: int) -> float:
    """The lemma's factor 2 (n + 2) u for an expression in which no number passes through more than n roundings."""
    if n >= 1 << 46:
        raise ValueError("a sum of more than 2⁴⁶ numbers: the rounding lemma needs n u < 1/100")
    return 2 * (n + 2) * UNIT


def down(x: Array) -> Array:
    """The next float below each x, same shape."""
    return np.nextafter(x, -np.inf)


def up(x: Array) -> Array:
    """The next float above each x, same shape."""
    return np.nextafter(x, np.inf)


class ProvedInterval:
    """Arrays lo ≤ x ≤ hi of float64, elementwise; the result of every operation encloses the exact real result.

    An end that could not be bounded is infinite or NaN.
    """

    __array_priority__ = 100

    def __init__(self, lo: Any, hi: Any = None) -> None:
        self.lo: Array = np.asarray(lo, dtype=np.float64)
        self.hi: Array = self.lo if hi is None else np.asarray(hi, dtype=np.float64)

    def __add__(self, other: Any) -> ProvedInterval:
        y = other if isinstance(other, ProvedInterval) else ProvedInterval(other)
        return ProvedInterval(down(self.lo + y.lo), up(self.hi + y.hi))

    def __neg__(self) -> ProvedInterval:
        return ProvedInterval(-self.hi, -self.lo)

    def __sub__(self, other: Any) -> ProvedInterval:
        y = other if isinstance(other, ProvedInterval) else ProvedInterval(other)
        return ProvedInterval(down(self.lo - y.hi), up(self.hi - y.lo))

    def __mul__(self, other: Any) -> ProvedInterval:
        y = other if isinstance(other, ProvedInterval) else ProvedInterval(other)
        ends = np.stack(np.broadcast_arrays(self.lo * y.lo, self.lo * y.hi, self.hi * y.lo, self.hi * y.hi))
        return ProvedInterval(down(ends.min(0)), up(ends.max(0)))

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> ProvedInterval:
        return ProvedInterval(other) - self

    def __truediv__(self, other: Any) -> ProvedInterval:
        y = other if isinstance(other, ProvedInterval) else ProvedInterval(other)
        ends = np.stack(np.broadcast_arrays(self.lo / y.lo, self.lo / y.hi, self.hi / y.lo, self.hi / y.hi))
        bounded = (y.lo > 0) | (y.hi < 0)  # a divisor that may be 0 leaves the quotient unbounded
        return ProvedInterval(np.where(bounded, down(ends.min(0)), -np.inf), np.where(bounded, up(ends.max(0)), np.inf))

    def __rtruediv__(self, other: Any) -> ProvedInterval:
        return ProvedInterval(other) / self

    def __getitem__(self, index: Any) -> ProvedInterval:
        return ProvedInterval(self.lo[index], self.hi[index])

    @property
    def size(self) -> Array:
        """The largest |x| of each entry."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    def sqrt(self) -> ProvedInterval:
        """The square root; negative parts of the interval are cut off."""
        return ProvedInterval(np.maximum(down(np.sqrt(np.maximum(self.lo, 0))), 0), up(np.sqrt(self.hi)))

    def square(self) -> ProvedInterval:
        """The square, whose lower end is at least 0."""
        least = np.where((self.lo <= 0) & (self.hi >= 0), 0.0, np.minimum(np.abs(self.lo), np.abs(self.hi)))
        return ProvedInterval(np.maximum(down(least * least), 0), up(self.size * self.size))

    def sum(self, axis: int = -1) -> ProvedInterval:
        """The sum along an axis, widened by the lemma's rounding term."""
        error = rounding(self.lo.shape[axis]) * self.size.sum(axis)
        return ProvedInterval(down(self.lo.sum(axis) - error), up(self.hi.sum(axis) + error))

    def meet(self, other: ProvedInterval) -> ProvedInterval:
        """The intersection: an enclosure of every number that lies in both intervals."""
        return ProvedInterval(np.maximum(self.lo, other.lo), np.minimum(self.hi, other.hi))

    def ordered(self) -> ProvedInterval:
        """What was cut or met with another; where the ends cross no input is left, and any interval encloses that."""
        return ProvedInterval(np.minimum(self.lo, self.hi), np.maximum(self.lo, self.hi))

    def middle(self) -> Array:
        """The midpoint, rounded. Soundness does not depend on its exact position."""
        return np.asarray(self.lo / 2 + self.hi / 2)

    def reach(self, point: Array) -> Array:
        """An upper bound of |x − point| over the interval."""
        return np.maximum(np.maximum(up(self.hi - point), up(point - self.lo)), 0)

    def where(self, condition: NDArray[np.bool_], other: ProvedInterval) -> ProvedInterval:
        """`self` where the condition is true, else `other`; the condition has an entry per number or per row."""
        condition = condition if condition.ndim == self.lo.ndim else condition[..., None]
        return ProvedInterval(np.where(condition, self.lo, other.lo), np.where(condition, self.hi, other.hi))


def product(x: ProvedInterval, y: ProvedInterval) -> ProvedInterval:
    """Enclosure of the matrix product x @ y by midpoints and radii: x_m y_m ± (|x_m| y_r + x_r |y| + rounding)."""
    centre_x, centre_y = x.middle(), y.middle()
    radius_x, radius_y = x.reach(centre_x), y.reach(centre_y)
    size_y = np.abs(centre_y) + radius_y
    radius = (
        np.abs(centre_x) @ radius_y
        + radius_x @ size_y
        + rounding(centre_x.shape[-1]) * ((np.abs(centre_x) + radius_x) @ size_y)
        + 8 * centre_x.shape[-1] * TINY
    )
    centre, radius = centre_x @ centre_y, radius * (1 + rounding(centre_x.shape[-1] + 8))
    return ProvedInterval(down(centre - radius), up(centre + radius))


def enclose(f: Callable[[arb], arb], x: Array) -> ProvedInterval:
    """Enclosure of f(x) for every float of x, computed by Arb; same shape as x."""
    old_precision, ctx.prec = ctx.prec, DIGITS
    try:
        pairs = [_ends(f(arb(float(v)))) for v in x.ravel()]
    finally:
        ctx.prec = old_precision
    ends = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return ProvedInterval(down(ends[:, 0]).reshape(x.shape), up(ends[:, 1]).reshape(x.shape))


def _ends(value: arb) -> tuple[float, float]:
    """The ends of an Arb ball as the nearest floats (the caller steps outward); infinite if the ball is not finite."""
    return (float(value.lower()), float(value.upper())) if value.is_finite() else (-np.inf, np.inf)


COARSE, FINE = 2.0**-6, 2.0**-12
"""Steps of the two tables of exponentials: every multiple of FINE is a coarse plus a fine entry."""
LEAST_LOG = -64.0
"""The tables cover the exponents from LEAST_LOG to 0."""
_tables: list[ProvedInterval] = []


def exp_on_grid(r: Array) -> tuple[Array, ProvedInterval]:
    """The multiple of 2⁻¹² nearest to r, clipped to [−64, 0], and an enclosure of its exponential; shapes as r.

    The exponential is a product of two entries of tables that Arb computed.
    """
    if not _tables:
        for step, count in ((COARSE, int(-LEAST_LOG / COARSE) + 1), (FINE, int(COARSE / FINE))):
            _tables.append(enclose(arb.exp, np.asarray(-step * np.arange(count, dtype=np.float64))))
    steps = np.rint(np.clip(np.nan_to_num(-r), 0.0, -LEAST_LOG) / FINE).astype(np.int64)
    coarse, fine = np.divmod(steps, int(COARSE / FINE))
    return np.asarray(-steps * FINE), _tables[0][coarse] * _tables[1][fine]
