"""Nodes for ops on windows of an image, which both importers use: maxima, resizing, padding, transposed convolutions.

Invariant: each function computes in real arithmetic what its docstring says, with `build`'s ops. An image has the shape
(batch, channels, *size).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops import linear


def pad(x: Node, dim: int, before: int, after: int, value: float, name: str) -> Node:
    """x with `value` added before and after it along a dimension; negative counts cut entries off."""
    x = build.slice_(x, dim, max(-before, 0), x.shape[dim] - max(-after, 0), 1, name)

    def block(count: int) -> list[Node]:
        dims = build.limited([count if d == dim else n for d, n in enumerate(x.shape)], name)
        return [build.constant(torch.full(dims, value, dtype=torch.float64), name)] if count else []

    return build.concat([*block(max(before, 0)), x, *block(max(after, 0))], dim, name)


# Six numbers describe how windows lie on a dimension, in every library.
def window_indices(
    size: int, kernel: int, stride: int, pads: tuple[int, int] = (0, 0), dilation: int = 1, ceil: bool = False
) -> Tensor:
    """The indices (windows, kernel) of every window along a dimension of this size.

    An index in the padding is replaced by another of the same window. `ceil`: a last window that reaches beyond the
    padding counts, if it begins inside the image or the padding before it.
    """
    before, after = pads
    if stride < 1 or kernel < 1 or dilation < 1:
        raise InvalidValueError(
            f"windows of {kernel} entries, {stride} apart, with dilation {dilation}; give 1 or more"
        )
    room = size + before + after - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + before:
        count -= 1
    build.limited((max(count, 0), kernel), "windows")
    index = torch.arange(max(count, 0))[:, None] * stride - before + dilation * torch.arange(kernel)
    inside = (index >= 0) & (index < size)
    if count < 1 or not bool(inside.any(1).all()):
        raise InvalidValueError(f"a window of {kernel} entries lies outside a dimension of {size}, or in its padding")
    some = index.gather(1, inside.int().argmax(1, keepdim=True))
    return torch.where(inside, index, some)


def adaptive_indices(size: int, count: int) -> Tensor:
    """The indices (count, longest) of n windows that cover a dimension of s entries, i from ⌊i s/n⌋ to ⌈(i+1) s/n⌉."""
    starts = [i * size // count for i in range(count)]
    ends = [-(-(i + 1) * size // count) for i in range(count)]
    longest = max(b - a for a, b in zip(starts, ends, strict=True))
    return torch.tensor([[min(a + j, b - 1) for j in range(longest)] for a, b in zip(starts, ends, strict=True)])


def largest(x: Node, windows: Sequence[Tensor], name: str) -> Node:
    """The maximum over windows of the last dimensions; `windows` has their indices (windows, entries) for each."""
    n, first = len(windows), len(x.shape) - len(windows)
    dims = list(x.shape[:first])
    for d, index in enumerate(windows):
        build.limited((*dims, *index.shape, *x.shape[first + d + 1 :]), name)
        x = build.take(x, first + d, index.reshape(-1), name)
        dims += list(index.shape)
    x = build.reshape(x, dims, name)
    return build.maximum(x, [first + 1 + 2 * d for d in range(n)], False, name)


def along(x: Node, dim: int, matrix: Tensor, name: str) -> Node:
    """x times a matrix (entries, new entries) along one dimension."""
    turned = build.transpose(x, dim, -1, name)
    return build.transpose(build.apply(linear.Linear(matrix), turned, name=name), dim, -1, name)


def transposed_convolution(  # the arguments of aten's and ONNX's
    x: Node,
    weight: Tensor,
    bias: Tensor | None,
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    groups: int,
    name: str,
) -> Node:
    """The transpose of the convolution with weight (channels, out / groups, *kernel), whose paddings are `pads`.

    It is the convolution, with the kernel turned around, of x with stride − 1 zeros after every entry but the last. A
    padding (before, after) cuts the result; a negative one is the output padding of aten and ONNX.
    """
    n, kernel = weight.dim() - 2, weight.shape[2:]
    for d, (k, stride, dilation, (before, after)) in enumerate(zip(kernel, strides, dilations, pads, strict=True)):
        dim, size = 2 + d, x.shape[2 + d]
        if stride > 1:
            apart = build.reshape(x, (*x.shape[: dim + 1], 1, *x.shape[dim + 1 :]), name)
            wide = pad(apart, dim + 1, 0, stride - 1, 0.0, name)
            x = build.reshape(wide, (*x.shape[:dim], size * stride, *x.shape[dim + 1 :]), name)
            x = build.slice_(x, dim, 0, (size - 1) * stride + 1, 1, name)
        reach = dilation * (k - 1)
        x = pad(x, dim, reach - before, reach - after, 0.0, name)
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    turned = weight.flip(list(range(2, 2 + n))).reshape(groups, inputs, outputs, *kernel)
    turned = turned.transpose(1, 2).reshape(groups * outputs, inputs, *kernel)
    return build.convolution(x, turned, bias, [1] * n, [0] * n, dilations, groups, name)
