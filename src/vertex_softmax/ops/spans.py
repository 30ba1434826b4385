"""Reaches of blocks whose unknowns are spanned by many intervals (`SpannedUnknowns`), and such blocks written out.

Invariant: with L (k, numbers) the columns of a ball and S (m, k) its span, the block moves the numbers by Lᵀ Sᵀ ξ with
ξ in [−1, 1]^m. `reach` is Σ_p |(S L)_p|, the same as for the intervals' own columns S L, to rounding.

Affine ops carry a block of k columns instead of m. S L is computed, piece by piece, only where an exact range is
needed. Where an upper bound is enough, the ellipsoid around Sᵀ ξ gives one: with u_p = |S_p|, U = Σ u_p and C = Σ_p S_p
S_pᵀ / u_p, Σ_p |S_p·L| ≤ √(U LᵀCL) (Cauchy–Schwarz), which is at most about 1.25 times the exact range.

Rounding is charged as a share of the rough reach (tolerances.OUTWARD). But a coefficient of L is rounded relative to
|L|, while S L may be much smaller by cancellation. So the rough reach is at least |L| times the ranges of Sᵀ ξ, divided
by PARTS. That covers sums with 1/PARTS of the terms that the share allows for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.ops.generators import raised, root
from vertex_softmax.ops.lengths import PIECE, norm
from vertex_softmax.ops.unknowns import LocalUnknowns, SpannedUnknowns, Unknowns

PARTS = 8
WIDE = 4
"""Intervals are replaced by spanned unknowns if there are at least this many of them for each unknown."""


def spanned(radius: Tensor, weight: Tensor, slack: Tensor, origin: str) -> tuple[LocalUnknowns, Tensor]:
    """A block (batch, 1, k, rows..., k) of spanned unknowns that stands for the rows ξ·radius @ weight + ν·slack.

    |ξ| ≤ 1 and |ν| ≤ 1; radius (batch, rows..., m), weight (m, k), slack (batch, rows..., k).
    """
    shape, k = radius.shape[1:-1], weight.shape[-1]
    if not shape:
        radius, slack = radius.unsqueeze(1), slack.unsqueeze(1)
    span = radius.flatten(1, -2).unsqueeze(-1) * weight
    if bool(slack.any()):
        span = torch.cat([span, torch.diag_embed(slack.flatten(1, -2))], -2)  # (batch, rows, m + k, k)
    length = norm(span, (-1,))  # (batch, rows, m)
    unit = span / torch.where(length > 0, length, torch.ones_like(length)).unsqueeze(-1)
    size = length.sum(-1).sqrt()[..., None, None]
    whole = SpannedUnknowns(
        origin,
        every=Unknowns(origin),
        count=int((radius != 0).any(0).sum()),
        span=span,
        root=(size * root(raised(unit.mT @ span, span.shape[-2]))).mT,
        ranges=span.abs().sum(-2, keepdim=True) / PARTS,
    )
    ids = torch.arange(span.shape[1], device=span.device).reshape(1, *shape, 1)
    eye = torch.eye(k, dtype=span.dtype, device=span.device).reshape(1, 1, k, *[1] * len(shape), k)
    return LocalUnknowns(origin, whole, ids, span.shape[1]), eye.expand(span.shape[0], 1, k, *shape, k).contiguous()


def written_out(unknowns: Unknowns, columns: Tensor) -> tuple[Unknowns, Tensor]:
    """A block with a column for each interval; unchanged if its unknowns are not spanned."""
    if isinstance(unknowns, SpannedUnknowns):
        made = unknowns.span @ columns.flatten(3) if columns.dim() > 3 else unknowns.span @ columns.unsqueeze(-1)
        return unknowns.every, made.flatten(1, 2).unsqueeze(2).reshape(columns.shape[0], -1, 1, *columns.shape[3:])
    if not isinstance(unknowns, LocalUnknowns) or not isinstance(unknowns.everywhere, SpannedUnknowns):
        return unknowns, columns
    whole = unknowns.everywhere
    unknowns, columns = unknowns.by_rows(columns)
    own, rows = _by_row(unknowns, columns)
    made = (own @ rows).unflatten(1, unknowns.ids.shape[:-1]).movedim(-2, 2)  # (batch, slots, m, rows..., d)
    m = whole.span.shape[2]
    each = torch.arange(m, device=unknowns.ids.device).reshape(1, m, *[1] * (unknowns.ids.dim() - 1))
    ids = (unknowns.ids.unsqueeze(1) * m + each).flatten(0, 1)
    local = LocalUnknowns(unknowns.origin, whole.every, ids, whole.span.shape[1] * m, unknowns.in_one_row)
    return local, made.flatten(1, 2).unsqueeze(2)


def _by_row(unknowns: LocalUnknowns, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The span (batch, slots · rows, m, k) and the columns (batch, slots · rows, k, d) of each row of a local block."""
    own = _whole(unknowns).span.index_select(1, unknowns.ids.flatten())
    return own, _rows(columns)


