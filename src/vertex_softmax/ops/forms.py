"""What is affine in the network's input is known exactly, not only by its box: functionals and products of such rows.

A row form writes the rows of a matrix node (..., n, d) as centre + G ξ, |ξ_p| ≤ radius_p, where each row depends on few
of the inputs (a token on its own patch): G holds only those. Where every row has the same G, as after a patch
embedding, it is stored once.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops.choice_rows import ChoiceRows
from vertex_softmax.ops.contract import AffineForm
from vertex_softmax.ops.generators import raised, squares
from vertex_softmax.ops.interval import Interval


@dataclasses.dataclass(frozen=True, eq=False)
class RowForm:
    """Rows v_j = centre_j + G_j ξ, |ξ_p| ≤ radius_jp."""

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
    """(..., n, P): which input each of a row's is"""
    there: Tensor
    """(..., n, P) bool: False where a row has fewer than P"""


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
        centre=form.centre, matrix=compact, radius=radius, common=common, varies=varies, places=order, there=there
    )


def functional_radius(eta: Tensor, form: RowForm) -> Tensor:
    """max over ξ of |η_i · (v_j − centre_j)|: η (batch, S, ..., m, d), the form's rows j → (batch, S, ..., m, n)."""
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
    """A bound of |(x_i − centre_i) · (y_j − centre_j)|, (batch, ..., n, m): Σ_pq |(Gᵀ G')_pq| r_p r'_q."""
    if left.matrix.shape[-3] == 1 and right.matrix.shape[-3] == 1:
        cross = (left.matrix.squeeze(-3).mT @ right.matrix.squeeze(-3)).abs()
        return left.radius @ cross @ right.radius.mT
    rows = []
    for i in range(left.radius.shape[-2]):
        g = left.matrix[..., min(i, left.matrix.shape[-3] - 1), :, :]
        cross = (g.mT.unsqueeze(-3) @ right.matrix).abs()  # (..., 1 or m, P, Q)
        weighed = (left.radius[..., i, :].unsqueeze(-2).unsqueeze(-2) @ cross).squeeze(-2)  # (batch, ..., 1 or m, Q)
        rows.append((weighed * right.radius).sum(-1))
    return torch.stack(rows, -2)


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
        if exact or form.matrix.shape[-1] <= WIDE * form.matrix.shape[-2]:
            spread = functional_radius(eta, form)
        else:
            # both radii are about the form's centre, which is the box's
            apart = torch.maximum(box.upper - form.centre, form.centre - box.lower).unsqueeze(1)
            spread = torch.minimum(ellipsoid_radius(eta, form), eta.abs() @ apart.mT)
        return Interval(middle - spread, middle + spread)
    middle, spread = eta @ box.centre.unsqueeze(1).mT, eta.abs() @ box.radius.unsqueeze(1).mT
    return Interval(middle - spread, middle + spread)
