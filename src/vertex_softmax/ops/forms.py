"""Rows that are affine in the network's input: ranges of their functionals and products from the exact affine form.

Invariant: every radius returned is an upper bound over the unit set, to rounding.

A row form writes the rows of a matrix node (..., n, d) as centre + G ξ with ξ/radius in a unit set (unit_sets.py). Each
row depends on few of the inputs (a token on its own patch), and G stores only those. If every row has the same G, as
after a patch embedding, it is stored once.

Over a Euclidean ball |η·G ξ| is at most √(ηᵀ C η) with C = G diag(radius²) Gᵀ, and a product of two rows with the
matrix M = diag(r) Gᵀ G' diag(r') is at most ‖M‖ |z||z'|; over an ℓ1 ball it is at most max |M_pq| |z|₁|z'|₁. If two
rows of one ball have no unknown in common, they share its radius: |z||z'| ≤ (|z|² + |z'|²)/2 ≤ 1/2, and
|z|₁|z'|₁ ≤ 1/4.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.ops.choice_rows import ChoiceRows
from vertex_softmax.ops.contract import AffineForm
from vertex_softmax.ops.generators import Ellipsoid, raised, squares
from vertex_softmax.ops.generators import product_radius as ellipsoids_product_radius
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.lengths import PIECE
from vertex_softmax.ops.unit_sets import UnitBall, UnitSet


@dataclasses.dataclass(frozen=True, eq=False)
class RowForm:
    """Rows v_j = centre_j + G_j ξ, ξ_p = radius_jp z_p with z in the unit set."""

    centre: Tensor
    """(batch, ..., n, d)"""
    matrix: Tensor
    """(..., 1 or n, d, P): 1 if all rows share it"""
    radius: Tensor
    """(batch, ..., n, P)"""
    common: Tensor | None
    """G diag(radius), (batch, ..., d, P), if it is the same for every row that varies at all"""
    varies: Tensor
    """(..., n): 1 for a row that depends on the input, 0 for one that does not"""
    places: Tensor
    """(..., n, P): the indices of each row's inputs"""
    there: Tensor
    """(..., n, P) bool: False where a row has fewer than P"""
    unit: UnitSet
    """the unit set of z"""

    @property
    def balls(self) -> Tensor:
        """(..., n, P): the ball that each of a row's inputs is in; where a row has fewer, that of its first."""
        balls = self.unit.at(self.places)
        return torch.where(self.there, balls, balls[..., :1])

    @property
    def in_one_ball(self) -> bool:
        """Whether all inputs of every row are in one ball, the same or another for each row."""
        return bool((self.balls == self.balls[..., :1]).all())

    def within(self, ball: int) -> RowForm:
        """The part of the rows that is due to the inputs of one ball."""
        return dataclasses.replace(self, radius=self.radius * (self.balls == ball), common=None)

    @property
    def larger_balls(self) -> list[int]:
        """The balls of the rows' inputs that have several unknowns."""
        found = self.balls.unique()
        return [int(ball) for ball in (found if self.unit.alone is None else found[~self.unit.alone[found]])]

    def without_intervals(self) -> RowForm:
        """The part of the rows that is due to balls with several unknowns."""
        if self.unit.alone is None:
            return self
        return dataclasses.replace(self, radius=self.radius * ~self.unit.alone[self.balls], common=None)

    @property
    def columns(self) -> Tensor:
        """G diag(radius), (batch, ..., n, d, P)."""
        return self.matrix * self.radius.unsqueeze(-2)


def row_form(form: AffineForm) -> RowForm:
    """The rows of (..., n, d), each with the P inputs it depends on (the most that any row has)."""
    matrix = form.matrix
    used = (matrix != 0).any(-2)  # (..., n, inputs)
    places = max(1, int(used.sum(-1).max()))
    order = used.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :places]  # (..., n, P)
    there = used.gather(-1, order)
    index = order.unsqueeze(-2).expand(*matrix.shape[:-1], places)
    compact = matrix.gather(-1, index) * there.unsqueeze(-2)
    batch = form.radius.shape[0]
    radius = form.radius[:, order.reshape(-1)].reshape(batch, *order.shape) * there
    full = there.all(-1)  # (..., n): rows that use all P places
    empty = ~there.any(-1)
    first = full.to(torch.int8).argmax(-1)  # the first full row
    model = compact.gather(-3, first[..., None, None, None].expand(*compact.shape[:-3], 1, *compact.shape[-2:]))
    same = (compact == model).flatten(-2).all(-1)
    if bool(((full & same) | empty).all()):
        compact = model  # an empty row has radius 0, so any matrix is right for it
    varies = (~empty).to(radius.dtype)
    common = None
    if compact.shape[-3] == 1:
        least = radius.masked_fill(empty.unsqueeze(-1), torch.inf).amin(-2)
        most = radius.amax(-2)
        if bool((most - least <= 1e-4 * most).all()):  # the largest serves for all
            common = compact.squeeze(-3) * most.unsqueeze(-2)
    return RowForm(
        centre=form.centre,
        matrix=compact,
        radius=radius,
        common=common,
        varies=varies,
        places=order,
        there=there,
        unit=form.unit,
    )


