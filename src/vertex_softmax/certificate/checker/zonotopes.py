"""Zonotopes y = centre + G ξ + e with |ξ_p| ≤ 1, |e_d| ≤ error_d: bounds of linear functions and of products of rows.

Some columns may be together in a ball, |ξ|₂ ≤ 1 (unknowns.py), which is inside the cube: what holds for the cube holds.

Functionals: |η·(y − centre)| ≤ Σ_p |η·g_p| + |η|·error. Where that sum is long, an ellipsoid: for weights u_p > 0,
U = Σ u_p and C = Σ g_p g_pᵀ / u_p, Cauchy and Schwarz give |η·G ξ| ≤ √U √(ηᵀ C η) ≤ √U |Lᵀ η| for any L with
C ≤ L Lᵀ (as quadratic forms); each error_d is one more column. The columns of a ball have one weight, which counts once
in U: Σ u_p ξ_p² ≤ U. For a second such row, |(y − c)·(z − c')| ≤ √(U U') ‖Lᵀ L'‖, the spectral norm, and for orthogonal
matrices P, Q ‖N‖ = ‖Pᵀ N Q‖ ≤ √(largest row sum · largest column sum): with the singular vectors that is ‖N‖ itself. P
that is orthogonal only nearly, ‖PᵀP − I‖ ≤ δ < 1, costs 1/√(1 − δ).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .file import Rejected
from .rounding import MORE, TINY, Array, ProvedInterval, product, rounding
from .unknowns import BallOfColumns, kept, more_roundings, reach

MOST_SHAPES = 1 << 25
"""The most numbers in the matrices of one node's ellipsoids."""
AT_ONCE = 1 << 24
"""About how many products with columns are known at a time."""
SOME_ROWS = 64
"""How many entries' columns are handled at a time."""
UNDERFLOW = 1e-150
"""At least what the root of a sum of squares loses when the squares underflow."""


class UsedRow(NamedTuple):
    """The columns of a row that are not 0, (..., d, P); their balls; and the sums of their sizes, (..., d, 1)."""

    columns: Array
    balls: tuple[BallOfColumns, ...]
    total: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class ProvedZonotope:
    """Every entry of a node is centre + columns · ξ + e with |ξ_p| ≤ 1, the same ξ for all entries, and |e| ≤ error."""

    centre: Array
    """(*shape)"""
    columns: Array
    """(*shape, P): the generators"""
    error: Array
    """(*shape)"""
    exact: bool
    """whether every generator is a multiple of one input's deviation, so that ξ are the inputs of the network"""
    balls: tuple[BallOfColumns, ...] = ()
    """which columns are together in a ball (unknowns.py): then the sum of their ξ² is at most 1"""
    unknowns: object = field(default_factory=object)
    """whose unknowns ξ these are: zonotopes with the same object have the same ξ, column by column"""

    def transposed(self) -> ProvedZonotope:
        """The zonotope of the transposed matrix: the last two dimensions of the shape are exchanged."""
        return ProvedZonotope(
            centre=self.centre.swapaxes(-1, -2),
            columns=self.columns.swapaxes(-3, -2),
            error=self.error.swapaxes(-1, -2),
            exact=self.exact,
            balls=self.balls,
        )

    def at(self, index: tuple[int, ...]) -> ProvedZonotope:
        """That of the entries at an index, of the same unknowns."""
        if index not in self._at:
            self._at[index] = ProvedZonotope(
                centre=self.centre[index],
                columns=self.columns[index],
                error=self.error[index],
                exact=self.exact,
                balls=self.balls,
            )
        return self._at[index]

    @functools.cached_property
    def _at(self) -> dict[tuple[int, ...], ProvedZonotope]:
        return {}

    @functools.cached_property
    def used_rows(self) -> list[UsedRow]:
        """For each of the n rows of shape (..., n, d), and all before it at once: the columns that are not 0."""
        found = []
        for j in range(self.columns.shape[-3]):
            G = self.columns[..., j, :, :]
            used = (G != 0).any(tuple(range(G.ndim - 1)))
            G = G if used.all() else G[..., used]
            found.append(UsedRow(G, kept(self.balls, used), np.abs(G).sum(-1, keepdims=True)))
        return found

    @functools.cached_property
    def sizes(self) -> Array:
        """At least |centre| + Σ_p |columns_p| of every entry, (*shape)."""
        total = self._reach(()) + np.abs(self.centre)
        return np.asarray(total * more_roundings(self.columns.shape[-1]))

    def _reach(self, balls: tuple[BallOfColumns, ...]) -> Array:
        """`reach` of every entry, of some at a time for the sake of the memory; (*shape)."""
        flat = self.columns.reshape(self.centre.size, -1)
        parts = [reach(flat[i : i + SOME_ROWS], balls) for i in range(0, len(flat), SOME_ROWS)]
        return np.concatenate(parts).reshape(self.centre.shape)

    def box(self) -> ProvedInterval:
        """The range of every entry, (*shape)."""
        far = (self._reach(self.balls) + self.error) * more_roundings(self.columns.shape[-1]) + TINY
        return ProvedInterval(self.centre) + ProvedInterval(-far, far)


