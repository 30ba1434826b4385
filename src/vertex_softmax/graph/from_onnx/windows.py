"""Translations of ONNX operators on windows of an image: convolutions, pooling, resizing, and Pad (see ops.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx.ops import OnnxCall, Unsupported, limited, translates
from vertex_softmax.graph.ir import Node
from vertex_softmax.graph.windows import along, largest, pad, transposed_convolution, window_indices


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
    """The maximum over windows."""
    kernel = [int(v) for v in call.get("kernel_shape", [])]
    strides, dilations, pads = _window(call, kernel)
    if call.used > 1:
        raise Unsupported("its indices are used as an output")
    if call.get("auto_pad", "NOTSET") != "NOTSET" and any(dilation > 1 for dilation in dilations):
        raise Unsupported("auto_pad with dilations: onnxruntime pads as if there were none, unlike the ONNX standard")
    x, ceil = call[0], bool(call.get("ceil_mode", 0))
    try:
        windows = [
            window_indices(x.shape[2 + d], kernel[d], strides[d], pads[d], dilations[d], ceil)
            for d in range(len(kernel))
        ]
    except InvalidValueError as error:
        raise Unsupported(str(error)) from error
    limited([n for index in windows for n in index.shape])
    return largest(x, windows, call.name)


@translates("ConvTranspose")
def _transposed_convolution(call: OnnxCall) -> Node:
    """The transpose of a convolution; `output_shape` and automatic padding are not read."""
    weight = call.value(1, "the weight")
    bias = call.value(2, "the bias") if call.has(2) else None
    n = weight.dim() - 2
    if call.get("output_shape", None) or call.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Unsupported("output_shape and auto_pad are not supported")
    if n not in (1, 2, 3) or len(call[0].shape) != n + 2:
        raise Unsupported(f"the weight has shape {tuple(weight.shape)}, the input {call[0].shape}")
    strides = [int(v) for v in call.get("strides", [1] * n)]
    dilations = [int(v) for v in call.get("dilations", [1] * n)]
    more, given = call.get("output_padding", [0] * n), call.get("pads", [0] * 2 * n)
    if tuple(call.get("kernel_shape", weight.shape[2:])) != tuple(weight.shape[2:]):
        raise Unsupported(f"kernel_shape is {call.get('kernel_shape', [])}, the weight {tuple(weight.shape)}")
    pads = [(int(given[d]), int(given[n + d]) - int(more[d])) for d in range(n)]
    sizes = zip(call[0].shape[2:], strides, weight.shape[2:], dilations, strict=True)
    limited((*call[0].shape[:2], *(size * stride + 2 * dilation * k for size, stride, k, dilation in sizes)))
    group = int(call.get("group", 1))
    return transposed_convolution(call[0], weight, bias, strides, pads, dilations, group, call.name)


@translates("Resize", "Upsample")
def _resize(call: OnnxCall) -> Node:
    """Interpolation, one dimension at a time: each is a matrix, which has the weights of the standard's definition."""
    x, mode = call[0], call.get("mode", "nearest")
    if mode not in ("nearest", "linear"):
        raise Unsupported(f"mode {mode!r}; nearest and linear are supported")
    if call.get("antialias", 0) or call.get("exclude_outside", 0) or call.get("axes", None):
        raise Unsupported("antialias, exclude_outside and axes are not supported")
    old = call.kind == "Upsample" or call.opset < 11
    how = "asymmetric" if old else call.get("coordinate_transformation_mode", "half_pixel")
    rounding = "floor" if old else call.get("nearest_mode", "round_prefer_floor")
    scales, sizes = _scales(call, old)
    for d, (before, after, scale) in enumerate(zip(x.shape, sizes, scales, strict=True)):
        if (before, scale) != (after, 1.0):
            limited((before, after))
            matrix = resized(before, after, scale, how, rounding if mode == "nearest" else "")
            x = along(x, d, matrix, call.name)
            limited(x.shape)
    return x


def _scales(call: OnnxCall, old: bool) -> tuple[list[float], list[int]]:
    """The scale and the new size of every dimension."""
    dims = call[0].shape
    if old and call.kind == "Upsample" and call.opset < 9:
        raise Unsupported("Upsample before opset 9")
    place = 1 if old else 2
    if not old and call.has(3) and call.value(3, "the sizes").numel():
        sizes = call.ints(3, "the sizes")
        scales = [after / before for before, after in zip(dims, sizes, strict=True)]
        if call.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Unsupported("only keep_aspect_ratio_policy 'stretch' is supported")
        return scales, sizes
    scales = [float(v) for v in call.value(place, "the scales").reshape(-1).tolist()]
    if len(scales) != len(dims) or any(not 0 < scale < math.inf for scale in scales):
        raise Unsupported(f"scales are {scales}, and the input has the shape {dims}")
    return scales, [math.floor(n * scale) for n, scale in zip(dims, scales, strict=True)]


def resized(before: int, after: int, scale: float, how: str, rounding: str) -> torch.Tensor:
    """The matrix (before, after) of an interpolation; `rounding` is how nearest rounds, empty for linear."""
    at = torch.arange(after, dtype=torch.float64)
    if how == "half_pixel" or (how == "pytorch_half_pixel" and after > 1):
        place = (at + 0.5) / scale - 0.5
    elif how == "pytorch_half_pixel":
        place = 0 * at
    elif how == "align_corners":
        place = at * (before - 1) / (after - 1) if after > 1 else 0 * at
    elif how == "asymmetric":
        place = at / scale
    else:
        raise Unsupported(f"coordinate_transformation_mode {how!r} is not supported")
    matrix = torch.zeros(before, after, dtype=torch.float64)
    columns = torch.arange(after)
    if rounding:
        rounds: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "round_prefer_floor": lambda p: torch.ceil(p - 0.5),
            "round_prefer_ceil": lambda p: torch.floor(p + 0.5),
            "floor": torch.floor,
            "ceil": torch.ceil,
        }
        if rounding not in rounds:
            raise Unsupported(f"nearest_mode {rounding!r} is not supported")
        matrix[rounds[rounding](place).clamp(0, before - 1).long(), columns] = 1.0
        return matrix
    place = place.clamp(0, before - 1)
    left = place.floor().long()
    share = place - left
    matrix[left, columns] += 1 - share
    matrix[(left + 1).clamp(max=before - 1), columns] += share
    return matrix


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
