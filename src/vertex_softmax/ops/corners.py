"""A product of two rows that are affine in the input, below by a plane that touches it at a corner of one's choice.

With x_i = x_c + G ξ and y_j = y_c + H ζ, the product is affine but for Σ_pq M_pq ξ_p ζ_q, M = Gᵀ H. For x, y and τ in
[−1, 1] and a sign s, s x y ≥ τ (x + s y) − 1 (at τ = ±1 it is (1 ∓ x)(1 ∓ s y) ≥ 0; between, a mix of the two). So
  a M_pq ξ_p ζ_q ≥ |a M_pq| r_p r_q (τ_pq (ξ_p/r_p + s ζ_q/r_q) − 1), s the sign of a M_pq:
the constant is that of the plane at the centre, the slopes are free. Taking τ_pq = (σ_p + s σ_q)/2 for one point σ of
[−1, 1]^inputs makes the plane exact at ξ = r σ wherever σ is ±1, and it can be written without an array over p and q:
half of A times the deviation of the other factor at σ, and σ times |A| times the absolute sums of M.

Invariant: every σ in [−1, 1]^inputs is sound, with the error Σ |A| Σ_pq |M_pq| r_p r_q.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from vertex_softmax.ops.forms import RowForm


@dataclasses.dataclass(frozen=True, eq=False)
class Corners:
    """What the planes of a product of rows i and columns j need, beside the objectives."""

    left: RowForm
    right: RowForm
    error: Tensor
    """(batch, 1, ..., n, m): Σ_pq |M_pq| r_ip r_jq"""
    inputs: int

    @functools.cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        """Σ_q |M_pq| r_jq, (batch, 1, ..., m, P), and Σ_p |M_pq| r_ip, (batch, 1, ..., n, Q).

        Made when somebody chooses a corner: a pass with the planes at the centre needs neither.
        """
        left, right = self.left, self.right
        size = (left.matrix.squeeze(-3).mT @ right.matrix.squeeze(-3)).abs()  # (..., P, Q)
        return (right.radius @ size.mT).unsqueeze(1), (left.radius @ size).unsqueeze(1)


def corners(left: RowForm, right: RowForm, error: Tensor, inputs: int) -> Corners | None:
    """For rows that share their matrix, as tokens after an embedding do, over a cube; else None."""
    if not left.unit.cube:
        return None
    if left.matrix.shape[-3] != 1 or right.matrix.shape[-3] != 1:
        return None
    return Corners(left=left, right=right, error=error.unsqueeze(1), inputs=inputs)


def planes(A: Tensor, at: Corners, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slopes on x (batch, S, ..., n, d) and on yᵀ (..., m, d), what they add to `middle` (..., n, m), and on the input.

    A is (batch, S, ..., n, m), sigma (batch, S, inputs), or (1, 1, inputs) for one point that all share; the slopes on
    the input are on its deviation from the centre.
    """
    left, right = _at(sigma, at.left), _at(sigma, at.right)  # (batch, S, ..., rows, P)
    dx, dy = _deviation(left, at.left), _deviation(right, at.right)
    constant = -0.5 * (at.left.centre.unsqueeze(1) @ dy.mT + dx @ at.right.centre.unsqueeze(1).mT)
    size = A.abs()
    start = sigma.new_zeros(*torch.broadcast_shapes(A.shape[:2], sigma.shape[:2]), sigma.shape[2])
    left_sums, right_sums = at.sums
    for own, sums, form in ((left, size @ left_sums, at.left), (right, size.mT @ right_sums, at.right)):
        places = form.places.expand(*own.shape[2:]).reshape(-1)
        start = start.index_add(2, places, (0.5 * own * sums).flatten(2))
    return 0.5 * (A @ dy), 0.5 * (A.mT @ dx), constant, start


def _at(sigma: Tensor, form: RowForm) -> Tensor:
    """σ at the inputs of every row, 0 where a row has fewer."""
    found = sigma.index_select(2, form.places.reshape(-1)).reshape(*sigma.shape[:2], *form.places.shape)
    return found * form.there


def _deviation(own: Tensor, form: RowForm) -> Tensor:
    """G (r σ) of every row, (batch, S, ..., n, d)."""
    matrix = form.matrix.squeeze(-3)  # (..., d, P)
    return (own * form.radius.unsqueeze(1)) @ matrix.mT