def functional_radius(eta: Tensor, form: RowForm) -> Tensor:
    """max over ξ of |η_i · (v_j − centre_j)|: η (batch, S, ..., m, d), the form's rows j → (batch, S, ..., m, n)."""
    if not form.unit.cube:
        return _functional_radius_over_balls(eta, form)
    if form.common is not None:
        size: Tensor = torch.linalg.vector_norm(eta @ form.common.unsqueeze(1), ord=1, dim=-1, keepdim=True)
        return size * form.varies.unsqueeze(-2)
    if form.matrix.shape[-3] == 1:
        spread = (eta @ form.matrix.squeeze(-3)).abs()  # (batch, S, ..., m, P)
        return spread @ form.radius.unsqueeze(1).mT
    parts = []
    for j in range(form.matrix.shape[-3]):  # rows with different matrices: one at a time, for the memory's sake
        spread = (eta @ form.matrix[..., j, :, :]).abs()
        parts.append(spread @ form.radius[..., j, :].unsqueeze(1).unsqueeze(-1))
    return torch.cat(parts, -1)


def _functional_radius_over_balls(eta: Tensor, form: RowForm) -> Tensor:
    """The same over a product of balls that are not intervals."""
    if form.unit.ball is UnitBall.EUCLIDEAN and form.in_one_ball:
        # not 0: a root has no derivative there
        square = squares(eta, _euclidean(form).shape).clamp(min=torch.finfo(eta.dtype).tiny)
        return square.sqrt() * form.varies.unsqueeze(-2)
    parts, columns, balls = [], form.columns, form.balls
    for j in range(form.radius.shape[-2]):  # one row at a time, for the memory's sake
        spread = eta @ columns[..., j, :, :].unsqueeze(1)  # (batch, S, ..., m, P)
        parts.append(form.unit.reach(spread, balls[..., j, :].unsqueeze(-2)))
    return torch.stack(parts, -1)


def _euclidean(form: RowForm) -> Ellipsoid:
    """The rows as images of Euclidean balls, which are ellipsoids."""
    columns = form.columns
    shape = raised(columns @ columns.mT, columns.shape[-1])
    return Ellipsoid(centre=form.centre, shape=shape, size=torch.ones_like(columns[..., 0, 0]), rows=None)


def ellipsoid_radius(eta: Tensor, form: RowForm) -> Tensor:
    """A bound of functional_radius in O(d²) per functional, whatever P: √(Σu · ηᵀ C η).

    With g_p the columns of G diag(radius), u_p = ‖g_p‖ and C = Σ g_p g_pᵀ / u_p: by Cauchy and Schwarz,
    Σ_p |η·g_p| = Σ_p √u_p · |η·g_p| / √u_p ≤ √(Σ u_p) · √(ηᵀ C η).
    """
    columns = form.matrix * form.radius.unsqueeze(-2)  # (batch, ..., n, d, P)
    size: Tensor = torch.linalg.vector_norm(columns, dim=-2)
    scale = torch.where(size > 0, size, torch.ones_like(size))  # a column of zeros adds nothing
    shape = raised((columns / scale.unsqueeze(-2)) @ columns.mT, columns.shape[-1])  # (batch, ..., n, d, d)
    return squares(eta, shape).clamp(min=0).sqrt() * size.sum(-1).sqrt().unsqueeze(1).unsqueeze(-2)


def product_radius(left: RowForm, right: RowForm) -> Tensor:
    """A bound of |(x_i − centre_i) · (y_j − centre_j)|, (batch, ..., n, m): over a cube Σ_pq |(Gᵀ G')_pq| r_p r'_q."""
    if not left.unit.cube:
        return _product_radius_over_balls(left, right)
    if left.matrix.shape[-3] == 1 and right.matrix.shape[-3] == 1:
        return _weighed_sizes(left, right) @ right.radius.mT
    rows = []
    for i in range(left.radius.shape[-2]):
        g = left.matrix[..., min(i, left.matrix.shape[-3] - 1), :, :]
        cross = (g.mT.unsqueeze(-3) @ right.matrix).abs()  # (..., 1 or m, P, Q)
        weighed = (left.radius[..., i, :].unsqueeze(-2).unsqueeze(-2) @ cross).squeeze(-2)  # (batch, ..., 1 or m, Q)
        rows.append((weighed * right.radius).sum(-1))
    return torch.stack(rows, -2)


