"""A lower bound of a product of two rows that are affine in the input, by a plane that touches it at a chosen corner.

Invariant: every σ in [−1, 1]^inputs is sound, with the error Σ |A| Σ_pq |M_pq| r_p r_q.

With x_i = x_c + G ξ and y_j = y_c + H ζ, the product is affine except for Σ_pq M_pq ξ_p ζ_q with M = Gᵀ H. For x, y and
τ in [−1, 1] and a sign s, s x y ≥ τ (x + s y) − 1 (at τ = ±1 this is (1 ∓ x)(1 ∓ s y) ≥ 0; in between it is a mix of
the two). So, with s the sign of a M_pq,
  a M_pq ξ_p ζ_q ≥ |a M_pq| r_p r_q (τ_pq (ξ_p/r_p + s ζ_q/r_q) − 1):
the constant is that of the plane at the centre, and the slopes are free. The choice τ_pq = (σ_p + s σ_q)/2 for one
point σ of [−1, 1]^inputs makes the plane exact at ξ = r σ wherever σ is ±1. It can be evaluated without an array over p
and q: half of A times the deviation of the other factor at σ, and σ times |A| times the absolute sums of M.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from torch import Tensor

from vertex_softmax.ops.forms import RowForm


@dataclasses.dataclass(frozen=True, eq=False)
class RowInputs:
    """The inputs that the rows of a factor depend on; a leading dimension, such as that of heads, is 1 if all share
    them.
    """

    places: Tensor
    """(..., n, P): the indices of each row's inputs"""
    there: Tensor
    """(..., n, P) bool: False where a row has fewer than P"""
    radius: Tensor
    """(batch, 1, ..., n, P): the radius of each of these inputs"""
    matrix: Tensor
    """(..., d, P): the matrix G of all rows; its leading dimensions are those of the factor"""

    @property
    def shared(self) -> bool:
        """Whether all matrices are applied to the same inputs."""
        return math.prod(self.places.shape[:-2]) == 1

    def at(self, sigma: Tensor) -> Tensor:
        """σ (batch, S, inputs) at the inputs of every row, (batch, S, ..., n, P); 0 where a row has fewer."""
        found = sigma.index_select(2, self.places.reshape(-1)).reshape(*sigma.shape[:2], *self.places.shape)
        return found * self.there

    def deviation(self, own: Tensor) -> Tensor:
        """G (r σ) of every row, (batch, S, ..., n, d), for σ at the rows' inputs."""
        weighted = own * self.radius
        if not self.shared:
            return weighted @ self.matrix.mT
        *lead, d, P = self.matrix.shape  # one product for all leading dimensions
        n = weighted.shape[-2]
        every = weighted.reshape(*weighted.shape[:2], n, P) @ self.matrix.reshape(-1, P).T
        return every.reshape(*weighted.shape[:2], n, *lead, d).movedim(2, -2)

    def slopes(self, own: Tensor, size: Tensor, sums: Tensor) -> Tensor:
        """σ · (size @ sums) added up for every input of the rows, flat: (batch, S, numbers of `places`).

        size (batch, S, ..., n, m), sums (batch, 1, ..., m, P).
        """
        if not self.shared:
            return (own * (size @ sums)).flatten(2)
        batch, objectives, n, P = *size.shape[:2], size.shape[-2], sums.shape[-1]
        terms = math.prod(sums.shape[2:-1])  # the number of leading dimensions and m, which are summed over
        rows = size.movedim(-2, 2).reshape(batch, objectives * n, terms)
        added = rows @ sums.expand(batch, *sums.shape[1:]).reshape(batch, terms, P)
        return own.flatten(2) * added.reshape(batch, objectives, n * P)


def row_inputs(form: RowForm) -> RowInputs:
    """The inputs of rows that share their matrix."""
    places, there, radius = form.places, form.there, form.radius
    for dimension in range(places.dim() - 2):
        first = [x.narrow(dimension, 0, 1) for x in (places, there)]
        if places.shape[dimension] > 1 and bool(((places == first[0]) & (there == first[1])).all()):
            places, there = first
            radius = radius.narrow(dimension + 1, 0, 1)  # of the same inputs, so the same
    return RowInputs(places, there, radius.unsqueeze(1), form.matrix.squeeze(-3))


@dataclasses.dataclass(frozen=True, eq=False)
class Corners:
    """What the planes of a product of rows i and columns j need, apart from the objectives.

    Its parts are computed when a corner is chosen; a pass with planes at the centre needs only the error.
    """

    forms: tuple[RowForm, RowForm]
    """the forms of the rows and of the columns"""
    error: Tensor
    """(batch, 1, ..., n, m): Σ_pq |M_pq| r_ip r_jq"""
    inputs: int

    @functools.cached_property
    def left(self) -> RowInputs:
        """The inputs of the rows."""
        return row_inputs(self.forms[0])

    @functools.cached_property
    def right(self) -> RowInputs:
        """The inputs of the columns."""
        return row_inputs(self.forms[1])

    @property
    def centres(self) -> tuple[Tensor, Tensor]:
        """The centres of the rows, (batch, 1, ..., n, d), and of the columns, (batch, 1, ..., m, d)."""
        left, right = self.forms
        return left.centre.unsqueeze(1), right.centre.unsqueeze(1)

    @functools.cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        """Σ_q |M_pq| r_jq, (batch, 1, ..., m, P), and Σ_p |M_pq| r_ip, (batch, 1, ..., n, Q)."""
        left, right = self.forms
        size = (left.matrix.squeeze(-3).mT @ right.matrix.squeeze(-3)).abs()  # (..., P, Q)
        return (right.radius @ size.mT).unsqueeze(1), (left.radius @ size).unsqueeze(1)


def corners(left: RowForm, right: RowForm, error: Tensor, inputs: int) -> Corners | None:
    """The planes' data for rows that share their matrix, as tokens after an embedding do, over a cube; else None."""
    if not left.unit.cube:
        return None
    if left.matrix.shape[-3] != 1 or right.matrix.shape[-3] != 1:
        return None
    return Corners((left, right), error.unsqueeze(1), inputs)


def planes(A: Tensor, at: Corners, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slopes on x (batch, S, ..., n, d) and on yᵀ (..., m, d), addends of `middle` (..., n, m), slopes on the input.

    A is (batch, S, ..., n, m), sigma (batch, S, inputs), or (1, 1, inputs) for a single point; slopes on the input
    multiply its deviation from the centre.
    """
    left, right = at.left.at(sigma), at.right.at(sigma)  # (batch, S, ..., rows, P)
    dx, dy = at.left.deviation(left), at.right.deviation(right)
    (x, y), (left_sums, right_sums) = at.centres, at.sums
    constant = -0.5 * (x @ dy.mT + dx @ y.mT)
    size = A.abs()
    start = sigma.new_zeros(*np.broadcast_shapes(A.shape[:2], sigma.shape[:2]), sigma.shape[2])
    for rows, own, some, sums in ((at.left, left, size, left_sums), (at.right, right, size.mT, right_sums)):
        places = rows.places.expand(*own.shape[2:]).reshape(-1)
        start = start.index_add(2, places, 0.5 * rows.slopes(own, some, sums))
    return 0.5 * (A @ dy), 0.5 * (A.mT @ dx), constant, start
