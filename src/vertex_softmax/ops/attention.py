"""Attention: softmax(scores) @ values as one op."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops.registry import Op, register


@register
@dataclasses.dataclass(frozen=True)
class Attention(Op):
    """softmax(scores) @ values; keys where `mask` (broadcasts to the scores) is True have weight 0."""

    mask: Tensor | None = None

    def evaluate(self, *xs: Tensor) -> Tensor:
        """scores (..., n, K), values (..., K, d) → (..., n, d)"""
        scores = xs[0] if self.mask is None else xs[0].masked_fill(self.mask, -torch.inf)
        return scores.softmax(-1) @ xs[1]
