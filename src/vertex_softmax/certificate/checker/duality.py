"""How far a linear function reaches in a ball that is cut by a box: an upper bound by a multiplier, rounded outward.

Wanted is the most of Σ b t over 0 ≤ t ≤ e and |t|_p ≤ 1, b ≥ 0. For every λ ≥ 0 it is at most
  p = 1:  λ + Σ e max(b − λ, 0)
  p = 2:  λ + Σ (the most of b t − λ t² over 0 ≤ t ≤ e),
because what the ball adds, λ (1 − Σ t) or λ (1 − Σ t²), is ≥ 0 in it. The second is at most b²/(4 λ), and, because
t² ≥ 2 e t − e², at most max(b − 2 λ e, 0) e + λ e²: one of the two is the most itself. So every λ is sound. A good one
is sought in floats; the value at it is rounded up.
"""

from __future__ import annotations

import numpy as np

from .rounding import Array, down, rounding, up

ROUNDS = 64
"""How often a multiplier is improved, at most."""


def farthest(b: Array, way: Array, norm: int) -> Array:
    """An upper bound of Σ b t: sizes b ≥ 0 and ways e ≥ 0, (S, k) each → (S,)."""
    price = _price_in_l1(b, way) if norm == 1 else _price_in_l2(b, way)
    price = np.where(price >= 0, price, 0.0)
    return value(b, way, norm, price)


def value(b: Array, way: Array, norm: int, price: Array) -> Array:
    """The bound at the multipliers `price` ≥ 0, (S,), rounded up."""
    each = price[:, None]
    if norm == 1:
        terms = up(way * np.maximum(up(b - each), 0))
    else:
        over = np.maximum(up(b - down(2 * each * way)), 0)
        ends = up(up(over * way) + up(each * up(way * way)))
        four = 4 * each  # exact, unless it overflows
        divides = (four > 0) & np.isfinite(four)
        bow = np.where(divides, up(up(b * b) / np.where(divides, four, 1.0)), np.inf)
        terms = np.fmin(ends, bow)
    return np.asarray(up(price + up(terms.sum(-1) * (1 + rounding(b.shape[-1] + 2)))))


def _price_in_l1(b: Array, way: Array) -> Array:
    """The size of the number at which the ball is used up, the largest first; 0 if it is not."""
    order = np.argsort(-b, -1, kind="stable")
    used = np.cumsum(np.take_along_axis(way, order, -1), -1)
    at = np.minimum((used < 1).sum(-1), b.shape[-1] - 1)
    found = np.take_along_axis(np.take_along_axis(b, order, -1), at[:, None], -1)[:, 0]
    return np.where(used[:, -1] > 1, found, 0.0)


def _price_in_l2(b: Array, way: Array) -> Array:
    """λ with Σ min(e, b/(2λ))² = 1: numbers that would pass their ends stay there, and leave more to the others."""
    most = b.max(-1, keepdims=True)
    part = b / np.where((most > 0) & np.isfinite(most), most, 1.0)  # squares of small numbers vanish
    ended = np.zeros(b.shape, dtype=bool)
    square = np.square(part)
    price = np.sqrt(square.sum(-1)) / 2
    for _ in range(ROUNDS):
        new = ~ended & (part > 2 * price[:, None] * way)
        if not new.any():
            break
        ended |= new
        room = 1 - np.where(ended, np.square(way), 0.0).sum(-1)
        rest = np.where(ended, 0.0, square).sum(-1)
        price = np.where(room > 0, np.sqrt(rest / np.where(room > 0, room, 1.0)) / 2, price)
    return np.asarray(price * most[:, 0])
