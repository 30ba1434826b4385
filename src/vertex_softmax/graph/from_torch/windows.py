"""Translations of aten's convolutions, pooling and resizing to Vertex's ops (see ops.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_torch.ops import TorchCall, Value, parameter, times, translates
from vertex_softmax.graph.ir import Node
from vertex_softmax.graph.windows import adaptive_indices, along, largest, transposed_convolution, window_indices

aten = torch.ops.aten


def every(values: Sequence[int], n: int) -> tuple[int, ...]:
    """One number for each of n dimensions; a single one is for all of them."""
    return tuple(values) * (n if len(values) == 1 else 1)


@translates("conv1d", "conv2d", "conv3d")
def _convolution(  # aten's signature
    call: TorchCall,
    x: Node,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Node:
    w = parameter(weight, "the weight of a convolution")
    if w is None:
        raise UnsupportedModelError("a convolution without a weight")
    n = w.dim() - 2
    if len(x.shape) == n + 1:
        raise UnsupportedModelError("a convolution without a batch dimension: add one of size 1")
    strides, zeros, dilations = (every(v, n) for v in (stride, padding, dilation))
    return build.convolution(x, w, parameter(bias, "the bias"), strides, zeros, dilations, groups, call.name)


@translates("convolution")
def _any_convolution(  # aten's signature
    call: TorchCall,
    x: Node,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Node:
    """What convolutions with padding="same" and transposed ones are decomposed to."""
    if not transposed:
        return _convolution(call, x, weight, bias, stride, padding, dilation, groups)
    w = parameter(weight, "the weight of a convolution")
    if w is None or len(x.shape) != w.dim():
        raise UnsupportedModelError("a convolution without a batch dimension: add one of size 1")
    n = w.dim() - 2
    strides, zeros, more, dilations = (every(v, n) for v in (stride, padding, output_padding, dilation))
    pads = [(p, p - extra) for p, extra in zip(zeros, more, strict=True)]
    return transposed_convolution(x, w, parameter(bias, "the bias"), strides, pads, dilations, groups, call.name)


def dimensions(call: TorchCall) -> int:
    """The number of dimensions of the images of an op whose name ends in 1d or 2d, or has that in its middle."""
    return 1 if "1d" in call.name.rpartition("/")[2] else 2


def by_its_own(x: Node, n: int, op: Callable[[Tensor, int], Tensor], name: str) -> Node:
    """An affine op that acts on each of the last n dimensions alone: its matrices are what it makes of the identity.

    `op(image, d)` is the op along dimension d, for an image of size 1 along the others; the matrix has one row for each
    entry of that dimension, and is the op's own in float64.
    """
    first = len(x.shape) - n
    for d in range(n):
        size = x.shape[first + d]
        image = torch.eye(size, dtype=torch.float64).reshape(1, size, *[size if i == d else 1 for i in range(n)])
        made = op(image, d)
        matrix = made.movedim(2 + d, 2).flatten(3)[0, :, :, 0] if n > 1 else made[0]
        x = along(x, first + d, matrix.contiguous(), name)
    return x


@translates("avg_pool1d", "avg_pool2d")
def _average_pool(  # aten's signature
    call: TorchCall,
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """Average pooling as a convolution of every channel with a constant kernel, or else one dimension at a time."""
    n = dimensions(call)
    size, channels, zeros = every(kernel, n), x.shape[1], every(padding, n)
    steps = every(stride, n) if stride else size
    if not ceil_mode and divisor_override is None and (count_include_pad or not any(padding)):
        weight = torch.full((channels, 1, *size), 1.0 / math.prod(size), dtype=torch.float64)
        return _convolution(call, x, weight, None, steps, zeros, (1,), channels)

    def only(values: Sequence[int], d: int, other: int) -> list[int]:
        return [v if i == d else other for i, v in enumerate(values)]

    def along_one(image: Tensor, d: int) -> Tensor:
        if n == 1:
            made: Tensor = aten.avg_pool1d(image, size, steps, zeros, ceil_mode, count_include_pad)
            return made
        one = 1 if divisor_override is not None else None
        pooled: Tensor = aten.avg_pool2d(
            image, only(size, d, 1), only(steps, d, 1), only(zeros, d, 0), ceil_mode, count_include_pad, one
        )
        return pooled

    pooled = by_its_own(x, n, along_one, call.name)
    return pooled if divisor_override is None else times(call, pooled, 1 / divisor_override)


@translates("_adaptive_avg_pool2d", "adaptive_avg_pool1d")
def _adaptive_average_pool(call: TorchCall, x: Node, size: Sequence[int]) -> Node:
    """The averages of windows that cover the image."""
    n = dimensions(call)

    def along_one(image: Tensor, d: int) -> Tensor:
        made: Tensor = aten._adaptive_avg_pool2d(image, [size[i] if i == d else 1 for i in range(2)])
        return made

    if n == 1:
        return by_its_own(x, 1, lambda image, _: aten.adaptive_avg_pool1d(image, size), call.name)
    return by_its_own(x, n, along_one, call.name)


@translates("max_pool2d_with_indices", "max_pool2d", "max_pool1d")
def _max_pool(  # aten's signature
    call: TorchCall,
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """The maximum of every window; its indices are not read."""
    n = dimensions(call)
    sizes = every(kernel, n)
    steps, zeros, dilations = every(stride, n) if stride else sizes, every(padding, n), every(dilation, n)
    windows = [
        window_indices(x.shape[len(x.shape) - n + d], sizes[d], steps[d], (zeros[d], zeros[d]), dilations[d], ceil_mode)
        for d in range(n)
    ]
    out = largest(x, windows, call.name)
    return (out,) if call.name.endswith("with_indices") else out


@translates("adaptive_max_pool2d")
def _adaptive_max_pool(call: TorchCall, x: Node, size: Sequence[int]) -> tuple[Node]:
    """The maxima of windows that cover the image; their indices are not read."""
    windows = [adaptive_indices(x.shape[len(x.shape) - 2 + d], int(size[d])) for d in range(2)]
    return (largest(x, windows, call.name),)


@translates("upsample_bilinear2d", "upsample_bicubic2d", "upsample_nearest2d")
def _resize(call: TorchCall, x: Node, _size: Sequence[int] | None, *rest: Any, **keywords: Any) -> Node:
    """Interpolation of images, which is an affine map of rows and one of columns.

    The sizes are those of the result; scales, which may differ from the ratio of sizes, are kept.
    """
    name = call.name.rpartition("/")[2]
    corners = [] if name == "upsample_nearest2d" else [bool(rest[0])]
    scales = list(rest[len(corners) :]) or [keywords.get("scale_factors") or keywords.get("scales_h")]
    if len(scales) == 1:
        scales = [None, None] if scales[0] is None else list(scales[0])
    op = getattr(aten, name).default

    def along_one(image: Tensor, d: int) -> Tensor:
        sizes = [call.shape[2 + i] if i == d else 1 for i in range(2)]
        made: Tensor = op(image, sizes, *corners, *(scale if i == d else None for i, scale in enumerate(scales)))
        return made

    return by_its_own(x, 2, along_one, call.name)
