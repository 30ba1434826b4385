"""Small errors of each row gathered in one ball before an attention spreads them over all rows.

Invariant: every value of the zonotope before is one of the zonotope after, with the same values of all other unknowns.

An op adds errors to single rows: an unknown for each key, for each hidden unit, balls for norms and attentions. Once an
attention has mixed the rows, every number of a node has a coefficient of each of them: on a ViT of d 48 some five for
each number of the residual stream, and block by block. But a row of d numbers has only d directions. At a node that all
of the network goes through, its errors e = Σ_p S_p ξ_p + R μ (segments, |ξ_p| ≤ 1, and what is in balls, |μ| ≤ 1) lie
in an ellipsoid, e = L ν, |ν| ≤ 1, of as many unknowns as the row has numbers.

For what is in between that is larger than the errors were; but ν is known to be L⁻¹S ξ + L⁻¹R μ, so that functionals of
a later node can still be bounded as if nothing had been gathered (`ops/gathered.py`). With T = L⁻¹S and V = L⁻¹R as
computed, e − L(Tξ + Vμ) is slack, and |Tξ + Vμ|² ≤ λ_max(Σ_p T_p T_pᵀ/w_p + VVᵀ/w), where all w are ≥ 0 and add up to
1 (Cauchy and Schwarz): L is larger by the root of that.

Errors are gathered only if they are small beside the whole: where they are not, boxes in between suffer.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.bounds.index import GraphIndex
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.generators import root
from vertex_softmax.ops.lengths import norm
from vertex_softmax.ops.reaches import Care
from vertex_softmax.ops.unknowns import GatheredUnknowns, LocalUnknowns, Unknowns, span_of, spread_numbers
from vertex_softmax.ops.zonotope import Ellipse, Segments, Zonotope, balls, sum_of_ellipses

MOST_SHARE = 0.02
"""Errors are gathered if they reach at most this far, beside the whole."""
FAINT = 0.002
"""Blocks of unknowns that several rows share are gathered with them, and not shared any more, if they reach no farther
than this beside the whole."""
FEWEST_PLACES = 3
"""In networks with fewer places than that nothing is gathered. Before the first attention there are no errors, and one
more place spares one attention: that brings no time in 2 blocks of d 48, and takes 6e-6 of the bound."""
MOST_EXCESS = 1e-3
"""Where ν may be longer than 1 by more than this, it is known by its ball alone."""


def places_to_gather(index: GraphIndex) -> set[Node]:
    """The last nodes that all of the network goes through before an op mixes rows: nothing else has their unknowns."""
    depends = {index.graph.input}
    last: dict[Node, int] = {}  # the last reader of each node that depends on the input
    for position, node in enumerate(index.nodes):
        for i in node.inputs:
            if i in depends:
                depends.add(node)
                last[i] = position
    found: set[Node] = set()
    cut, reader = None, -1
    for position, node in enumerate(index.nodes):
        if cut is not None and isinstance(node.op, Attention | MatMul):
            found.add(cut)
        if node in depends:
            if reader <= position:
                cut = node
            reader = max(reader, last.get(node, -1))
    return found if len(found) >= FEWEST_PLACES else set()


def gathered(zonotope: Zonotope) -> Zonotope:
    """With one ball for the errors of each row, if they are small and the ball takes fewer numbers than they do."""
    shape = zonotope.centre.shape[1:]
    if zonotope.inputs is not None or len(shape) < 2 or not zonotope.blocks:
        return zonotope
    chosen = _chosen(zonotope)
    before = sum(spread_numbers(unknowns, zonotope.blocks[unknowns]) for unknowns in chosen)
    if before <= zonotope.centre.numel() * math.prod(shape):
        return zonotope
    segments = [u for u in chosen if isinstance(u, LocalUnknowns) and zonotope.blocks[u].shape[2] == 1]
    zero = torch.zeros_like(zonotope.centre)
    others = Zonotope(zero, {u: zonotope.blocks[u] for u in chosen if u not in segments}, None, zero)
    apart = torch.cat([zonotope.blocks[u].squeeze(2).movedim(1, -2) for u in segments] or [zero.unsqueeze(-2)], -2)
    made = _gathered(Segments(apart), others.row_shape.ellipsoid())
    if not bool(made.columns.isfinite().all()):
        return zonotope
    largest = max(chosen, key=lambda u: float(zonotope.reach_of_block(u, Care.ROUGH).sum()))
    local, columns = balls(made.columns, largest.origin)
    if not isinstance(local, LocalUnknowns):
        return zonotope
    there = made.columns.abs().amax((0, -2, -1)).flatten().nonzero().flatten()  # as `in_rows` numbers them
    there = there if len(there) else there.new_zeros(1)
    span, root_ = (x.flatten(1, -3).index_select(1, there) for x in (made.span, made.root))
    name = dataclasses.replace(local, everywhere=GatheredUnknowns(largest.origin, span, root_))
    blocks: dict[Unknowns, Tensor] = {u: x for u, x in zonotope.blocks.items() if u not in chosen}
    blocks[name] = columns
    return dataclasses.replace(zonotope, blocks=blocks, slack=zonotope.slack + made.slack)


def _chosen(zonotope: Zonotope) -> list[Unknowns]:
    """The blocks to gather: errors of single rows, and faint ones; none if together they are not small."""
    first = next(iter(zonotope.blocks))
    whole = float(zonotope.rough_radius.sum())
    found, reach = [], 0.0
    for unknowns in zonotope.blocks:
        if unknowns.origin == first.origin or span_of(unknowns) is not None:  # the input's
            continue
        part = float(zonotope.reach_of_block(unknowns, Care.ROUGH).sum())
        if (isinstance(unknowns, LocalUnknowns) and unknowns.in_rows) or part <= FAINT * whole:
            found.append(unknowns)
            reach += part
    return found if reach <= MOST_SHARE * whole else []


@dataclasses.dataclass(frozen=True, eq=False)
class _Gathered:
    """e = columns ν + r with |r| ≤ slack and ν = spanᵀ ξ + rootᵀ μ, |ν| ≤ 1, of each row."""

    columns: Tensor
    """(batch, rows..., d, d)"""
    span: Tensor
    """(batch, rows..., m, d)"""
    root: Tensor
    """(batch, rows..., d, d)"""
    slack: Tensor
    """(batch, rows..., d)"""


def _gathered(segments: Segments, others: Ellipse) -> _Gathered:
    """Of errors Σ_p S_p ξ_p + R μ, R Rᵀ = scale² matrix of the ellipse."""
    count, d = segments.columns.shape[-2:]
    eps = torch.finfo(segments.columns.dtype).eps
    whole = sum_of_ellipses([segments.ellipse(), others])
    factor = root(whole.matrix)
    size = torch.where(whole.scale > 0, whole.scale, torch.ones_like(whole.scale))[..., None, None]
    errors = torch.cat([segments.columns / size, (others.scale[..., None, None] / size * root(others.matrix)).mT], -2)
    errors = errors.mT  # (batch, rows..., d, m + d), as all below
    solved = torch.linalg.solve_triangular(factor, errors, upper=False)
    weight = torch.cat([norm(segments.columns, (-1,)), others.length.unsqueeze(-1)], -1) / size.squeeze(-1)
    weight = weight / torch.where(weight > 0, weight, torch.zeros_like(weight)).sum(-1, keepdim=True)
    weight = torch.cat([weight[..., :-1], weight[..., -1:].expand(*weight.shape[:-1], d)], -1).unsqueeze(-2)
    weighted = torch.where(weight > 0, solved / torch.where(weight > 0, weight, 1.0).sqrt(), 0.0)
    eye = torch.eye(d, dtype=solved.dtype, device=solved.device)
    excess = norm(weighted @ weighted.mT - eye, (-2, -1)) + 4 * d * (count + d) * eps
    known = (excess <= MOST_EXCESS)[..., None, None]  # not where it is NaN
    grown = torch.where(known, (1 + excess)[..., None, None].sqrt(), 1.0)
    off = (errors - factor @ solved).abs() + (d + 8) * eps * (errors.abs() + factor.abs() @ solved.abs())
    solved = torch.where(known, solved / grown, torch.cat([eye.new_zeros(d, count), eye], -1))
    slack = torch.where(known, size * off, 0.0).sum(-1)
    return _Gathered(
        columns=whole.scale[..., None, None] * grown * factor,
        span=solved[..., :count].mT,
        root=solved[..., count:].mT,
        slack=slack,
    )