class CheckedEllipsoid(NamedTuple):
    """An ellipsoid around each row y of a node (..., n, d): |η·(y − centre)| ≤ root · |Lᵀ η| for every η."""

    centre: Array
    """(..., n, d)"""
    L: Array
    """(..., n, d, d)"""
    root: Array
    """(..., n)"""

    def at(self, index: tuple[int, ...]) -> CheckedEllipsoid:
        """Those of the rows at an index of what is before them."""
        return CheckedEllipsoid(self.centre[index], self.L[index], self.root[index])


def ellipsoid(rows: ProvedZonotope) -> CheckedEllipsoid:
    """The ellipsoids around the rows of a zonotope of shape (..., n, d)."""
    d, count = rows.columns.shape[-2:]
    if rows.centre.size * d > MOST_SHAPES:
        raise Rejected(f"ellipsoids of {rows.centre.size // d} rows of {d} numbers are too large")
    u = np.empty((*rows.centre.shape[:-1], count))
    for index in np.ndindex(*u.shape[:-1]):  # one row at a time, for the sake of the memory; any numbers > 0 will do
        u[index] = np.sqrt((rows.columns[index] ** 2).sum(-2))
    shared = np.ones(count)
    for ball in rows.balls:  # one weight for all of its columns: Σ u ξ² ≤ u; and it counts once
        u[..., ball.places] = np.sqrt(np.square(u[..., ball.places]).sum(-1, keepdims=True))
        shared[ball.places] = 1 / len(ball.places)
    large = u > 1e-140 * (1 + u.max(initial=0.0))
    g, error = rows.columns, rows.error * (1 + rounding(count + 2))
    if not large.all() and (~large & rows.columns.any(-2)).any():  # columns without a weight are errors
        g = np.where(large[..., None, :], rows.columns, 0.0)
        error = (rows.error + np.abs(rows.columns - g).sum(-1)) * (1 + rounding(count + 2))
    u = np.where(large, u, 1.0)
    C = np.empty((*rows.centre.shape, d))
    for index in np.ndindex(*u.shape[:-1]):
        C[index] = (g[index] / u[index]) @ g[index].T
    C[..., range(d), range(d)] += error
    size = np.where(large, u * shared, 0.0).sum(-1) + error.sum(-1)
    return CheckedEllipsoid(rows.centre, factor(C, count), np.sqrt(size * (1 + rounding(count + d + 2))) * MORE)


def factor(C: Array, count: int) -> Array:
    """L with M ≤ L Lᵀ, as quadratic forms, where C (..., d, d) is M but for rounding.

    M is a sum of `count` matrices of the form v vᵀ/u and a diagonal ≥ 0; of their numbers, none has passed through more
    than count + 4 roundings.
    """
    d = C.shape[-1]
    trace = np.trace(C, axis1=-2, axis2=-1) * (1 + rounding(count + d))
    # |C − M| ≤ rounding · √(C_aa C_bb) by Cauchy and Schwarz: at most rounding · trace, as a form. L is a factor of
    # a little more than C, and the condition L Lᵀ − C ≥ rounding · trace is checked by Gershgorin's circles.
    lift = (2 * rounding(count + 4) + 8 * d * rounding(d + 4)) * trace + TINY
    eye = np.eye(d)
    try:
        L = np.linalg.cholesky(C + lift[..., None, None] * eye)
    except np.linalg.LinAlgError:  # the multiple of the identity below is used instead
        L = np.zeros_like(C)
    residual = product(ProvedInterval(L), ProvedInterval(np.swapaxes(L, -1, -2))) - C
    spare = residual.lo[..., range(d), range(d)] - (residual.size * (1 - eye)).sum(-1) * (1 + rounding(d))  # Gershgorin
    valid = (spare >= rounding(count + 4) * trace[..., None]).all(-1)
    return np.asarray(np.where(valid[..., None, None], L, np.sqrt(trace * MORE)[..., None, None] * eye * MORE))


def by_ellipsoid(eta: Array, rows: CheckedEllipsoid) -> Array:
    """An upper bound of |η_i·(y_j − centre_j)| by the ellipsoids: η (S, ..., m, d) → (S, ..., m, n)."""
    n, d = rows.L.shape[-3:-1]
    wide = np.moveaxis(rows.L, -3, -2)  # (..., d, n, d)
    turned = (eta @ wide.reshape(*wide.shape[:-3], d, n * d)).reshape(*eta.shape[:-1], n, d)
    length = np.sqrt(np.einsum("...d,...d->...", turned, turned)) * (1 + rounding(d + 4))
    norm = np.sqrt((rows.L**2).sum((-2, -1)))[..., None, :]
    size = np.sqrt((eta**2).sum(-1))[..., None] * norm + UNDERFLOW * (1 + norm)
    return np.asarray((length + rounding(d + 4) * size + UNDERFLOW) * rows.root[..., None, :] * MORE)