def _weighed_sizes(left: RowForm, right: RowForm) -> Tensor:
    """Σ_p r_ip |(Gᵀ G')_pq| for rows that share their matrices, (batch, ..., n, Q); some of p at a time, in the cache.

    All of it has as many numbers as two tokens have pairs of pixels: most of the time went into fresh memory for them.
    """
    g, other = left.matrix.squeeze(-3).mT, right.matrix.squeeze(-3)  # (..., P, d), (..., d, Q)
    per_input = math.prod(g.shape[:-2]) * other.shape[-1]
    step = g.shape[-2] if g.device.type != "cpu" else max(1, PIECE // max(1, per_input))
    found: Tensor | None = None
    for some, radius in zip(g.split(step, -2), left.radius.split(step, -1), strict=True):
        part = radius @ (some @ other).abs_()
        found = part if found is None else found.add_(part)
    return left.radius @ g.new_zeros(*g.shape[:-1], other.shape[-1]) if found is None else found


def _product_radius_over_balls(left: RowForm, right: RowForm) -> Tensor:
    """The same over a product of balls that are not intervals; rows over several balls are treated ball by ball."""
    if not (left.in_one_ball and right.in_one_ball):
        found = torch.zeros_like(left.centre[..., :1] @ right.centre[..., :1].mT)
        if (alone := left.unit.alone) is not None:  # a sum over these, and not over pairs of balls
            found = found + _with_intervals(left, right, alone)
            found = found + _with_intervals(right, left.without_intervals(), alone).mT
        for ball in left.larger_balls:
            for other in right.larger_balls:
                found = found + _in_balls(left.within(ball), right.within(other))
        return found
    return _in_balls(left, right) * _share(left, right)


def _with_intervals(left: RowForm, right: RowForm, alone: Tensor) -> Tensor:
    """A bound of the products of what is due to single unknowns on the left with all on the right, (batch, ..., n, m).

    `alone`: (balls,) bool, those of a single unknown. Σ_p |z_p| |g_p·(y − centre)| with |z_p| ≤ 1: each is a functional
    of the right rows.
    """
    columns = left.columns * alone[left.balls].unsqueeze(-2)
    rows = []
    for i in range(left.radius.shape[-2]):  # one row at a time, for the memory's sake
        eta = columns[..., i, :, :].mT.unsqueeze(1)  # (batch, 1, ..., P, d)
        rows.append(functional_radius(eta, right).sum(-2).squeeze(1))
    return torch.stack(rows, -2)


def _in_balls(left: RowForm, right: RowForm) -> Tensor:
    """A bound of the products for unknowns of length 1 in every row, (batch, ..., n, m)."""
    if left.unit.ball is UnitBall.EUCLIDEAN:
        return ellipsoids_product_radius(_euclidean(left), _euclidean(right))
    rows = []
    columns, others = left.columns, right.columns
    for i in range(left.radius.shape[-2]):
        cross = (columns[..., i, :, :].mT.unsqueeze(-3) @ others).abs()  # (batch, ..., m, P, Q)
        rows.append(cross.flatten(-2).amax(-1))
    return torch.stack(rows, -2)


def _share(left: RowForm, right: RowForm) -> Tensor:
    """An upper bound for the product of the lengths of two rows' unknowns, (..., n, m), if each row is in one ball."""
    one = torch.ones_like(left.varies.unsqueeze(-1) * right.varies.unsqueeze(-2))
    same = left.balls[..., :1] == right.balls[..., :1].mT
    common = _used(left, right) @ _used(right, left).mT > 0
    half = 0.5 if left.unit.ball is UnitBall.EUCLIDEAN else 0.25
    return torch.where(same & ~common, half * one, one)


def _used(form: RowForm, other: RowForm) -> Tensor:
    """Whether each row depends on each input, (..., n, inputs), as 0 and 1."""
    inputs = 1 + max(int(form.places.max()), int(other.places.max()))
    found = form.radius.new_zeros(*form.places.shape[:-1], inputs)
    return found.scatter_add(-1, form.places, form.there.to(found)).clamp(max=1)


WIDE = 16
"""A form with more than this many inputs per component is wide: its functionals may be bounded by an ellipsoid."""


def functional_box(eta: Tensor, box: Interval, form: RowForm | ChoiceRows | None, exact: bool = True) -> Interval:
    """An interval for η_i · v_j: η (batch, S, ..., m, d), rows v of (batch, ..., n, d) → (batch, S, ..., m, n).

    With a form it is the exact range, or if not `exact` and the form is wide, that of an ellipsoid met with the box.
    """
    if isinstance(form, ChoiceRows):
        return form.functionals(eta)
    if form is not None:
        middle = eta @ form.centre.unsqueeze(1).mT
        if exact or not form.unit.cube or form.matrix.shape[-1] <= WIDE * form.matrix.shape[-2]:
            spread = functional_radius(eta, form)
        else:
            # both radii are about the form's centre, which is the box's
            apart = torch.maximum(box.upper - form.centre, form.centre - box.lower).unsqueeze(1)
            spread = torch.minimum(ellipsoid_radius(eta, form), eta.abs() @ apart.mT)
        return Interval(middle - spread, middle + spread)
    middle, spread = eta @ box.centre.unsqueeze(1).mT, eta.abs() @ box.radius.unsqueeze(1).mT
    return Interval(middle - spread, middle + spread)
