"""Quadratic forms Σ_{i<j} q_ij ξ_i ξ_j over the cube |ξ_i| ≤ 1: how far they reach, and ellipsoids around rows of them.

With the symmetric matrix M, M_ij = q_ij/2, the sum is ξᵀMξ. For any floats r_i > 0 the cube lies in Σ ξ_i²/r_i² ≤ U,
U = Σ 1/r_i², so |ξᵀMξ| ≤ U ‖W‖ with W_ij = r_i M_ij r_j, in the spectral norm or in the larger one of Frobenius. Good
weights are 1/r_i² = |M_i|, the length of a row. For d forms at once, with the same weights,
  |η·q(ξ)|² ≤ U² Σ_{i<j} (η·q_ij)² r_i² r_j² / 2   for every η.

Coefficients are packed, (K, ...) with K = n(n−1)/2: (0, 1), (0, 2), …, (1, 2), …
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from ..rounding import MORE, TINY, Array, rounding

SQUARINGS = 3
"""The spectral norm is bounded by the 2^(SQUARINGS + 1)-norm of the eigenvalues."""
AT_ONCE = 1 << 22
"""Matrices are made of at most this many numbers at a time."""
LEAST = 1e-30
"""Of the lengths of rows, relative to the largest coefficient: every weight > 0 is sound."""
UNDERFLOW = 1e-240
"""More than the square of a relative coefficient loses by underflow, times weights of at most LEAST⁻²."""


@functools.lru_cache(maxsize=16)
def places(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and the second index of each packed pair."""
    first, second = np.triu_indices(n, 1)
    return first, second


def count(K: int) -> int:
    """n from K = n(n−1)/2."""
    return (1 + math.isqrt(1 + 8 * K)) // 2


@functools.lru_cache(maxsize=16)
def starts(n: int) -> NDArray[np.int64]:
    """Where the pairs with first index i begin, i = 0 … n − 1."""
    return np.concatenate([[0], np.cumsum(np.arange(n - 1, 0, -1))]).astype(np.int64)


def packed(full: Array) -> tuple[Array, Array]:
    """Coefficients (n, n, ...) of ξ_i ξ_j as those of i < j, (K, ...), each one sum, and those of ξ_i², (n, ...)."""
    first, second = places(full.shape[0])
    both = full[first, second] + full[second, first]
    return both, np.moveaxis(np.diagonal(full), -1, 0)


def outer(x: Array, y: Array) -> tuple[Array, Array]:
    """The product of Σ x_i ξ_i and Σ y_i ξ_i, (n, ...) each, packed: at most 2 roundings."""
    first, second = places(x.shape[0])
    return x[first] * y[second] + x[second] * y[first], x * y


def row_squares(squares: Array, n: int) -> Array:
    """Σ_j q_ij² for every i: packed (K, ...) → (n, ...)."""
    begin = starts(n)
    found = np.zeros((n, *squares.shape[1:]))
    found[: n - 1] = np.add.reduceat(squares, begin[: n - 1], axis=0)
    for i in range(n - 1):
        found[i + 1 :] += squares[begin[i] : begin[i + 1]]
    return found


def _relative(q: Array) -> tuple[Array, Array]:
    """The coefficients over the largest of each number, one rounding, and that one: (K, ...) → (K, ...), (...)."""
    most = np.abs(q).max(0)
    return q / np.where(most > 0, most, 1.0), most


def _weights(squares: Array) -> tuple[Array, Array]:
    """r from the squares of the lengths of rows (n, ...), and U at least, (...)."""
    r = 1 / np.sqrt(np.maximum(np.sqrt(squares) / 2, LEAST))
    return r, np.asarray((1 / (r * r)).sum(0) * MORE)


def frobenius(q: Array, n: int) -> Array:
    """|Σ q_ij ξ_i ξ_j| at most, by Frobenius norms: (K, ...) → (...)."""
    relative, most = _relative(q)
    squares = relative * relative
    r, U = _weights(row_squares(squares, n))
    first, second = places(n)
    weighted = (squares * np.square(r[first] * r[second])).sum(0)
    norm = np.sqrt(weighted / 2 + q.shape[0] * UNDERFLOW) * (1 + rounding(q.shape[0] + 12))
    return np.asarray(norm * U * most * MORE + q.shape[0] * TINY)


def spectral(q: Array, n: int) -> Array:
    """|Σ q_ij ξ_i ξ_j| at most, by spectral norms: (K, ...) → (...)."""
    flat = q.reshape(q.shape[0], -1)
    step = max(1, AT_ONCE // (n * n))
    parts = [_spectral(flat[:, i : i + step], n) for i in range(0, flat.shape[1], step)]
    return np.concatenate(parts).reshape(q.shape[1:])


def _spectral(q: Array, n: int) -> Array:
    relative, most = _relative(q)
    first, second = places(n)
    W = np.zeros((q.shape[1], n, n))
    W[:, first, second] = relative.T / 2
    W[:, second, first] = relative.T / 2
    r, U = _weights(np.square(W).sum(-1).T * 4)
    W *= r.T[:, :, None] * r.T[:, None, :]  # symmetric: the product of two floats does not depend on their order
    size = np.sqrt(np.square(W).sum((-2, -1))) * (1 + rounding(n * n))
    norm = symmetric_norm(W) + rounding(4) * size + n * math.sqrt(TINY)
    return np.asarray(norm * U * most * MORE + q.shape[0] * TINY)


def symmetric_norm(W: Array) -> Array:
    """The spectral norm, at most, of matrices (..., n, n) that are symmetric to the last bit: (...).

    With P ← P² a few times, ‖W‖^(2^k) ≤ ‖P‖_F + error. A computed P² is off by at most rounding(n)·‖P‖_F².
    """
    n = W.shape[-1]
    more = 1 + rounding(n * n + 4)
    size = np.sqrt(np.square(W).sum((-2, -1))) * more
    scale = np.ldexp(1.0, np.frexp(np.where((size > 0) & np.isfinite(size), size, 1.0))[1])  # powers of 2: exact
    P, error = W / scale[..., None, None], np.full(size.shape, n * n * TINY)
    for _ in range(SQUARINGS):
        length = np.sqrt(np.square(P).sum((-2, -1))) * more + n * math.sqrt(TINY)
        P = P @ P
        P = (P + np.swapaxes(P, -1, -2)) / 2
        error = (rounding(n + 4) * length * length + 2 * error * length + error * error + n * n * TINY) * MORE
    norm = np.sqrt(np.square(P).sum((-2, -1))) * more + n * math.sqrt(TINY) + error
    for _ in range(SQUARINGS):
        norm = np.sqrt(norm * MORE)
    return np.asarray(np.minimum(norm * scale * MORE, size + n * math.sqrt(TINY)))


def ellipse(q: Array, n: int) -> tuple[Array, Array]:
    """Of rows of d forms (K, rows..., d): columns (rows..., d, K) and a scale (rows...).

    For every η, |η·q(ξ)| ≤ scale · |ηᵀ columns| before the columns are rounded; each has passed at most 5 roundings.
    """
    most = np.abs(q).max((0, -1))
    relative = q / np.where(most > 0, most, 1.0)[..., None]
    r, U = _weights(row_squares(np.square(relative).sum(-1), n))
    first, second = places(n)
    weighted = np.moveaxis(relative * (r[first] * r[second] * math.sqrt(0.5))[..., None], 0, -1)
    return weighted, np.asarray(U * most * MORE + TINY)
