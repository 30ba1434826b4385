"""Softmax along the last dimension."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops.registry import Op, register


@register
@dataclasses.dataclass(frozen=True)
class Softmax(Op):
    """softmax along the last dimension; keys where `mask` (broadcasts; None: nowhere) is True have weight 0."""

    mask: Tensor | None = None

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., K) → (..., K)"""
        scores = xs[0] if self.mask is None else xs[0].masked_fill(self.mask, -torch.inf)
        return scores.softmax(-1)
