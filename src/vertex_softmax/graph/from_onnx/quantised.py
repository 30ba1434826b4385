"""Translations of QuantizeLinear and DequantizeLinear, the two operators of quantised models in the form QDQ.

Invariant: a quantised tensor is a node whose values are its whole numbers. QuantizeLinear is
clamp(x / scale, least − zero, most − zero), rounded to a whole number (ops/rounding.py), plus zero. Cutting before
rounding is the same as cutting after it, since the ends are whole numbers. The rounding has bounds that hold whichever
way a number next to a tie is rounded, so that it does not matter in which precision x / scale is computed.

Only DequantizeLinear, and operators that move numbers, may follow on whole numbers (`MOVING`): arithmetic of integers
wraps around, which real numbers do not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx.file import DTYPES
from vertex_softmax.graph.from_onnx.ops import OnnxCall, Unsupported, translates
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.rounding import Round

RANGES = {
    torch.uint8: (0, 255),
    torch.int8: (-128, 127),
    torch.int16: (-32768, 32767),
    torch.uint16: (0, 65535),
}
"""The least and the largest number of each type that activations are quantised to."""
MOVING = frozenset(
    (
        "DequantizeLinear",
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "MaxPool",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    )
)
"""Operators that may take quantised tensors."""


def _broadcast(call: OnnxCall, value: Tensor, dims: tuple[int, ...], what: str) -> Tensor:
    """A scale or zero point, one for all numbers or one for each entry of `axis`, so that it broadcasts to dims."""
    if call.get("block_size", 0):
        raise Unsupported("blocks of numbers with scales of their own are not supported")
    if value.numel() == 1:
        return value.reshape(())
    rank, axis = len(dims), int(call.get("axis", 1))
    if not -rank <= axis < rank or value.shape != (dims[axis],):
        raise Unsupported(f"{what} has shape {tuple(value.shape)}, and the input {dims} with axis {axis}")
    return value.reshape(-1, *[1] * (rank - 1 - axis % rank))


def _scale_and_zero(call: OnnxCall, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, torch.dtype]:
    """(scale, zero, type of the whole numbers), both in float64 and broadcast to dims."""
    scale = _broadcast(call, call.value(1, "the scale"), dims, "the scale").double()
    if not bool((scale > 0).all()) or not bool(scale.isfinite().all()):
        raise Unsupported("a scale is not a positive number")
    if not call.has(2):
        return scale, torch.zeros((), dtype=torch.float64), torch.uint8
    zero = call.value(2, "the zero point")
    return scale, _broadcast(call, zero, dims, "the zero point").double(), zero.dtype


@translates("QuantizeLinear")
def _quantize(call: OnnxCall) -> Node:
    """The whole numbers of x; a constant is rounded as onnxruntime does, in float32."""
    scale, zero, kind = _scale_and_zero(call, call[0].shape)
    if not call.has(2) and call.get("output_dtype", 0):
        kind = DTYPES.get(int(call.get("output_dtype", 0)), torch.bool)
    if kind not in RANGES or int(call.get("precision", 0)):
        raise Unsupported(f"it quantises to {kind}; whole numbers of 8 or 16 bits are supported")
    least, most = RANGES[kind]
    if call.constant:
        x = call.value(0, "the input")
        if call.model_dtype(0) != torch.float32:
            raise Unsupported(f"it quantises a constant in {call.model_dtype(0)}; float32 is supported")
        whole = (x.float() / scale.float()).round() + zero.float()
        return build.constant(whole.clamp(least, most).to(kind), call.name)
    if zero.numel() > 1:
        raise Unsupported("activations with a zero point for each channel are not supported")
    steps = build.divide(call[0], build.constant(scale), call.name)
    op = Round(least - float(zero), most - float(zero))
    return build.add(build.apply(op, steps, name=call.output), build.constant(zero), call.name)


@translates("DequantizeLinear")
def _dequantize(call: OnnxCall) -> Node:
    """(whole number − zero) · scale; of a constant in the type of the scale."""
    scale, zero, _ = _scale_and_zero(call, call[0].shape)
    if int(call.get("output_dtype", 0)) not in (0, 1):
        raise Unsupported("an output_dtype other than float32 is not supported")
    value = build.value_of(call[0])
    if value is not None:
        if value.is_floating_point() or value.dtype == torch.bool:
            raise Unsupported(f"its input is {value.dtype}; whole numbers are supported")
        return build.constant((value.double() - zero) * scale, call.name)
    return build.multiply(build.subtract(call[0], build.constant(zero), call.name), build.constant(scale), call.name)
