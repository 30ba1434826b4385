"""Ops that only move, copy or drop numbers: exact in every respect."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.ops.contract import AffineOp, Shape, Step
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.registry import register


class Moving(AffineOp):
    """An op whose output numbers are input numbers: the interval is that of the ends."""

    def interval(self, *boxes: Interval) -> Interval:
        """The ends, moved as the values are."""
        return Interval(self.evaluate(*(b.lower for b in boxes)), self.evaluate(*(b.upper for b in boxes)))


@register
@dataclasses.dataclass(frozen=True)
class Reshape(Moving):
    """The same numbers in order, in another shape."""

    before: Shape
    after: Shape

    rearranges = True

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., *before) → (..., *after)"""
        return xs[0].reshape((*xs[0].shape[: xs[0].dim() - len(self.before)], *self.after))

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A in the shape of the input."""
        return Step((A.reshape(*A.shape[:2], *self.before),))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """A dimension that is there before and after, with as many numbers before it and behind it."""
        left = math.prod(self.after[:dimension])
        for d, n in enumerate(self.before):
            if n == self.after[dimension] and math.prod(self.before[:d]) == left:
                return (d,)
        return None


@register
@dataclasses.dataclass(frozen=True)
class Permute(Moving):
    """torch.permute: dimension d of the output is dimension dims[d] of the input."""

    dims: Shape

    rearranges = True

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The input with its dimensions reordered."""
        lead = xs[0].dim() - len(self.dims)
        return xs[0].permute(*range(lead), *(lead + d for d in self.dims))

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A with its dimensions in the input's order."""
        inverse = sorted(range(len(self.dims)), key=self.dims.__getitem__)
        return Step((A.permute(0, 1, *(2 + d for d in inverse)),))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension, moved to its place in the input."""
        return (self.dims[dimension],)


@register
@dataclasses.dataclass(frozen=True)
class Slice(Moving):
    """Every step-th index of one dimension from start until before stop; `rank` dimensions, `size` its length."""

    dim: int
    start: int
    stop: int
    step: int
    rank: int
    size: int

    def _index(self) -> tuple[Any, ...]:
        return (..., slice(self.start, self.stop, self.step), *[slice(None)] * (self.rank - 1 - self.dim))

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The selected part of the input."""
        return xs[0][self._index()]

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A at the selected places, 0 elsewhere."""
        shape = list(A.shape)
        shape[2 + self.dim] = self.size
        back = A.new_zeros(shape)
        back[self._index()] = A
        return Step((back,))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension but the sliced one."""
        return None if dimension == self.dim else (dimension,)


@register
@dataclasses.dataclass(frozen=True)
class Take(Moving):
    """The given indices of one dimension (integers, may repeat); `rank` dimensions, `size` its length."""

    dim: int
    index: Tensor
    rank: int
    size: int

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The input at the given indices."""
        return xs[0].index_select(xs[0].dim() - self.rank + self.dim, self.index)

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A added up at the places that it was taken from."""
        shape = list(A.shape)
        shape[2 + self.dim] = self.size
        return Step((A.new_zeros(shape).index_add(2 + self.dim, self.index, A),))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension but the indexed one."""
        return None if dimension == self.dim else (dimension,)


@register
@dataclasses.dataclass(frozen=True)
class Concat(Moving):
    """Inputs one behind the other along a dimension, where they have the given sizes; `rank` dimensions."""

    dim: int
    sizes: Shape
    rank: int

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The inputs, concatenated."""
        lead = np.broadcast_shapes(*(x.shape[: x.dim() - self.rank] for x in xs))
        return torch.cat([x.expand(*lead, *x.shape[x.dim() - self.rank :]) for x in xs], self.dim - self.rank)

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """For each input its part of A."""
        ends = list(itertools.accumulate(self.sizes, initial=0))
        return Step(tuple(A.narrow(2 + self.dim, at, n) for at, n in zip(ends, self.sizes, strict=False)))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension but the one of the concatenation."""
        return None if dimension == self.dim else tuple(dimension for _ in self.sizes)


@register
@dataclasses.dataclass(frozen=True)
class Expand(Moving):
    """Dimensions of size 1 repeated; both shapes have the same number of dimensions."""

    before: Shape
    after: Shape

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., *before) → (..., *after)"""
        return xs[0].expand(*xs[0].shape[: xs[0].dim() - len(self.before)], *self.after)

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A, summed over the repetitions."""
        dims = [2 + d for d, (a, b) in enumerate(zip(self.before, self.after, strict=True)) if a != b]
        return Step((A.sum(dims, keepdim=True) if dims else A,))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension that is not repeated."""
        return (dimension,) if self.before[dimension] == self.after[dimension] else None
