"""Lines around a function of one number over boxes, and those of ReLU."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from . import rows
from .rounding import Array, ProvedInterval

FEW = rows.FEW


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearBounds:
    """Lines around a function f of one number over the box of each entry: arrays of the node's shape.

    lower_slope · x + lower_intercept ≤ f(x) ≤ upper_slope · x + upper_intercept, and the parallel lines
    band_slope · x + band_lower ≤ f(x) ≤ band_slope · x + band_upper.
    """

    lower_slope: Array
    lower_intercept: Array
    upper_slope: Array
    upper_intercept: Array
    band_slope: Array
    band_lower: Array
    band_upper: Array

    def flat(self) -> LinearBounds:
        """The same in arrays of one dimension."""
        return LinearBounds(**{each.name: getattr(self, each.name).ravel() for each in fields(self)})

    def times(self, A: Array) -> tuple[Array, Array]:
        """Slopes k and constants b with A f(x) ≥ k x + b: A⁺ times the line below and A⁻ times that above, rounded."""
        positive = A >= 0
        slope = A * np.where(positive, self.lower_slope, self.upper_slope)
        return slope, A * np.where(positive, self.lower_intercept, self.upper_intercept)


def relu_lines(box: ProvedInterval, k: Array | None = None) -> LinearBounds:
    """The lines of ReLU: below with slope k (a default if None), above the chord; the band has the chord's slope.

    max(x, 0) − k x is least at an end of the box or at 0. Where the sign is known, ReLU is linear, and its slope is k.
    """
    on, off = box.lo >= 0, box.hi <= 0
    chord = np.where(on, 1.0, np.where(off, 0.0, box.hi / np.where(on | off, 1.0, box.hi - box.lo)))
    k = np.where(on | off, chord, (box.hi > -box.lo) * 1.0 if k is None else k)

    def extreme(slope: Array, side: int) -> Array:
        """side · the least of side · (max(x, 0) − slope·x)."""
        exact = (on & (slope == 1)) | (off & (slope == 0))
        ends = [side * (np.maximum(x, 0) - slope * x) for x in (box.lo, box.hi)]
        least = np.minimum(np.minimum(*ends), np.where(on | off, np.inf, 0.0))
        return np.asarray(np.where(exact, 0.0, side * (least - FEW * (1 + np.abs(slope)) * box.size)))

    high = extreme(chord, -1)
    return LinearBounds(
        lower_slope=k,
        lower_intercept=extreme(k, 1),
        upper_slope=chord,
        upper_intercept=high,
        band_slope=chord,
        band_lower=extreme(chord, 1),
        band_upper=high,
    )
