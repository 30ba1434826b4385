"""The unknowns of an input set: x = centre + Σ_b columns_b·ξ_b + e, one vector ξ_b for each ball b.

Invariant: for every input of the set there are ξ with |ξ_b|₂ ≤ 1 in every ball, so that each |ξ_bk| ≤ 1 too, and
|e| ≤ slack. A ball may be known to be narrower than the Euclidean one: for every η, what the ball's part of x adds to
η·(x − centre) is at most most · max_k |η·column_bk| + |η|·slack.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rounding import Array, rounding

UNDERFLOW = 1e-150
"""At least what the root of a sum of squares loses when the squares underflow, but for a factor √k."""


class BallOfColumns(NamedTuple):
    """Which columns of a zonotope belong to one ball."""

    places: NDArray[np.int64]
    """(k,)"""
    most: float
    """see the module's invariant; inf if the ball is just the Euclidean one. It is 1 for an ℓ1 ball"""


def reach(y: Array, balls: tuple[BallOfColumns, ...]) -> Array:
    """An upper bound of |Σ_p y_p ξ_p|, y_p = η·column_p, up to `more_roundings(P)` and |η|·slack: (..., P) → (...).

    A column in no ball has an unknown of its own in [−1, 1].
    """
    size = np.abs(y)
    if not balls:
        return np.asarray(size.sum(-1))
    alone = np.ones(y.shape[-1], dtype=bool)
    found = np.zeros(y.shape[:-1])
    for ball in balls:
        alone[ball.places] = False
        found = found + ball_reach(size[..., ball.places], ball.most)
    return np.asarray(found + size[..., alone].sum(-1))


def ball_reach(size: Array, most: float) -> Array:
    """The same for one ball: sizes |y| (..., k) → (...)."""
    if size.shape[-1] == 0:
        return np.zeros(size.shape[:-1])
    length = np.sqrt(np.square(size).sum(-1)) + math.sqrt(size.shape[-1]) * UNDERFLOW
    if most < math.inf:
        length = np.fmin(length, most * size.max(-1))
    return np.asarray(length)


def kept(balls: tuple[BallOfColumns, ...], used: NDArray[np.bool_]) -> tuple[BallOfColumns, ...]:
    """The balls after columns that are 0 were left out: `used` (P,) says which are left."""
    place = np.cumsum(used) - 1
    found = (ball._replace(places=place[ball.places[used[ball.places]]]) for ball in balls)
    return tuple(ball for ball in found if len(ball.places))


def more_roundings(count: int) -> float:
    """The factor that makes `reach` of `count` columns, rounded, at least what it was without rounding."""
    return 1 + rounding(4 * count + 8)


__all__ = ["BallOfColumns", "ball_reach", "kept", "more_roundings", "reach"]
