"""Zonotopes: y = centre + G ξ + e with |ξ_p| ≤ 1 and |e_d| ≤ error_d. What is linear in y, and products of two of them.

Functionals: |η·(y − centre)| ≤ Σ_p |η·g_p| + |η|·error. Where that sum is long, the ellipsoid: for weights u_p > 0,
U = Σ u_p and C = Σ g_p g_pᵀ / u_p, Cauchy and Schwarz give |η·G ξ| ≤ √U √(ηᵀ C η) ≤ √U |Lᵀ η| for any L with
C ≤ L Lᵀ (as quadratic forms); each error_d is one more column. For a second such row, |(y − c)·(z − c')| ≤ √(U U')
‖Lᵀ L'‖, the spectral norm, and for orthogonal matrices P, Q ‖N‖ = ‖Pᵀ N Q‖ ≤ √(largest row sum · largest column sum):
with the singular vectors that is ‖N‖ itself. P that is orthogonal only nearly, ‖PᵀP − I‖ ≤ δ < 1, costs 1/√(1 − δ).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .file import Rejected
from .rounding import MORE, TINY, Array, Interval, product, rounding

MOST_SHAPES = 1 << 25
"""Numbers in the matrices of a node's ellipsoids."""
UNDERFLOW = 1e-150
"""At least what the root of a sum of squares loses when they underflow."""


class Zonotope(NamedTuple):
    """Of every number of a node, (*shape), columns (*shape, P). `exact`: columns of the input alone."""

    centre: Array
    columns: Array
    error: Array
    exact: bool

    def turned(self) -> Zonotope:
        """Of the transposed matrix."""
        return Zonotope(
            self.centre.swapaxes(-1, -2), self.columns.swapaxes(-3, -2), self.error.swapaxes(-1, -2), self.exact
        )

    def box(self) -> Interval:
        """The range of every number."""
        count = self.columns.shape[-1]
        reach = (np.abs(self.columns).sum(-1) + self.error) * (1 + rounding(count + 2)) + TINY
        return Interval(self.centre) + Interval(-reach, reach)


class Ellipsoid(NamedTuple):
    """Of rows (..., n, d): |η·(y − centre)| ≤ root · |Lᵀ η|; L (..., n, d, d), root (..., n)."""

    centre: Array
    L: Array
    root: Array


def ellipsoid(rows: Zonotope) -> Ellipsoid:
    """Around the rows of (..., n, d)."""
    d, count = rows.columns.shape[-2:]
    if rows.centre.size * d > MOST_SHAPES:
        raise Rejected(f"ellipsoids of {rows.centre.size // d} rows of {d} numbers are too large")
    u = np.sqrt((rows.columns**2).sum(-2))  # any numbers > 0 will do
    large = u > 1e-140 * (1 + u.max(initial=0.0))
    g = np.where(large[..., None, :], rows.columns, 0.0)
    error = (rows.error + np.abs(rows.columns - g).sum(-1)) * (1 + rounding(count + 2))
    u = np.where(large, u, 1.0)
    C = (g / u[..., None, :]) @ np.swapaxes(g, -1, -2)
    C[..., range(d), range(d)] += error
    trace = np.trace(C, axis1=-2, axis2=-1) * (1 + rounding(count + d))
    # |C − exact| ≤ rounding · √(C_aa C_bb) by Cauchy and Schwarz: at most rounding · trace, as a form. L is a factor of
    # a little more than C, and what is asked of it, L Lᵀ − C ≥ rounding · trace, is compared by Gershgorin's circles
    lift = (2 * rounding(count + 4) + 8 * d * rounding(d + 4)) * trace + TINY
    eye = np.eye(d)
    try:
        L = np.linalg.cholesky(C + lift[..., None, None] * eye)
    except np.linalg.LinAlgError:  # then the trace will do
        L = np.zeros_like(C)
    residual = product(Interval(L), Interval(np.swapaxes(L, -1, -2))) - C
    spare = residual.lo[..., range(d), range(d)] - (residual.size * (1 - eye)).sum(-1) * (1 + rounding(d))  # Gershgorin
    fine = (spare >= rounding(count + 4) * trace[..., None]).all(-1)
    L = np.where(fine[..., None, None], L, np.sqrt(trace * MORE)[..., None, None] * eye * MORE)
    size = np.where(large, u, 0.0).sum(-1) + error.sum(-1)
    return Ellipsoid(rows.centre, L, np.sqrt(size * (1 + rounding(count + d + 2))) * MORE)


