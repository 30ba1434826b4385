"""The unknowns of an input set: x = centre + Σ_b columns_b·ξ_b + e, one vector ξ_b for each ball b.

Invariant: for every input of the set there are ξ with |ξ_b|₂ ≤ 1 in every ball, or even |ξ_b|₁ ≤ 1, and |e| ≤ slack. So
every |ξ_bk| ≤ 1 too: what holds for all ξ of the cube holds.
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
    norm: int
    """1: the sum of their |ξ| is at most 1; 2: that of their ξ² is"""


def reach(y: Array, balls: tuple[BallOfColumns, ...]) -> Array:
    """An upper bound of |Σ_p y_p ξ_p|, up to `more_roundings(P)`: (..., P) → (...).

    A column in no ball has an unknown of its own in [−1, 1].
    """
    size = np.abs(y)
    if not balls:
        return np.asarray(size.sum(-1))
    alone = np.ones(y.shape[-1], dtype=bool)
    found = np.zeros(y.shape[:-1])
    for ball in balls:
        alone[ball.places] = False
        found = found + _ball_reach(size[..., ball.places], ball.norm)
    return np.asarray(found + size[..., alone].sum(-1))


def _ball_reach(size: Array, norm: int) -> Array:
    """The same for one ball: sizes |y| (..., k) → (...)."""
    if norm == 1:
        return np.asarray(size.max(-1))
    return np.asarray(np.sqrt(np.square(size).sum(-1)) + math.sqrt(size.shape[-1]) * UNDERFLOW)


def kept(balls: tuple[BallOfColumns, ...], used: NDArray[np.bool_]) -> tuple[BallOfColumns, ...]:
    """The balls after columns that are 0 were left out: `used` (P,) says which are left."""
    place = np.cumsum(used) - 1
    found = (ball._replace(places=place[ball.places[used[ball.places]]]) for ball in balls)
    return tuple(ball for ball in found if len(ball.places))


def more_roundings(count: int) -> float:
    """The factor that makes `reach` of `count` columns, rounded, at least what it was without rounding."""
    return 1 + rounding(4 * count + 8)


__all__ = ["BallOfColumns", "kept", "more_roundings", "reach"]
