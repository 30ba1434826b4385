"""What every baseline is given, checked once: coefficients and a score box in float64, and what they all need of it.

Invariant of `components`: p^L ≤ p_j(s) ≤ p^U for every s in the box, certainly. `in_pieces` keeps memory bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vertex_softmax.softmax_box import softmax_box_probabilities
from vertex_softmax.softmax_box.arguments import Array, diagnose, tensors

Floats = NDArray[np.float64]

UNIT = 2.0**-53
WIDEST = 1e300
UNDERFLOW = 1e-300  # more than K products of numbers of size ≤ 2 can lose by underflow


class ScoreBoxProblem(NamedTuple):
    """Checked input in float64, (..., K), c perhaps not broadcast: c = scaled · 2^exponent with |scaled| < 1.

    A masked key has the least coefficient of the others: what it was given must not matter.
    """

    c: Floats
    scaled: Floats
    exponent: NDArray[np.intc]
    lower: Floats
    upper: Floats
    masked: NDArray[np.bool_]

    def least_coefficient(self) -> Floats:
        """min c over the keys that are not masked: below every weighted mean, and free of rounding. Shape (...)."""
        least = self.c.min(-1)
        return np.asarray(np.broadcast_to(least, np.broadcast_shapes(least.shape, self.lower.shape[:-1])), np.float64)

    def too_wide(self, widest: float = WIDEST) -> NDArray[np.bool_]:
        """Rows whose scores span more than `widest`; more than WIDEST, differences may overflow. Shape (...)."""
        least = np.where(self.masked, np.inf, self.lower).min(-1)
        return np.asarray(0.5 * self.upper.max(-1) - 0.5 * least > 0.5 * widest, np.bool_)

    def tamed(self, widest: float = WIDEST) -> ScoreBoxProblem:
        """The same, but all scores 0 in the rows that are too wide: for callers that replace their results."""
        wide = self.too_wide(widest)[..., None] & ~self.masked
        return self._replace(lower=np.where(wide, 0.0, self.lower), upper=np.where(wide, 0.0, self.upper))


def read(c: Array, lower: Array, upper: Array) -> ScoreBoxProblem:
    """The arguments of a baseline, checked; raises a `VertexError` that names what is wrong."""
    found, _ = tensors(c=c, lower=lower, upper=upper)
    lo, up = torch.broadcast_tensors(found["lower"], found["upper"])
    diagnose(lo, up, found["c"])
    coefficients, low, high = (x.detach().cpu().double().numpy() for x in (found["c"], lo, up))
    masked = high == -np.inf
    if masked.any():
        least = np.where(masked, np.inf, coefficients).min(-1, keepdims=True)
        coefficients = np.where(masked, least, coefficients)
    exponent = np.frexp(np.abs(coefficients).max(-1))[1]
    scaled = np.ldexp(coefficients, -exponent[..., None])
    return ScoreBoxProblem(coefficients, scaled, exponent, low, high, masked)


def components(problem: ScoreBoxProblem) -> tuple[Floats, Floats]:
    """(p^L, p^U), certainly outward; 0 and 1 where the box is too wide."""
    wide = problem.too_wide()[..., None] & ~problem.masked
    tamed = problem.tamed()
    least, greatest = softmax_box_probabilities(tamed.lower, tamed.upper, outward=True)
    return np.where(wide, 0.0, least), np.where(wide, 1.0, greatest)


def unscaled(bound: Floats, exponent: NDArray[np.intc]) -> Floats:
    """bound · 2^exponent, rounded down where it is subnormal; −inf where it is below every float."""
    with np.errstate(over="ignore", under="ignore"):
        result = np.ldexp(bound, exponent)
        tiny = (np.abs(result) < np.finfo(np.float64).tiny) & (np.ldexp(result, -exponent) > bound)
    return np.asarray(np.where(tiny, np.nextafter(result, -np.inf), result), np.float64)[()]


def in_pieces(work: Callable[[ScoreBoxProblem], Floats], problem: ScoreBoxProblem, rows: int) -> Floats:
    """`work` ((rows, K) to (rows)) done on at most `rows` rows at a time; the result has the broadcast shape (...)."""
    shape = np.broadcast_shapes(problem.c.shape, problem.lower.shape)
    exponent = np.broadcast_to(problem.exponent, shape[:-1]).reshape(-1)
    c, scaled, lower, upper = (
        np.broadcast_to(x, shape).reshape(-1, shape[-1])
        for x in (problem.c, problem.scaled, problem.lower, problem.upper)
    )
    masked = np.broadcast_to(problem.masked, shape).reshape(-1, shape[-1])
    result = np.empty(len(exponent))
    for first in range(0, len(result), max(1, rows)):
        part = slice(first, first + max(1, rows))
        result[part] = work(
            ScoreBoxProblem(c[part], scaled[part], exponent[part], lower[part], upper[part], masked[part])
        )
    return np.asarray(result.reshape(shape[:-1]), np.float64)[()]
