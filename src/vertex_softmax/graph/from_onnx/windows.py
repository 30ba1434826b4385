"""Translations of ONNX operators on windows of an image: Conv, AveragePool, MaxPool, and Pad (see ops.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx.ops import OnnxCall, Unsupported, limited, translates
from vertex_softmax.graph.ir import Node


def pad(x: Node, dim: int, before: int, after: int, value: float, name: str) -> Node:
    """x with `value` added before and after it along a dimension; negative counts cut entries off."""
    x = build.slice_(x, dim, max(-before, 0), x.shape[dim] - max(-after, 0), 1, name)

    def block(count: int) -> list[Node]:
        dims = limited([count if d == dim else n for d, n in enumerate(x.shape)])
        return [build.constant(torch.full(dims, value, dtype=torch.float64), name)] if count else []

    return build.concat([*block(max(before, 0)), x, *block(max(after, 0))], dim, name)


def _window(call: OnnxCall, kernel: Sequence[int]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """(strides, dilations, paddings) of each dimension; a padding is (before, after)."""
    n, size = len(kernel), call[0].shape[2:]
    if len(size) != n:
        raise Unsupported(f"a kernel of shape {tuple(kernel)} does not fit an input of shape {call[0].shape}")
    strides = [int(v) for v in call.get("strides", [1] * n)]
    dilations = [int(v) for v in call.get("dilations", [1] * n)]
    auto = call.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for s, k, stride, dilation in zip(size, kernel, strides, dilations, strict=True):
            missing = max((-(-s // stride) - 1) * stride + (k - 1) * dilation + 1 - s, 0)
            small, large = missing // 2, missing - missing // 2
            pads.append((small, large) if auto == "SAME_UPPER" else (large, small))
        return strides, dilations, pads
    given = [int(v) for v in call.get("pads", [0] * 2 * n)] if auto == "NOTSET" else [0] * 2 * n
    return strides, dilations, list(zip(given[:n], given[n:], strict=True))


@translates("Conv")
def _convolution(call: OnnxCall) -> Node:
    x, weight = call[0], call.value(1, "the weight")
    bias = call.value(2, "the bias") if call.has(2) else None
    if weight.dim() not in (3, 4, 5):
        raise Unsupported(f"the weight has shape {tuple(weight.shape)}; 1 to 3 dimensions are supported")
    if tuple(call.get("kernel_shape", weight.shape[2:])) != tuple(weight.shape[2:]):
        raise Unsupported(f"kernel_shape is {call.get('kernel_shape', [])}, the weight {tuple(weight.shape)}")
    strides, dilations, pads = _window(call, weight.shape[2:])
    if any(a != b for a, b in pads):
        for d, (before, after) in enumerate(pads):
            x = pad(x, 2 + d, before, after, 0.0, call.name)
        pads = [(0, 0)] * len(pads)
    group = int(call.get("group", 1))
    return build.convolution(x, weight, bias, strides, [a for a, _ in pads], dilations, group, call.name)


@translates("AveragePool")
def _average_pool(call: OnnxCall) -> Node:
    """A convolution of each channel with ones, divided by the number of entries of each window."""
    kernel = [int(v) for v in call.get("kernel_shape", [])]
    strides, dilations, pads = _window(call, kernel)
    if call.get("ceil_mode", 0) or any(a != b for a, b in pads):
        raise Unsupported("ceil_mode and padding that differs between the sides are not supported")
    channels, padding = call[0].shape[1], [a for a, _ in pads]
    limited([s + 2 * p for s, p in zip(call[0].shape[2:], padding, strict=True)])
    ones = torch.ones(limited((channels, 1, *kernel)), dtype=torch.float64)
    total = build.convolution(call[0], ones, None, strides, padding, dilations, channels, call.name)
    image = build.constant(torch.ones(1, channels, *call[0].shape[2:], dtype=torch.float64))
    inside = build.convolution(image, ones, None, strides, padding, dilations, channels, call.name)
    whole = build.constant(torch.tensor(float(math.prod(kernel)), dtype=torch.float64))
    return build.divide(total, whole if call.get("count_include_pad", 0) else inside, call.name)


@translates("MaxPool")
def _max_pool(call: OnnxCall) -> Node:
    """The maximum over windows; an index in the padding is replaced by another index of the same window."""
    kernel = [int(v) for v in call.get("kernel_shape", [])]
    strides, dilations, pads = _window(call, kernel)
    if call.get("ceil_mode", 0) or any(d != 1 for d in dilations) or call.used > 1:
        raise Unsupported("ceil_mode, dilations and the output of indices are not supported")
    x, n = call[0], len(kernel)
    dims: list[int] = list(x.shape[:2])
    for d, (k, stride, (before, after)) in enumerate(zip(kernel, strides, pads, strict=True)):
        size = x.shape[2 + d]
        if max(before, after) >= k:
            raise Unsupported("a window lies entirely in the padding")
        count = (size + before + after - k) // stride + 1
        limited((*dims, count, k, *x.shape[3 + d :]))
        index = torch.arange(count)[:, None] * stride - before + torch.arange(k)
        x = build.take(x, 2 + d, index.clamp(0, size - 1).reshape(-1), call.name)
        dims += [count, k]
    x = build.reshape(x, dims, call.name)
    return build.maximum(x, [3 + 2 * d for d in range(n)], False, call.name)


@translates("Pad")
def _pad(call: OnnxCall) -> Node:
    x = call[0]
    given = call.get("pads", []) if call.opset < 11 else call.ints(1, "the padding")
    value = float(call.get("value", 0.0))
    if call.opset >= 11:
        value = float(call.value(2, "the value")) if call.has(2) else 0.0
    if call.get("mode", "constant") != "constant":
        raise Unsupported("only the mode 'constant' is supported")
    if call.constant and not call.value(0, "").is_floating_point():
        raise Unsupported("it pads integers")
    axes = call.ints(3, "the axes") if call.has(3) else list(range(len(x.shape)))
    pairs = itertools.zip_longest(given[: len(axes)], given[len(axes) :], fillvalue=0)
    for axis, (before, after) in zip(axes, pairs, strict=True):
        x = pad(x, axis % len(x.shape), int(before), int(after), value, call.name)
    return x
