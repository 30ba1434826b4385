"""The minimum by looking at all 2^K vertices (Theorem 1): slow, and trusting nothing else. For K ≤ 20.

Invariant: the value of a vertex of the box, and at most that of every other one, to rounding: a few (K + span) · 2⁻⁵³
of max |c|, with span the distance of the least from the greatest score, or 750 if that is less.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.demo.baselines.problem import Floats, ScoreBoxProblem, in_pieces, read, unscaled
from vertex_softmax.softmax_box.arguments import Array

MOST_KEYS = 20
PIECE = 1 << 22
"""Values of vertices that are held at once."""
VERTICES = 1 << 16
"""Vertices whose choice of ends is written out at once."""
SPAN = 600.0
"""e^−SPAN is far from underflow: within this, the weights of a row share one shift."""


def exhaustive_min(c: Array, lower: Array, upper: Array) -> Floats:
    """The smallest c · softmax(s) over all 2^K vertices of the box (Theorem 1), to rounding.

    >>> exhaustive_min(np.array([0.0, 1.0]), np.array([-1.0, -1.0]), np.array([1.0, 1.0])).round(6)
    np.float64(0.119203)

    More than 20 keys are refused.
    """
    problem = read(c, lower, upper)
    keys = problem.c.shape[-1]
    if keys > MOST_KEYS:
        raise InvalidValueError(
            f"there are {keys} keys, and 2^{keys} vertices are too many to look at (at most {MOST_KEYS} keys); "
            "use softmax_box_min, which is exact for any number of keys"
        )
    return in_pieces(_least, problem, PIECE // keys)


def enumerated_min(c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The smallest value over all 2^K vertices, (..., K) to (...), in the precision given; nothing is checked.

    A vertex picks one of the 2K weights (L, U) per key, so all of them are one product with a 0/1 matrix (2K, 2^K), in
    pieces. Sums of weights ≥ 0 only; all weights of a row share one shift, so its scores must not span more than SPAN
    (float32: 80).
    """
    keys = c.shape[-1]
    shift = upper.amax(-1, keepdim=True)
    weights = torch.cat([(lower - shift).exp(), (upper - shift).exp()], -1).reshape(-1, 2 * keys)
    products = weights * torch.cat([c, c], -1).reshape(-1, 2 * keys)
    found = torch.full_like(weights[:, 0], torch.inf)
    for first in range(0, 1 << keys, VERTICES):
        at_upper = _at_upper(first, keys).to(c.dtype)
        pick = torch.cat([1 - at_upper, at_upper], -1).T.contiguous()
        step = max(1, PIECE // pick.shape[1])
        parts = zip(found.split(step), products.split(step), weights.split(step), strict=True)
        for least, top, mass in parts:  # views: `found` is written to
            torch.minimum(least, (top @ pick).div_(mass @ pick).amin(-1), out=least)
    return found.reshape(c.shape[:-1])


def _least(problem: ScoreBoxProblem) -> Floats:
    """(rows, K) to (rows)."""
    rows = [torch.tensor(x) for x in (problem.scaled, problem.lower, problem.upper)]
    with np.errstate(over="ignore"):
        span = problem.upper.max(-1) - np.where(problem.masked, np.inf, problem.lower).min(-1)
    far = torch.from_numpy(span > SPAN)
    found = torch.empty(len(far), dtype=torch.float64)
    for which, solve in ((~far, enumerated_min), (far, _enumerated_far)):
        found[which] = solve(*(x[which] for x in rows))
    return unscaled(found.numpy(), problem.exponent)


def _enumerated_far(c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The same for (rows, K) of any span: every vertex with a shift of its own, so no sum of weights is below 1."""
    keys = c.shape[-1]
    found = torch.full_like(c[:, 0], torch.inf)
    for first in range(0, 1 << keys, VERTICES):
        at_upper = _at_upper(first, keys)
        step = max(1, PIECE // at_upper.numel())
        parts = zip(found.split(step), *(x[:, None].split(step) for x in (c, lower, upper)), strict=True)
        for least, coefficients, low, high in parts:  # views: `found` is written to
            weights = torch.where(at_upper, high, low)
            weights = weights.sub_(weights.amax(-1, keepdim=True)).exp_()
            values = (coefficients * weights).sum(-1) / weights.sum(-1)
            torch.minimum(least, values.amin(-1), out=least)
    return found


def _at_upper(first: int, keys: int) -> Tensor:
    """Which keys are at their upper end, for at most VERTICES vertices from number `first` on: (vertices, K), bool."""
    number = torch.arange(first, min(first + VERTICES, 1 << keys))
    return ((number[:, None] >> torch.arange(keys)) & 1).bool()
