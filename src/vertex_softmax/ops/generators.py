"""Rows that are no longer affine in the input: generators, and the ellipsoids around them.

A row y = centre + G ξ + e with |ξ_p| ≤ 1 and |e_d| ≤ error_d: columns for the inputs and for what single nonlinearities
on the way add, the same ξ_p in every row; and an error of its own. Whatever is linear in y, or a product of two such
rows, is bounded far below what the boxes give (METHOD.md section 8).

The ellipsoid. For weights u_p > 0 the cube lies in Σ u_p ξ_p² ≤ Σ u_p =: U, so with C = Σ_p g_p g_pᵀ / u_p
  |η·(y − centre)| ≤ √(U · ηᵀ C η)   (Cauchy–Schwarz),
and for a second row z with U', C': |(y − centre)·(z − centre')| ≤ √(U U' λ_max(C C')). Each e_d is one more column.
Weights u_p = ‖g_p‖; a column of zeros is left out. λ_max(C C') ≤ (tr (C C')^p)^{1/p}: C C' has the eigenvalues of the
positive semidefinite C'^{1/2} C C'^{1/2}, all ≥ 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops.registry import Interval

SQUARINGS = 4
"""λ_max is bounded by the p-norm of the eigenvalues, p = 2^SQUARINGS."""


class Generators(NamedTuple):
    """Every number of a node: centre + columns·ξ + e, |ξ| ≤ 1, |e| ≤ error."""

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

    def turned(self) -> Generators:
        """Of the transposed matrix."""
        return Generators(self.centre.mT, self.columns.transpose(-3, -2), self.error.mT)


class Ellipsoid(NamedTuple):
    """Of each row (..., n, d): |η·(y − centre)|² ≤ size · ηᵀ shape η."""

    centre: Tensor
    """(batch, ..., n, d)"""
    shape: Tensor
    """(batch, ..., n, d, d)"""
    size: Tensor
    """(batch, ..., n)"""


def ellipsoid(rows: Generators) -> Ellipsoid:
    """Around the rows of (batch, ..., n, d)."""
    length: Tensor = torch.linalg.vector_norm(rows.columns, dim=-2)  # (batch, ..., n, P)
    scale = torch.where(length > 0, length, torch.ones_like(length))
    shape = (rows.columns / scale.unsqueeze(-2)) @ rows.columns.mT + torch.diag_embed(rows.error)
    return Ellipsoid(rows.centre, raised(shape, length.shape[-1]), length.sum(-1) + rows.error.sum(-1))


def raised(shape: Tensor, count: int) -> Tensor:
    """C + ε tr(C) I, more than rounding takes off a sum of `count` columns and off what is made of it.

    The radii are square roots: where η is orthogonal to all columns, or two rows are to each other, what rounding
    leaves of ηᵀCη or of C C' may be negative, and by √ε too small.
    """
    d = shape.shape[-1]
    share = (count + 8 * d) * torch.finfo(shape.dtype).eps
    return shape + torch.diag_embed(
        (share * shape.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)).expand(shape.shape[:-1])
    )


def functional_radius(eta: Tensor, rows: Ellipsoid) -> Tensor:
    """A bound of |η_i · (y_j − centre_j)|: η (batch, S, ..., m, d) → (batch, S, ..., m, n)."""
    square = (eta.unsqueeze(-3) @ rows.shape.unsqueeze(1) * eta.unsqueeze(-3)).sum(-1)  # (batch, S, ..., n, m)
    return (square.clamp(min=0) * rows.size.unsqueeze(1).unsqueeze(-1)).sqrt().mT


def product_radius(left: Ellipsoid, right: Ellipsoid) -> Tensor:
    """A bound of |(x_i − centre_i) · (y_j − centre_j)|, (batch, ..., n, m)."""
    product = left.shape.unsqueeze(-3) @ right.shape.unsqueeze(-4)  # (batch, ..., n, m, d, d)
    return (most_eigenvalue(product) * left.size.unsqueeze(-1) * right.size.unsqueeze(-2)).sqrt()


def most_eigenvalue(product: Tensor) -> Tensor:
    """A bound of the largest eigenvalue of a product of two positive semidefinite matrices (..., d, d) → (...)."""
    trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)
    there = trace > 0
    # the largest is between 1/d and 1 of the trace: d^−16 and d^16 are beyond float32, d^−8 and d^8 are not
    scale = torch.where(there, trace, torch.ones_like(trace)) / product.shape[-1] ** 0.5
    power = product / scale[..., None, None]
    for _ in range(SQUARINGS - 1):
        power = power @ power
    last = (power * power.mT).sum((-2, -1)).clamp(min=0)  # the trace of the square
    found = last.pow(0.5**SQUARINGS) * scale
    return torch.where(there, found, torch.zeros_like(found))
