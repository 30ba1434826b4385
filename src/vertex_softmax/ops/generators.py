"""Generators of rows that are not affine in the input, and ellipsoids around them.

Invariant: for every input of the set a row is y = centre + G ξ + e with some |ξ_p| ≤ 1, the same for all rows, and
|e_d| ≤ error_d. The columns of G belong to the input and to the errors of single nonlinearities before the row. Any
linear functional of y, and the product of two such rows, is bounded far more tightly than by their boxes
(docs/method.md, section 8).

The ellipsoid. For weights u_p > 0 the cube lies in Σ u_p ξ_p² ≤ Σ u_p =: U, so with C = Σ_p g_p g_pᵀ / u_p
  |η·(y − centre)| ≤ √(U · ηᵀ C η)   (Cauchy–Schwarz),
and for a second row z with U', C': |(y − centre)·(z − centre')| ≤ √(U U' λ_max(C C')). Each e_d is one more column. The
weights are u_p = ‖g_p‖; columns of zeros are left out. With C = L Lᵀ, λ_max(C C') = λ_max(N Nᵀ) for N = Lᵀ L', and
λ_max(S) ≤ (tr Sᵖ)^{1/p} for a positive semidefinite S. (This is not applied to C C' itself: rounding moves the
eigenvalues of a matrix that is not symmetric by far more than its entries.)

Fitted ellipsoids. Any weights are sound. With u_p = |η₀·g_p| the bound √(U · ηᵀ C η) is the exact sum Σ_p |η·g_p| at
η = η₀, and nearly so around it. One such ellipsoid pays where many functionals are nearly the same.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops.interval import Interval

MOST_EXACT = 1 << 28
"""How many multiplications one call of functional_radius may use for exact sums, per input of the batch."""
MOST_KEPT = 1 << 22
"""Generators are stored for exact sums if they have at most this many numbers per input (32 MiB in float64)."""
LEAST_WEIGHT = 0.1
"""No weight of a fitted ellipsoid is below this share of its mean value, because functionals differ a little from
η₀."""
SQUARINGS = 4
"""λ_max is bounded by the p-norm of the eigenvalues, p = 2^SQUARINGS."""


class Generators(NamedTuple):
    """Generators of a node: each number is centre + columns·ξ + e with |ξ| ≤ 1 and |e| ≤ error."""

    centre: Tensor
    """(batch, *shape)"""
    columns: Tensor
    """(batch, *shape, P)"""
    error: Tensor
    """(batch, *shape)"""

    def box(self) -> Interval:
        """The range of every number."""
        radius = self.columns.abs().sum(-1) + self.error
        return Interval(self.centre - radius, self.centre + radius)

    def within(self, box: Interval) -> Generators:
        """The generators with numbers whose error alone is as wide as a box that contains them replaced by that box.

        Behind several norms errors grow by powers and may overflow, where the boxes stay small.
        """
        radius = box.radius
        lost = radius.isfinite() & ~(self.error < radius)  # also where the error is NaN
        return Generators(
            torch.where(lost, box.centre, self.centre),
            torch.where(lost.unsqueeze(-1), torch.zeros_like(self.columns), self.columns),
            torch.where(lost, radius, self.error),
        )

    def transposed(self) -> Generators:
        """The generators of the transposed matrix."""
        return Generators(self.centre.mT, self.columns.transpose(-3, -2), self.error.mT)


@dataclasses.dataclass(frozen=True, eq=False)
class Ellipsoid:
    """An ellipsoid around each row of (..., n, d): |η·(y − centre)|² ≤ size · ηᵀ shape η for every η."""

    centre: Tensor
    """(batch, ..., n, d)"""
    shape: Tensor
    """(batch, ..., n, d, d)"""
    size: Tensor
    """(batch, ..., n)"""
    rows: Generators | None
    """the generators of the rows, if these are small enough to store"""
    fitted: FittedEllipsoids | None = None
    """other ellipsoids of the same rows, fitted to some functionals"""


class FittedEllipsoids(NamedTuple):
    """Ellipsoids for pairs of functionals i and rows j: |η_i·(y_j − centre_j)|² ≤ size_ij · η_iᵀ shape_ij η_i."""

    shape: Tensor
    """(..., m, n, d, d), for a single input"""
    size: Tensor
    """(..., m, n)"""


def ellipsoid(rows: Generators) -> Ellipsoid:
    """The ellipsoids around the rows of (batch, ..., n, d)."""
    length: Tensor = torch.linalg.vector_norm(rows.columns, dim=-2)  # (batch, ..., n, P)
    scale = torch.where(length > 0, length, torch.ones_like(length))
    shape = (rows.columns / scale.unsqueeze(-2)) @ rows.columns.mT + torch.diag_embed(rows.error)
    size = length.sum(-1) + rows.error.sum(-1)
    kept = rows if rows.columns[0].numel() <= MOST_KEPT else None
    return Ellipsoid(centre=rows.centre, shape=raised(shape, length.shape[-1]), size=size, rows=kept)


def fitted(rows: Ellipsoid, eta: Tensor) -> Ellipsoid:
    """The ellipsoids of one input's rows (1, ..., n, d) with ones fitted to functionals η (..., m, d); unchanged
    without rows.
    """
    if rows.rows is None or rows.rows.columns.shape[0] != 1:
        return rows
    columns, error = rows.rows.columns[0], rows.rows.error[0]  # (..., n, d, P), (..., n, d)
    least = LEAST_WEIGHT * torch.linalg.vector_norm(eta, dim=-1, keepdim=True) / eta.shape[-1] ** 0.5  # (..., m, 1)
    least = torch.where(least > 0, least, torch.ones_like(least))
    shapes, sizes = [], []
    for j in range(columns.shape[-3]):  # one row at a time, for the memory's sake
        own, apart = columns[..., j, :, :], error[..., j, :].unsqueeze(-2)  # (..., d, P), (..., 1, d)
        weight = torch.maximum((eta @ own).abs(), least * torch.linalg.vector_norm(own, dim=-2).unsqueeze(-2))
        factor = torch.maximum(eta.abs(), least)  # of an error's own column: its weight is factor · error
        scale = torch.where(weight > 0, weight, torch.ones_like(weight))  # (..., m, P)
        shape = (own.unsqueeze(-3) / scale.unsqueeze(-2)) @ own.mT.unsqueeze(-3) + torch.diag_embed(apart / factor)
        shapes.append(raised(shape, own.shape[-1]))
        sizes.append(weight.sum(-1) + (factor * apart).sum(-1))
    made = FittedEllipsoids(torch.stack(shapes, -3), torch.stack(sizes, -1))
    fine = bool(made.shape.isfinite().all() & made.size.isfinite().all())
    return dataclasses.replace(rows, fitted=made) if fine else rows


def raised(shape: Tensor, count: int) -> Tensor:
    """C + ε tr(C) I: enough to cover the rounding of a sum of `count` columns, and of what is computed from it.

    The radii are square roots. Where η is orthogonal to all columns, or two rows are orthogonal, rounding may make ηᵀ C
    η negative, and too small by √ε.
    """
    share = (count + 8 * shape.shape[-1]) * torch.finfo(shape.dtype).eps
    return shape + torch.diag_embed((share * _trace(shape)).unsqueeze(-1).expand(shape.shape[:-1]))


def functional_radius(eta: Tensor, rows: Ellipsoid, exact: bool = False) -> Tensor:
    """A bound of |η_i · (y_j − centre_j)|: η (batch, S, ..., m, d) → (batch, S, ..., m, n).

    `exact`: the sum Σ_p |η·g_p| itself, if it is not too long; otherwise by the ellipsoid.
    """
    if exact and rows.rows is not None and eta.shape[1] * eta.shape[-2] * rows.rows.columns[0].numel() <= MOST_EXACT:
        columns = rows.rows.columns
        parts = []
        for j in range(columns.shape[-3]):  # one row at a time, for the memory's sake
            size: Tensor = torch.linalg.vector_norm(eta @ columns[..., j, :, :].unsqueeze(1), ord=1, dim=-1)
            parts.append(size + (eta.abs() * rows.rows.error[..., j, :].unsqueeze(1).unsqueeze(-2)).sum(-1))
        return torch.stack(parts, -1)
    # not 0: a root has no derivative there, and η = 0 must not make that of all else NaN
    tiny = torch.finfo(eta.dtype).tiny
    if rows.fitted is not None and eta.shape[-2] == rows.fitted.size.shape[-2]:
        return _fitted_squares(eta, rows.fitted.shape).clamp(min=tiny).sqrt() * rows.fitted.size.sqrt()
    square = squares(eta, rows.shape).clamp(min=tiny)
    return square.sqrt() * rows.size.sqrt().unsqueeze(1).unsqueeze(-2)


def _fitted_squares(eta: Tensor, shape: Tensor) -> Tensor:
    """ηᵢᵀ Cᵢⱼ ηᵢ: η (batch, S, ..., m, d), C (..., m, n, d, d) → (batch, S, ..., m, n)."""
    n, d = shape.shape[-3], shape.shape[-1]
    every = shape.movedim(-3, -2).flatten(-2)  # (..., m, d, n · d)
    tall = eta.flatten(0, 1).movedim(0, -2)  # (..., m, batch · S, d)
    found = ((tall @ every).unflatten(-1, (n, d)) * tall.unsqueeze(-2)).sum(-1)  # (..., m, batch · S, n)
    back: Tensor = found.movedim(-2, 0).unflatten(0, eta.shape[:2])
    return back


def squares(eta: Tensor, shape: Tensor) -> Tensor:
    """ηᵢᵀ Cⱼ ηᵢ: η (batch, S, ..., m, d), C (batch or 1, ..., n, d, d) → (batch, S, ..., m, n).

    One product of a tall matrix with all C beside each other, and not many small ones.
    """
    n, d = shape.shape[-3], shape.shape[-1]
    every = shape.movedim(-3, -2).flatten(-2)  # (batch or 1, ..., d, n · d)
    if shape.shape[0] == 1:  # then the batch is so many more objectives
        tall = eta.movedim((0, 1), (-4, -3))
        lead, every = 3, every[0]
    else:
        tall = eta.movedim(1, -3)
        lead = 2
    sizes = tall.shape[-1 - lead : -1]
    tall = tall.flatten(-1 - lead, -2)
    found = ((tall @ every).unflatten(-1, (n, d)) * tall.unsqueeze(-2)).sum(-1).unflatten(-2, sizes)
    back: Tensor = found.movedim((-4, -3), (0, 1)) if lead == 3 else found.movedim(-3, 1)
    return back


def product_radius(left: Ellipsoid, right: Ellipsoid) -> Tensor:
    """A bound of |(x_i − centre_i) · (y_j − centre_j)|, (batch, ..., n, m)."""
    cross = root(left.shape).mT.unsqueeze(-3) @ root(right.shape).unsqueeze(-4)  # (batch, ..., n, m, d, d)
    sizes = left.size.sqrt().unsqueeze(-1) * right.size.sqrt().unsqueeze(-2)
    return most_eigenvalue(cross @ cross.mT).sqrt() * sizes


def root(shape: Tensor) -> Tensor:
    """L with L Lᵀ at least C: its Cholesky factor, or √tr(C) I if there is none (C = 0)."""
    trace = _trace(shape)[..., None, None]
    factor, failed = torch.linalg.cholesky_ex(shape / torch.where(trace > 0, trace, torch.ones_like(trace)))
    eye = torch.eye(shape.shape[-1], dtype=shape.dtype, device=shape.device)
    return torch.where((failed != 0)[..., None, None], eye, factor) * trace.sqrt()


def most_eigenvalue(matrix: Tensor) -> Tensor:
    """A bound of the largest eigenvalue of a positive semidefinite matrix (..., d, d) → (...)."""
    trace = _trace(matrix)
    there = trace > 0
    # the largest is between 1/d and 1 of the trace: d^−16 and d^16 are beyond float32, d^−8 and d^8 are not
    scale = torch.where(there, trace, torch.ones_like(trace)) / matrix.shape[-1] ** 0.5
    power = matrix / scale[..., None, None]
    for _ in range(SQUARINGS - 1):
        power = power @ power
    found = (power * power.mT).sum((-2, -1)).clamp(min=0).pow(0.5**SQUARINGS) * scale
    return torch.where(there | trace.isnan(), found, torch.zeros_like(found))


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