def by_ellipsoid(eta: Array, rows: Ellipsoid) -> Array:
    """At least |η_i·(y_j − centre_j)|: η (S, ..., m, d) → (S, ..., m, n)."""
    n, d = rows.L.shape[-3:-1]
    wide = np.moveaxis(rows.L, -3, -2)  # (..., d, n, d)
    turned = (eta @ wide.reshape(*wide.shape[:-3], d, n * d)).reshape(*eta.shape[:-1], n, d)
    length = np.sqrt((turned**2).sum(-1)) * (1 + rounding(d + 4))
    norm = np.sqrt((rows.L**2).sum((-2, -1)))[..., None, :]
    size = np.sqrt((eta**2).sum(-1))[..., None] * norm + UNDERFLOW * (1 + norm)
    return np.asarray((length + rounding(d + 4) * size + UNDERFLOW) * rows.root[..., None, :] * MORE)


def by_columns(eta: Array, rows: Zonotope) -> Array:
    """The same by the whole sums."""
    n, d, count = rows.columns.shape[-3:]
    found = np.empty((*eta.shape[:-1], n))
    size = np.abs(eta)
    for j in range(n):
        G = rows.columns[..., j, :, :]
        used = (G != 0).any(tuple(range(G.ndim - 1)))
        G = G[..., used]
        lost = rounding(d) * (size @ np.abs(G).sum(-1, keepdims=True))[..., 0] + TINY * (count + d)
        found[..., j] = np.abs(eta @ G).sum(-1) + (size @ rows.error[..., j, :, None])[..., 0] + lost
    return np.asarray(found * (1 + rounding(count + 2 * d + 4)))


def products(x: Zonotope, y: Zonotope) -> Array:
    """At least |(x_i − centre_i)·(y_j − centre_j)|: rows of (..., n, d) and (..., m, d) → (..., n, m)."""
    left, right = ellipsoid(x), ellipsoid(y)
    N = np.swapaxes(left.L, -1, -2)[..., :, None, :, :] @ right.L[..., None, :, :, :]
    size = np.sqrt((left.L**2).sum((-2, -1)))[..., :, None] * np.sqrt((right.L**2).sum((-2, -1)))[..., None, :]
    norm = spectral(N) + rounding(N.shape[-1] + 4) * size  # N itself was rounded
    return np.asarray(norm * left.root[..., :, None] * right.root[..., None, :] * MORE + TINY)


def spectral(N: Array) -> Array:
    """At least the spectral norm of matrices (..., d, d)."""
    P, _, Q = np.linalg.svd(N)
    Pt, Qt = np.swapaxes(P, -1, -2), np.swapaxes(Q, -1, -2)
    T = product(product(Interval(Pt), Interval(N)), Interval(Qt)).size
    norm = np.sqrt(T.sum(-1).max(-1)) * np.sqrt(T.sum(-2).max(-1)) * (1 + rounding(N.shape[-1]))
    for factor, turned in ((Pt, P), (Q, Qt)):  # both have orthonormal rows, nearly
        off = (product(Interval(factor), Interval(turned)) - np.eye(N.shape[-1])).size.sum(-1).max(-1) * (
            1 + rounding(N.shape[-1])
        )
        norm = np.where(off < 0.5, norm * (1 + off), np.inf)  # 1/√(1 − δ) ≤ 1 + δ for δ ≤ 1/2
    return np.asarray(norm * MORE)


def exact_products(x: Zonotope, y: Zonotope) -> tuple[Array, Array]:
    """The same for rows with columns of the input alone, M = Gᵀ G': Σ_pq |M_pq|, (..., n, m), with errors twice.

    And Σ_q |M_pq| + Σ_q |M_qp| for every input p, (..., n, m, P), to rounding.
    """
    lead, (n, d), m, P = x.centre.shape[:-2], x.centre.shape[-2:], y.centre.shape[-2], x.columns.shape[-1]
    found, sums = np.empty((*lead, n, m)), np.zeros((*lead, n, m, P))
    for at in np.ndindex(*lead):
        used = [[np.flatnonzero((row != 0).any(0)) for row in z.columns[at]] for z in (x, y)]
        for i, j in np.ndindex(n, m):
            p, q = used[0][i], used[1][j]
            G, H = x.columns[at][i][:, p], y.columns[at][j][:, q]
            M = np.abs(G.T @ H)
            sums[(*at, i, j)][p] += M.sum(1)
            sums[(*at, i, j)][q] += M.sum(0)
            reach, end = np.abs(G).sum(-1), np.abs(H).sum(-1) + y.error[at][j]
            errors = 2 * (reach @ y.error[at][j] + x.error[at][i] @ end)
            lost = rounding(d) * (reach @ end) + TINY * (M.size + d)
            found[(*at, i, j)] = (M.sum() + errors + lost) * (1 + rounding(M.size + 2 * d))
    return found, sums


__all__ = ["Ellipsoid", "Zonotope", "by_columns", "by_ellipsoid", "ellipsoid", "exact_products", "products", "spectral"]
