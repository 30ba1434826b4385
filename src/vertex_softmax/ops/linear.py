"""Affine ops: their backward rule is the transposed map, exact, and their interval the image of centre and radius."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.grad import conv1d_input, conv2d_input, conv3d_input

from vertex_softmax.foundation.tolerances import OUTWARD, rounded_constants
from vertex_softmax.ops.contract import AffineOp, Shape, Step
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.registry import register
from vertex_softmax.ops.tensors import sum_to, times

HUGE = 1e30
"""Constants beyond this are masks; others are refused."""


def image(box: Interval, middle: Callable[[Tensor], Tensor], spread: Callable[[Tensor], Tensor]) -> Interval:
    """centre and radius through an affine map and through its absolute value; outward by what the sums may round."""
    centre, radius = middle(box.centre), spread(box.radius)
    share = OUTWARD[centre.dtype]
    if share > 0:  # of the terms: |W|·|x|, and the bias, which is at most |W x| + |W x + bias|
        radius = radius + share * (2 * spread(box.centre.abs() + box.radius) + centre.abs())
    return Interval(centre - radius, centre + radius)


@register
@dataclasses.dataclass(frozen=True)
class Linear(AffineOp):
    """x @ weight + bias along the last dimension; weight (..., in, out) broadcasts, bias (out,) or None."""

    weight: Tensor
    bias: Tensor | None = None

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., in) → (..., out)"""
        y = times(xs[0], self.weight)
        return y if self.bias is None else y + self.bias

    def linear(self, *xs: Tensor) -> Tensor:
        """(..., in) → (..., out)"""
        return times(xs[0], self.weight)

    def interval(self, *boxes: Interval) -> Interval:
        """The exact range of each output."""
        return image(boxes[0], self.evaluate, lambda r: times(r, self.weight.abs()))

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """The coefficients A Wᵀ and the constant A·bias."""
        constant = None if self.bias is None else sum_to(A * self.bias, diagonal)
        return Step((times(A, self.weight.mT),), constant)

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension but the last."""
        return None if dimension == len(shape) - 1 or self.weight.dim() > 2 else (dimension,)


@register
@dataclasses.dataclass(frozen=True)
class LeftLinear(AffineOp):
    """weight @ x over the last two dimensions; weight (..., out, in) broadcasts."""

    weight: Tensor

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., in, n) → (..., out, n)"""
        return self.weight @ xs[0]

    def interval(self, *boxes: Interval) -> Interval:
        """The exact range of each output."""
        return image(boxes[0], self.evaluate, lambda r: self.weight.abs() @ r)

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """The coefficients Wᵀ A."""
        return Step((self.weight.mT @ A,))


@register
@dataclasses.dataclass(frozen=True)
class Convolution(AffineOp):
    """torch's conv1d / conv2d / conv3d of (N, channels, *size): weight, bias or None, and their arguments."""

    weight: Tensor
    bias: Tensor | None
    size: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        n = len(self.size)
        function = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[n - 1]
        flat = x.reshape(-1, *x.shape[-n - 1 :])
        y: Tensor = function(flat, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        return y.reshape(*x.shape[: -n - 1], *y.shape[1:])

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., N, channels, *size) → (..., N, out channels, *out size)"""
        return self._convolve(xs[0], self.weight, self.bias)

    @property
    def cuts_patches(self) -> bool:
        """Whether every number of the input is in one window: the windows lie beside each other and are all of it."""
        window = tuple(self.weight.shape[2:])
        plain = self.groups == 1 and not any(self.padding) and all(d == 1 for d in self.dilation)
        return (
            plain and tuple(self.stride) == window and all(n % w == 0 for n, w in zip(self.size, window, strict=True))
        )

    def patches(self, x: Tensor) -> Tensor:
        """The windows of a convolution that cuts patches: (..., N, channels, *size) → (..., N, numbers, *out size)."""
        lead, n = x.dim() - len(self.size), len(self.size)
        cut = [size for whole, w in zip(self.size, self.weight.shape[2:], strict=True) for size in (whole // w, w)]
        cut_up = x.reshape(*x.shape[:lead], *cut)
        order = [*range(lead), *(lead + 2 * i + 1 for i in range(n)), *(lead + 2 * i for i in range(n))]
        return cut_up.permute(order).flatten(lead - 1, lead - 1 + n)

    def linear(self, *xs: Tensor) -> Tensor:
        """(..., N, channels, *size) → (..., N, out channels, *out size)"""
        return self._convolve(xs[0], self.weight, None)

    def interval(self, *boxes: Interval) -> Interval:
        """The exact range of each output."""
        return image(boxes[0], self.evaluate, lambda r: self._convolve(r, self.weight.abs(), None))

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """The transposed convolution of A, and the constant A·bias."""
        n = len(self.size)
        flat = A.reshape(-1, *A.shape[-n - 1 :])
        gradient = (conv1d_input, conv2d_input, conv3d_input)[n - 1]
        shape = (flat.shape[0], self.weight.shape[1] * self.groups, *self.size)
        arguments = (self.stride, self.padding, self.dilation, self.groups)
        back: Tensor = gradient(shape, self.weight, flat, *arguments)  # type: ignore[no-untyped-call]
        constant = None if self.bias is None else sum_to(A * self.bias.reshape(-1, *[1] * n))
        return Step((back.reshape(*A.shape[: -n - 1], *shape[1:]),), constant)


@register
@dataclasses.dataclass(frozen=True)
class Scale(AffineOp):
    """x · factor, elementwise; factor broadcasts to x's shape."""

    factor: Tensor

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The elementwise product with the factor."""
        return xs[0] * self.factor

    def interval(self, *boxes: Interval) -> Interval:
        """Exact; the ends change places where the factor is negative."""
        a, b = boxes[0].lower * self.factor, boxes[0].upper * self.factor
        return Interval(torch.minimum(a, b), torch.maximum(a, b))

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """The coefficients A · factor."""
        return Step((A * self.factor,))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension."""
        return (dimension,)


