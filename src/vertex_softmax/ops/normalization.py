"""Normalisation: y / √(mean y² + eps) as one op. LayerNorm is centring (linear), this, scale and shift."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from vertex_softmax.ops.registry import Op, register


@register
@dataclasses.dataclass(frozen=True)
class Normalize(Op):
    """y / √(mean of y² over the last `count` dimensions + eps)."""

    eps: float
    count: int = 1

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., d) → (..., d)"""
        dims = list(range(-self.count, 0))
        return xs[0] / (xs[0].square().mean(dims, keepdim=True) + self.eps).sqrt()
