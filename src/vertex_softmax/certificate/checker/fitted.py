"""Fitted ellipsoids: one for each functional and each row of a zonotope, nearly as tight as the sum over all columns.

zonotopes.py has |η·G ξ| ≤ √U √(ηᵀ C η) for any weights u_p > 0, U = Σ u_p and C = Σ g_p g_pᵀ / u_p; and each error is
one more column, for which any weight > 0 will do as well. With u_p = |η₀·g_p| the bound is Σ |η·g_p| itself at η = η₀,
and nearly so around it. So where a pass has functionals η_i that are nearly known before, each has its own weights. The
η₀ come from the file: they decide how tight the bounds are, and nothing else.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .file import Rejected
from .rounding import MORE, TINY, Array, rounding
from .zonotopes import MOST_SHAPES, UNDERFLOW, ProvedZonotope, factor

LEAST_WEIGHT = 0.1
"""No weight is below this share of what it is in the mean: functionals differ a little from η₀."""
AT_ONCE = 1 << 23
"""About how many numbers are handled at once."""


class CheckedFits(NamedTuple):
    """For functionals i and rows y_j: |η_i·(y_j − centre_j)| ≤ root_ij · |L_ijᵀ η_i| for every η_i."""

    L: Array
    """(..., m, n, d, d)"""
    root: Array
    """(..., m, n)"""


def fitted(rows: ProvedZonotope, eta: Array) -> CheckedFits:
    """Around the rows of a zonotope (..., n, d), fitted to functionals (..., m, d)."""
    n, d = rows.centre.shape[-2:]
    if eta.size * n * d > MOST_SHAPES:
        raise Rejected(f"fitted ellipsoids of {n} rows of {d} numbers, and {eta.size // d} functionals, are too large")
    eta, least = _of_length_one(eta), LEAST_WEIGHT / math.sqrt(d)
    m, lead = eta.shape[-2], eta.shape[:-2]
    L, root = np.empty((*lead, m, n, d, d)), np.empty((*lead, m, n))
    for j in range(n):  # one row and a few functionals at a time, for the memory's sake
        step = max(1, AT_ONCE * m // max(1, eta.size * rows.used_rows[j].columns.shape[-1]))
        for i in range(0, m, step):
            some = (..., slice(i, i + step), slice(None))
            L[..., i : i + step, j, :, :], root[..., i : i + step, j] = _around(rows, j, eta[some], least)
    return CheckedFits(L, root)


def _of_length_one(eta: Array) -> Array:
    """The functionals η₀ (..., m, d), of length 1 but for rounding; those that are 0 stay so.

    So every weight is between 0.1/√d and 1 of the length of its column, and neither U nor C underflows where the
    columns are of a size for which an ellipsoid is made at all.
    """
    largest = np.abs(eta).max(-1, keepdims=True)
    eta = eta / np.where(largest > 0, largest, 1.0)
    length = np.sqrt(np.square(eta).sum(-1, keepdims=True))
    return np.asarray(eta / np.where(length > 0, length, 1.0))


def _around(rows: ProvedZonotope, j: int, eta: Array, least: float) -> tuple[Array, Array]:
    """L (..., m, d, d) and the root (..., m) of the ellipsoids around row j; no weight is below this share."""
    (columns, balls, _), error = rows.used_rows[j], rows.error[..., None, j, :]  # (..., d, P), (..., 1, d)
    d, count = columns.shape[-2:]
    u = np.maximum(np.abs(eta @ columns), least * np.sqrt(np.square(columns).sum(-2))[..., None, :])  # (..., m, P)
    shared = np.ones(count)
    for ball in balls:  # one weight for all of its columns: Σ u ξ² ≤ u; and it counts once
        u[..., ball.places] = np.sqrt(np.square(u[..., ball.places]).sum(-1, keepdims=True))
        shared[ball.places] = 1 / len(ball.places)
    large = u > 1e-140 * (1 + u.max(-1, keepdims=True, initial=0.0))
    g = columns[..., None, :, :]  # (..., m or 1, d, P)
    if not large.all():  # columns without a weight are errors
        u = np.where(large, u, 1.0)
        g = np.where(large[..., None, :], g, 0.0)
        rest = np.abs(columns[..., None, :, :] - g).sum(-1)
        error = (error + rest) * (1 + rounding(count + 2))
    C = (g / u[..., None, :]) @ np.swapaxes(g, -1, -2)
    weight = np.maximum(np.abs(eta), least)  # of an error's own column: its u is weight · error
    C[..., range(d), range(d)] += error / weight
    size = np.where(large, u * shared, 0.0).sum(-1) + (weight * error).sum(-1)
    return factor(C, count), np.sqrt(size * (1 + rounding(count + d + 4)) + TINY * (count + d)) * MORE


def by_fitted(eta: Array, rows: CheckedFits) -> Array:
    """An upper bound of |η_i·(y_j − centre_j)|: η (S, ..., m, d) → (S, ..., m, n)."""
    n, d = rows.L.shape[-3:-1]
    wide = np.moveaxis(rows.L, -3, -2)  # (..., m, d, n, d)
    tall = np.moveaxis(eta, 0, -2)  # (..., m, S, d)
    turned = (tall @ wide.reshape(*wide.shape[:-2], n * d)).reshape(*tall.shape[:-1], n, d)
    length = np.sqrt(np.einsum("...d,...d->...", turned, turned)) * (1 + rounding(d + 4))
    norm = np.sqrt(np.square(rows.L).sum((-2, -1)))[..., None, :]  # (..., m, 1, n)
    size = np.sqrt(np.square(tall).sum(-1))[..., None] * norm + UNDERFLOW * (1 + norm)
    bound = (length + rounding(d + 4) * size + UNDERFLOW) * rows.root[..., None, :] * MORE
    return np.asarray(np.moveaxis(bound, -2, 0))


__all__ = ["CheckedFits", "by_fitted", "fitted"]
