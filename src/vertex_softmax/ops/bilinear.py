"""Products of two variables (McCormick planes)."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from vertex_softmax.ops.registry import Op, register


@register
@dataclasses.dataclass(frozen=True)
class Multiply(Op):
    """x · y elementwise, of one shape."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """Elementwise."""
        return xs[0] * xs[1]


@register
@dataclasses.dataclass(frozen=True)
class MatMul(Op):
    """x @ y over the last two dimensions; equal leading dimensions."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., n, k), (..., k, m) → (..., n, m)"""
        return xs[0] @ xs[1]
