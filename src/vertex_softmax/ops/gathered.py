"""Reaches of blocks of gathered errors (`GatheredUnknowns`).

Invariant: with L (k, numbers) the columns of a ball, ν = spanᵀ ξ + rootᵀ μ, ξ in [−1, 1]^m and |μ| ≤ 1, |Lᵀν| is at
most Σ_p |(span L)_p| + |root L|, and at most |L|; `reach` is the smaller of the two, summed over balls.

The ops between the gathering and the output use the balls, |L|. If the errors were many segments, a ball is about 1.25
times as large in most directions; this module avoids that loss where it matters, at the objective.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.ops.lengths import norm
from vertex_softmax.ops.unknowns import GatheredUnknowns


def reach(unknowns: GatheredUnknowns, columns: Tensor) -> Tensor:
    """How far a block moves each number: (batch, balls, k, *shape) → (batch, *shape)."""
    flat = columns.flatten(3) if columns.dim() > 3 else columns.unsqueeze(-1)
    length = norm(flat, (2,))  # (batch, balls, numbers)
    apart = (unknowns.span @ flat).abs().sum(2) + norm(unknowns.root @ flat, (2,))
    # rows of span and root have length ≤ 1: this exceeds the rounding of products of k terms
    share = 2 * flat.shape[2] * (unknowns.span.shape[2] + flat.shape[2]) * torch.finfo(flat.dtype).eps
    found: Tensor = torch.minimum(apart + share * length, length).sum(1).reshape(columns.shape[0], *columns.shape[3:])
    return found