@register
@dataclasses.dataclass(frozen=True)
class Divide(Scale):
    """x / divisor, elementwise, as a Scale whose factor is 1 / divisor, rounded.

    What it stands for is the exact quotient: rules that recognise functions ask for the divisor.
    """

    divisor: Tensor

    @classmethod
    def by(cls, divisor: Tensor) -> Divide:
        """The op that divides by these numbers, in double precision."""
        return cls(1 / divisor.double(), divisor.double())


@register
@dataclasses.dataclass(frozen=True)
class Shift(AffineOp):
    """x + offset, elementwise; offset broadcasts to x's shape."""

    offset: Tensor

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The elementwise sum with the offset."""
        return xs[0] + self.offset

    def linear(self, *xs: Tensor) -> Tensor:
        """The input itself."""
        return xs[0]

    def interval(self, *boxes: Interval) -> Interval:
        """The ends, moved by the offset; outward by how much it may have been rounded, however much of it cancels."""
        low, high = (end + self.offset for end in boxes[0])
        share = rounded_constants(low.dtype)
        off = share * torch.where(self.offset.abs() < HUGE, self.offset.abs(), 0.0)  # beyond, it is a mask
        return Interval(low, high) if share == 0 else Interval(low - off, high + off)

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """The coefficients A and the constant A·offset."""
        return Step((A,), sum_to(A * self.offset, diagonal))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension."""
        return (dimension,)


@register
@dataclasses.dataclass(frozen=True)
class Add(AffineOp):
    """x + y, of one shape."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The elementwise sum."""
        return xs[0] + xs[1]

    def interval(self, *boxes: Interval) -> Interval:
        """The sums of the ends."""
        return Interval(boxes[0].lower + boxes[1].lower, boxes[0].upper + boxes[1].upper)

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """The coefficients A on both inputs."""
        return Step((A, A))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension."""
        return (dimension, dimension)


@register
@dataclasses.dataclass(frozen=True)
class Subtract(AffineOp):
    """x − y, of one shape."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The elementwise difference."""
        return xs[0] - xs[1]

    def interval(self, *boxes: Interval) -> Interval:
        """The differences of opposite ends."""
        return Interval(boxes[0].lower - boxes[1].upper, boxes[0].upper - boxes[1].lower)

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """The coefficients A and −A."""
        return Step((A, -A))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension."""
        return (dimension, dimension)


@register
@dataclasses.dataclass(frozen=True)
class Sum(AffineOp):
    """The sum over dimensions, which stay with size 1; `sizes` are theirs."""

    dims: Shape
    rank: int
    sizes: Shape

    def _dims(self) -> list[int]:
        return [d - self.rank for d in self.dims]

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(…, n, …) → (…, 1, …)"""
        return xs[0].sum(self._dims(), keepdim=True)

    def interval(self, *boxes: Interval) -> Interval:
        """The sums of the ends; outward by what adding up their terms may round, however much of them cancels."""
        low, high = (self.evaluate(end) for end in boxes[0])
        share = OUTWARD[low.dtype]
        if share == 0:
            return Interval(low, high)
        return Interval(
            *(
                x + side * share * self.evaluate(end.abs())
                for x, end, side in zip((low, high), boxes[0], (-1, 1), strict=True)
            )
        )

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """The coefficients A, repeated along the summed dimensions."""
        shape = list(A.shape)
        for d, n in zip(self._dims(), self.sizes, strict=True):
            shape[d] = n
        return Step((A.expand(shape),))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along the dimensions that are not summed."""
        return None if dimension in self.dims else (dimension,)
