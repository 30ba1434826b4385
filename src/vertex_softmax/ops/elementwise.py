"""Functions of one number."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.ops.registry import Op, register


@register
@dataclasses.dataclass(frozen=True)
class Relu(Op):
    """max(x, 0)."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].relu()


@register
@dataclasses.dataclass(frozen=True)
class Gelu(Op):
    """x Φ(x), or with `tanh` its usual approximation."""

    tanh: bool = False

    def evaluate(self, *xs: Tensor) -> Tensor:
        return torch.nn.functional.gelu(xs[0], approximate="tanh" if self.tanh else "none")


@register
@dataclasses.dataclass(frozen=True)
class Silu(Op):
    """x / (1 + e⁻ˣ)."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        return torch.nn.functional.silu(xs[0])


@register
@dataclasses.dataclass(frozen=True)
class Tanh(Op):
    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].tanh()


@register
@dataclasses.dataclass(frozen=True)
class Sigmoid(Op):
    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].sigmoid()


@register
@dataclasses.dataclass(frozen=True)
class Erf(Op):
    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].erf()


@register
@dataclasses.dataclass(frozen=True)
class Exp(Op):
    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].exp()


@register
@dataclasses.dataclass(frozen=True)
class Log(Op):
    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].log()


@register
@dataclasses.dataclass(frozen=True)
class Reciprocal(Op):
    def evaluate(self, *xs: Tensor) -> Tensor:
        return 1 / xs[0]


@register
@dataclasses.dataclass(frozen=True)
class Sqrt(Op):
    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].sqrt()


@register
@dataclasses.dataclass(frozen=True)
class Rsqrt(Op):
    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].rsqrt()


@register
@dataclasses.dataclass(frozen=True)
class Square(Op):
    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].square()


@register
@dataclasses.dataclass(frozen=True)
class Maximum(Op):
    """The maximum over the last dimension, which stays with size 1."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].amax(-1, keepdim=True)


_ = math
