"""The rounding error of a floating-point sum, exactly."""

from __future__ import annotations

from torch import Tensor


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(s, error), elementwise: the rounded sum s and its rounding error, a + b = s + error in exact arithmetic.

    Knuth's two-sum; a and b have one dtype and shapes that broadcast. If s overflows, the error is NaN.
    """
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)