def _rows(columns: Tensor) -> Tensor:
    """(batch, slots, k, rows..., d) → (batch, slots · rows, k, d)"""
    return columns.movedim(2, -2).flatten(1, -3)


def _whole(unknowns: Unknowns) -> SpannedUnknowns:
    whole = unknowns.everywhere if isinstance(unknowns, LocalUnknowns) else unknowns
    if not isinstance(whole, SpannedUnknowns):
        raise InternalError(f"the unknowns of {unknowns.origin} are not spanned")
    return whole


def reach(unknowns: Unknowns, columns: Tensor) -> Tensor:
    """How far a block of spanned unknowns moves each number: (batch, balls or slots, k, *shape) → (batch, *shape)."""
    if isinstance(unknowns, LocalUnknowns):
        unknowns, columns = unknowns.by_rows(columns)
        span, flat = _by_row(unknowns, columns)
        moved: Tensor = _sums(span, flat).unflatten(1, unknowns.ids.shape[:-1]).sum(1)
        return moved
    flat = columns.flatten(3) if columns.dim() > 3 else columns.unsqueeze(-1)
    return _sums(_whole(unknowns).span, flat).sum(1).reshape(columns.shape[0], *columns.shape[3:])


def _sums(span: Tensor, columns: Tensor) -> Tensor:
    """Σ_p |(S L)_p|: (batch, balls, m, k), (batch, balls, k, N) → (batch, balls, N), in pieces for the cache."""
    batch, balls, m, _ = span.shape
    n = columns.shape[-1]
    if span.device.type != "cpu" or batch * balls * m * n <= PIECE:
        return (span @ columns).abs_().sum(2)
    found = columns.new_empty(batch, balls, n)
    step = max(1, PIECE // max(1, batch * m))
    for j in range(balls):
        for i in range(0, n, step):
            torch.sum((span[:, j] @ columns[:, j, :, i : i + step]).abs_(), 1, out=found[:, j, i : i + step])
    return found


def rough_reach(unknowns: Unknowns, columns: Tensor) -> Tensor:
    """An upper bound of `reach`, from the ellipsoid, for a fraction of the work.

    It is also large enough for rounding to be a share of it (see the module).
    """
    whole = _whole(unknowns)
    if isinstance(unknowns, LocalUnknowns):
        unknowns, columns = unknowns.by_rows(columns)
        which = unknowns.ids.flatten()
        found = _around(whole.root.index_select(1, which), whole.ranges.index_select(1, which), _rows(columns))
        moved: Tensor = found.unflatten(1, unknowns.ids.shape[:-1]).sum(1)
        return moved
    flat = columns.flatten(3) if columns.dim() > 3 else columns.unsqueeze(-1)
    return _around(whole.root, whole.ranges, flat).sum(1).reshape(columns.shape[0], *columns.shape[3:])


def _around(root_: Tensor, ranges: Tensor, columns: Tensor) -> Tensor:
    """(batch, balls, k, k), (batch, balls, 1, k), (batch, balls, k, N) → (batch, balls, N)."""
    return torch.maximum(norm(root_ @ columns, (2,)), (ranges @ columns.abs()).squeeze(2))