def by_columns(eta: Array, rows: ProvedZonotope) -> Array:
    """An upper bound of |η_i·(y_j − centre_j)| by the sums over all columns: η (S, ..., m, d) → (S, ..., m, n)."""
    n, d, count = rows.columns.shape[-3:]
    some = max(1, AT_ONCE * len(eta) * d // max(1, eta.size * count))
    if some < len(eta):
        return np.concatenate([by_columns(eta[i : i + some], rows) for i in range(0, len(eta), some)])
    bound = np.empty((*eta.shape[:-1], n))
    size = np.abs(eta)
    for j, (G, of, total) in enumerate(rows.used_rows):
        lost = rounding(d) * (size @ total)[..., 0] + TINY * (count + d)
        bound[..., j] = reach(eta @ G, of) + (size @ rows.error[..., j, :, None])[..., 0] + lost
    return np.asarray(bound * more_roundings(count + d))


def used_columns(rows: ProvedZonotope) -> int:
    """How many columns of rows (..., n, d) are not 0, counted for each of the n rows, and for all before it at once."""
    return sum(G.shape[-1] for G, _, _ in rows.used_rows)


def products(x: ProvedZonotope, y: ProvedZonotope) -> Array:
    """An upper bound of |(x_i − centre_i)·(y_j − centre_j)| by ellipsoids: (..., n, d), (..., m, d) → (..., n, m)."""
    left, right = ellipsoid(x), ellipsoid(y)
    N = np.swapaxes(left.L, -1, -2)[..., :, None, :, :] @ right.L[..., None, :, :, :]
    size = np.sqrt((left.L**2).sum((-2, -1)))[..., :, None] * np.sqrt((right.L**2).sum((-2, -1)))[..., None, :]
    norm = spectral(N) + rounding(N.shape[-1] + 4) * size  # N itself was rounded
    return np.asarray(norm * left.root[..., :, None] * right.root[..., None, :] * MORE + TINY)


def spectral(N: Array) -> Array:
    """An upper bound of the spectral norm of matrices (..., d, d) → (...)."""
    P, _, Q = np.linalg.svd(N)
    Pt, Qt = np.swapaxes(P, -1, -2), np.swapaxes(Q, -1, -2)
    T = product(product(ProvedInterval(Pt), ProvedInterval(N)), ProvedInterval(Qt)).size
    norm = np.sqrt(T.sum(-1).max(-1)) * np.sqrt(T.sum(-2).max(-1)) * (1 + rounding(N.shape[-1]))
    for factor, turned in ((Pt, P), (Q, Qt)):  # both have orthonormal rows, nearly
        off = (product(ProvedInterval(factor), ProvedInterval(turned)) - np.eye(N.shape[-1])).size.sum(-1).max(-1) * (
            1 + rounding(N.shape[-1])
        )
        norm = np.where(off < 0.5, norm * (1 + off), np.inf)  # 1/√(1 − δ) ≤ 1 + δ for δ ≤ 1/2
    return np.asarray(norm * MORE)


def exact_products(x: ProvedZonotope, y: ProvedZonotope) -> tuple[Array, Array]:
    """Bounds of products of rows of two `exact` zonotopes (..., n, d) and (..., m, d), with M = Gᵀ G' for each pair.

    The first result, (..., n, m), is an upper bound of Σ_pq |M_pq| plus twice the terms with the errors. The second,
    (..., n, m, P), is Σ_q |M_pq| + Σ_q |M_qp| for every input p, up to rounding.
    """
    lead, (n, d), m, P = x.centre.shape[:-2], x.centre.shape[-2:], y.centre.shape[-2], x.columns.shape[-1]
    bound, sums = np.empty((*lead, n, m)), np.zeros((*lead, n, m, P))
    for index in np.ndindex(*lead):
        used = [[np.flatnonzero((row != 0).any(0)) for row in z.columns[index]] for z in (x, y)]
        for i, j in np.ndindex(n, m):
            used_x, used_y = used[0][i], used[1][j]
            G, H = x.columns[index][i][:, used_x], y.columns[index][j][:, used_y]
            M = G.T @ H
            np.abs(M, out=M)
            each = M.sum(1)
            sums[(*index, i, j)][used_x] += each
            sums[(*index, i, j)][used_y] += np.ones(len(M)) @ M
            reach, end = np.abs(G).sum(-1), np.abs(H).sum(-1) + y.error[index][j]
            errors = 2 * (reach @ y.error[index][j] + x.error[index][i] @ end)
            lost = rounding(d) * (reach @ end) + TINY * (M.size + d)
            bound[(*index, i, j)] = (each.sum() + errors + lost) * (1 + rounding(M.size + 2 * d))
    return bound, sums


__all__ = [
    "CheckedEllipsoid",
    "ProvedZonotope",
    "by_columns",
    "by_ellipsoid",
    "ellipsoid",
    "exact_products",
    "factor",
    "products",
    "spectral",
    "used_columns",
]
