"""Products ξ_i ξ_j of the input's unknowns as unknowns of their own, so that terms of second order are kept exactly.

Invariant: what is called *kept* is exact to rounding; everything else is enclosed by errors of known size.

A node's deviation from its centre is y' = ℓ + r (`Zonotope.linear`, `Zonotope.rest`): the part ℓ that is linear in the
input's unknowns, and the rest r, of second order at least. A product of two deviations is ℓ_x ℓ_y, whose coefficients
are known exactly, plus ℓ_x r_y + r_x y', of third order. So the errors of ops, of which only the size is known, are of
third order. Terms of second order are added with their signs over keys, heads, hidden units, tokens and layers, and are
bounded as a whole where a range is needed (ops/pairs.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vertex_softmax.ops import pairs
from vertex_softmax.ops.unknowns import InputUnknowns, Unknowns
from vertex_softmax.ops.zonotope import Zonotope


def linear_columns(y: Zonotope, inputs: InputUnknowns) -> Tensor:
    """The columns of ℓ, (batch, n, *shape); 0 if y does not depend on the input's unknowns."""
    if inputs in y.blocks:
        return y.blocks[inputs].squeeze(1 if inputs.ball else 2)
    batch, shape = y.centre.shape[0], y.centre.shape[1:]
    return y.centre.new_zeros(()).expand(batch, inputs.count, *shape)


def with_products(y: Zonotope, inputs: InputUnknowns, products: tuple[Tensor, Tensor]) -> Zonotope:
    """y + Σ_{i<j} p_ij ξ_i ξ_j + Σ_i q_i ξ_i², with p (batch, n(n−1)/2, *shape) and q (batch, n, *shape)."""
    p, q = products
    blocks: dict[Unknowns, Tensor] = dict(y.blocks)
    if inputs.ball:
        columns = torch.cat([p / math.sqrt(2), q], 1).unsqueeze(1)
        known = blocks.get(inputs.pairs)
        blocks[inputs.pairs] = columns if known is None else known + columns
        return Zonotope(y.centre, blocks, y.own, y.slack)
    for unknowns, columns in (
        (inputs.pairs, (p * pairs.unit(inputs.count)).unsqueeze(1)),
        (inputs.squares, (q / 2).unsqueeze(2)),
    ):
        blocks[unknowns] = blocks[unknowns] + columns if unknowns in blocks else columns
    return Zonotope(y.centre + q.sum(1) / 2, blocks, y.own, y.slack)


def chosen(first: Tensor, a: Zonotope, b: Zonotope) -> Zonotope:
    """The numbers of a where `first` (batch, *shape, or broadcast to it) is True, and those of b elsewhere."""
    first = first.expand_as(a.centre)
    if bool(first.all()):
        return a
    if not bool(first.any()):
        return b
    zero = torch.zeros_like(a.centre)
    keep = first[:, None, None]
    blocks: dict[Unknowns, Tensor] = {}
    for unknowns in dict.fromkeys([*a.blocks, *b.blocks]):
        of_a, of_b = a.blocks.get(unknowns), b.blocks.get(unknowns)
        none = torch.zeros((), dtype=zero.dtype, device=zero.device)
        blocks[unknowns] = torch.where(keep, none if of_a is None else of_a, none if of_b is None else of_b)
    own = torch.where(first, zero if a.own is None else a.own, zero if b.own is None else b.own)
    return Zonotope(torch.where(first, a.centre, b.centre), blocks, own, torch.where(first, a.slack, b.slack))
