"""The problem that every baseline bounds: min c · softmax(s) over a score box, validated and in float64.

Invariant of `components`: p^L_j ≤ p_j(s) ≤ p^U_j for every s in the box, in spite of rounding. `in_pieces` bounds the
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from vertex_softmax.softmax_box import softmax_box_probabilities
from vertex_softmax.softmax_box.arguments import Array, diagnose, tensors

Floats = NDArray[np.float64]

UNIT = 2.0**-53
"""The unit roundoff of float64."""
WIDEST = 1e300
"""Rows whose scores span more are too wide: differences of scores may overflow."""
UNDERFLOW = 1e-300
"""More than K products of numbers of size ≤ 2 can lose by underflow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreBoxProblem:
    """The coefficients c and the score box [lower, upper] of rows of K keys, validated and in float64.

    c = scaled · 2^exponent with |scaled| < 1. A masked key has the least coefficient of the other keys, so that its
    own coefficient does not matter.
    """

    c: Floats
    """(..., K), perhaps not broadcast to the shape of the scores"""
    scaled: Floats
    """as c"""
    exponent: NDArray[np.intc]
    """as c without the last dimension"""
    lower: Floats
    """(..., K)"""
    upper: Floats
    """(..., K)"""
    masked: NDArray[np.bool_]
    """(..., K): the keys whose upper end is −inf"""

    def least_coefficient(self) -> Floats:
        """min c over the keys that are not masked, (...): a lower bound of every weighted mean, without rounding."""
        least = self.c.min(-1)
        return np.asarray(np.broadcast_to(least, np.broadcast_shapes(least.shape, self.lower.shape[:-1])), np.float64)

    def too_wide(self, widest: float = WIDEST) -> NDArray[np.bool_]:
        """Whether the scores of each row span more than `widest`, (...)."""
        least = np.where(self.masked, np.inf, self.lower).min(-1)
        return np.asarray(0.5 * self.upper.max(-1) - 0.5 * least > 0.5 * widest, np.bool_)

    def tamed(self, widest: float = WIDEST) -> ScoreBoxProblem:
        """The problem with all scores 0 in the rows that are too wide, whose results the caller replaces."""
        wide = self.too_wide(widest)[..., None] & ~self.masked
        return replace(self, lower=np.where(wide, 0.0, self.lower), upper=np.where(wide, 0.0, self.upper))


def read(c: Array, lower: Array, upper: Array) -> ScoreBoxProblem:
    """The arguments of a baseline as a problem; raises a `VertexError` that names what is wrong with them."""
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
    return ScoreBoxProblem(c=coefficients, scaled=scaled, exponent=exponent, lower=low, upper=high, masked=masked)


def components(problem: ScoreBoxProblem) -> tuple[Floats, Floats]:
    """The ranges p^L and p^U of the softmax components, (..., K), rounded outward; 0 and 1 if the box is too wide."""
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
    """The results of `work`, (n, K) to (n,), on at most `rows` rows at a time, in the broadcast shape (...)."""
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
            ScoreBoxProblem(
                c=c[part],
                scaled=scaled[part],
                exponent=exponent[part],
                lower=lower[part],
                upper=upper[part],
                masked=masked[part],
            )
        )
    return np.asarray(result.reshape(shape[:-1]), np.float64)[()]
