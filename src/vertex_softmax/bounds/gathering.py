"""Gather the small errors of each row of a zonotope in one ball, before an attention spreads them over all rows.

Invariant: every value of the zonotope before is a value of the zonotope after, with the same values of all other
unknowns.

Relaxations add error unknowns to single rows: one for each key or each hidden unit, and balls for norms and attentions.
Once an attention has mixed the rows, every number of a node has a coefficient of each of these unknowns: on a ViT of
d = 48 some five for each number of the residual stream, and more with every block. But a row of d numbers has only d
directions. At a node through which all of the network goes, the errors of a row, e = Σ_p S_p ξ_p + R μ (segments with
|ξ_p| ≤ 1, and a ball |μ| ≤ 1), lie in an ellipsoid e = L ν, |ν| ≤ 1, which has only d unknowns ν.

The ellipsoid contains more than the errors. To lose little by that, ν = L⁻¹S ξ + L⁻¹R μ is remembered, so that linear
functionals of later nodes can be bounded as if nothing had been gathered (`ops/gathered.py`). Rounding: with T = L⁻¹S
and V = L⁻¹R as computed, e − L(Tξ + Vμ) is added to the slack. And |Tξ + Vμ|² ≤ λ_max(Σ_p T_p T_pᵀ/w_p + VVᵀ/w) for all
weights w_p, w ≥ 0 that add up to 1 (Cauchy–Schwarz); L is enlarged by the root of that bound.

Errors are gathered only where they are small beside the radius of the whole zonotope: large ones would widen the boxes
between this node and the output.
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
"""Errors are gathered only if their reach, summed over all numbers, is at most this share of the zonotope's radius."""
FAINT = 0.002
"""A block of unknowns that several rows share is gathered too, which makes it independent in each row, if its reach is
at most this share of the zonotope's radius."""
FEWEST_PLACES = 3
"""Nothing is gathered in a network with fewer places for it than this. At the first place, before any attention, there
are no errors yet, and each further place saves work at one attention: with one such place, in 2 blocks of d = 48, that
saves no time and costs 6e-6 of the bound."""
MOST_EXCESS = 1e-3
"""Where rounding allows |ν|² to exceed 1 by more than this, only |ν| ≤ 1 is remembered of ν."""


def places_to_gather(index: GraphIndex) -> set[Node]:
    """The places for gathering: before each op that mixes rows, the last node through which all of the network goes.

    No node behind such a place shares unknowns with a node before it, except through the place itself.
    """
    depends = {index.graph.input}
    last: dict[Node, int] = {}  # the position of the last reader of each node that depends on the input
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
    """The zonotope with one ball for the errors of each row.

    It is returned unchanged if the errors are not small (MOST_SHARE), or if the balls would take as many numbers.
    """
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
    """The blocks to gather: errors of single rows, and faint shared ones; none if together they are not small."""
    first = next(iter(zonotope.blocks))
    whole = float(zonotope.rough_radius.sum())
    found, reach = [], 0.0
    for unknowns in zonotope.blocks:
        if unknowns.origin == first.origin or span_of(unknowns) is not None:  # the input's own unknowns are kept
            continue
        part = float(zonotope.reach_of_block(unknowns, Care.ROUGH).sum())
        if (isinstance(unknowns, LocalUnknowns) and unknowns.in_rows) or part <= FAINT * whole:
            found.append(unknowns)
            reach += part
    return found if reach <= MOST_SHARE * whole else []


@dataclasses.dataclass(frozen=True, eq=False)
class _Gathered:
    """The errors of each row after gathering: e = columns ν + r with |r| ≤ slack, ν = spanᵀ ξ + rootᵀ μ and |ν| ≤ 1."""

    columns: Tensor
    """(batch, rows..., d, d)"""
    span: Tensor
    """(batch, rows..., m, d)"""
    root: Tensor
    """(batch, rows..., d, d)"""
    slack: Tensor
    """(batch, rows..., d)"""


def _gathered(segments: Segments, others: Ellipse) -> _Gathered:
    """Gather errors Σ_p S_p ξ_p + R μ, where R Rᵀ = scale² · matrix of the ellipse `others`."""
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
    known = (excess <= MOST_EXCESS)[..., None, None]  # False where it is NaN
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
