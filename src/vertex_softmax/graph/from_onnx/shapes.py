"""Translations of ONNX operators that move numbers, reduce dimensions or compute shapes (see ops.py).

Every node has a static shape, so `Shape` is a constant, and everything computed from it is folded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx.file import DTYPES
from vertex_softmax.graph.from_onnx.ops import OnnxCall, Unsupported, limited, translates
from vertex_softmax.graph.ir import Node, order
from vertex_softmax.ops import elementwise, softmax

# Constants


@translates("Constant")
def _constant(call: OnnxCall) -> Node:
    kinds = {"value": None, "value_float": torch.float32, "value_floats": torch.float32}
    kinds |= {"value_int": torch.int64, "value_ints": torch.int64}
    for kind, dtype in kinds.items():
        if kind in call.attributes:
            value = call.attributes[kind]
            return build.constant(value if dtype is None else torch.tensor(value, dtype=dtype), call.name)
    raise Unsupported("it is a string or a sparse tensor")


@translates("ConstantOfShape")
def _constant_of_shape(call: OnnxCall) -> Node:
    value: Tensor = call.get("value", torch.zeros(1, dtype=torch.float32))
    return build.constant(value.reshape(()).expand(limited(call.ints(0, "the shape"))).clone(), call.name)


@translates("Shape")
def _shape(call: OnnxCall) -> Node:
    part = call[0].shape[slice(call.get("start", 0), call.get("end", None))]
    return build.constant(torch.tensor(part, dtype=torch.int64), call.name)


@translates("Size")
def _size(call: OnnxCall) -> Node:
    return build.constant(torch.tensor(math.prod(call[0].shape)), call.name)


@translates("Range")
def _range(call: OnnxCall) -> Node:
    start, limit, delta = (call.value(i, what) for i, what in enumerate(("the start", "the limit", "the step")))
    if float(delta) == 0:
        raise Unsupported("its step is 0")
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    steps = torch.arange(limited((count,))[0])
    return build.constant((start + steps * delta).to(start.dtype), call.name)


@translates("EyeLike")
def _eye(call: OnnxCall) -> Node:
    x = call[0]
    dtype = DTYPES.get(int(call.get("dtype", 0)), call.model_dtype(0))
    ones = torch.ones(limited(x.shape), dtype=dtype)
    k = int(call.get("k", 0))
    return build.constant(ones.triu(k).tril(k), call.name)


@translates("Cast")
def _cast(call: OnnxCall) -> Node:
    dtype = DTYPES.get(int(call.get("to", 0)))
    value = build.value_of(call[0])
    if dtype is None:
        raise Unsupported(f"element type {call.get('to', 0)} is not supported")
    if value is not None:
        return build.constant(value.to(dtype), call.name)
    if dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"it turns a variable into {dtype}; only float32 and float64 are supported")
    return call[0]


@translates("CastLike")
def _cast_like(call: OnnxCall) -> Node:
    value, dtype = build.value_of(call[0]), call.model_dtype(1)
    if value is not None:
        return build.constant(value.to(dtype), call.name)
    if dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"it turns a variable into {dtype}; only float32 and float64 are supported")
    return call[0]


def _mod(call: OnnxCall) -> Callable[[Tensor, Tensor], Tensor]:
    return torch.fmod if call.get("fmod", 0) else torch.remainder


FOLDED: dict[str, Callable[..., Tensor]] = {
    "And": torch.logical_and,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Equal": torch.eq,
    "Floor": torch.floor,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "IsInf": torch.isinf,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "Round": torch.round,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Xor": torch.logical_xor,
}
"""Operators that are supported only for constant inputs, which are folded."""


@translates(*FOLDED, "Mod")
def _fold(call: OnnxCall) -> Node:
    function = _mod(call) if call.kind == "Mod" else FOLDED[call.kind]
    if call.kind == "IsInf" and not (call.get("detect_positive", 1) and call.get("detect_negative", 1)):
        raise Unsupported("only both signs together are supported")
    values = [call.value(i, f"input {i}") for i in range(len(call.inputs))]
    return build.folded(function, *values, name=call.name)


@translates("NonZero")
def _nonzero(call: OnnxCall) -> Node:
    return build.constant(call.value(0, "the input").nonzero().mT.contiguous(), call.name)


@translates("CumSum")
def _cumsum(call: OnnxCall) -> Node:
    x = call.value(0, "the input")
    axis = call.ints(1, "the axis")[0]
    if call.get("exclusive", 0) or call.get("reverse", 0):
        raise Unsupported("exclusive and reverse are not supported")
    return build.constant(x.cumsum(axis).to(x.dtype), call.name)


@translates("IsNaN")
def _is_nan(call: OnnxCall) -> Node:
    """Of a softmax: true only in rows with all keys masked, for every finite input of the network; refused then."""
    value = build.value_of(call[0])
    if value is None:
        if not isinstance(call[0].op, softmax.Softmax):
            raise Unsupported("it is supported only for a constant and for a softmax")
        value = _at_random(call[0])
        if bool(value.isnan().any()):
            raise Unsupported("the softmax before it has a row whose keys are all masked")
    return build.constant(value.isnan(), call.name)


def _at_random(node: Node) -> Tensor:
    """The value of a node at a random input of the network."""
    values: dict[Node, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for n in order(node):
        if n.inputs or build.value_of(n) is not None:
            values[n] = n.op.evaluate(*(values[i] for i in n.inputs))
        else:
            values[n] = torch.rand(n.shape, generator=generator, dtype=torch.float64)
    return values[node]


@translates("Where")
def _where(call: OnnxCall) -> Node:
    """m·x + (1 − m)·y for the constant condition m; a constant -inf is only added, never multiplied by 0."""
    chosen = call.value(0, "the condition")
    if chosen.dtype != torch.bool:
        raise Unsupported("the condition is not boolean")
    x, y = build.value_of(call[1]), build.value_of(call[2])
    if x is not None and y is not None:
        return build.folded(torch.where, chosen, x, y, name=call.name)
    return build.add(_zero_elsewhere(chosen, call[1], call), _zero_elsewhere(~chosen, call[2], call), call.name)


def _zero_elsewhere(chosen: Tensor, x: Node, call: OnnxCall) -> Node:
    """x where `chosen`, 0 elsewhere; x is one of the two branches of a Where."""
    value = build.value_of(x)
    if value is not None:
        zero = torch.zeros((), dtype=value.dtype)
        return build.folded(torch.where, chosen, value, zero, name=call.name)
    other = build.value_of(call[2] if x is call[1] else call[1])
    if other is not None and bool(torch.where(chosen, -torch.inf, other).eq(-torch.inf).all()):
        return build.expand(x, np.broadcast_shapes(x.shape, chosen.shape), call.name)  # x + (-inf) is -inf as well
    return build.multiply(x, build.constant(chosen.double()), call.name)


# Shapes


@translates("Identity")
def _identity(call: OnnxCall) -> Node:
    return call[0]


@translates("Dropout")
def _dropout(call: OnnxCall) -> Node:
    if (call.has(2) and bool(call.value(2, "the training mode"))) or call.used > 1:
        raise Unsupported("it is in training mode: export the model with model.eval()")
    return call[0]


@translates("Transpose")
def _transpose(call: OnnxCall) -> Node:
    dims = call.get("perm", list(range(len(call[0].shape)))[::-1])
    return build.permute(call[0], dims, call.name)


@translates("Reshape")
def _reshape(call: OnnxCall) -> Node:
    after = call.ints(1, "the shape")
    if not call.get("allowzero", 0):
        after = [call[0].shape[i] if n == 0 else n for i, n in enumerate(after)]
    if -1 in after and 0 in after:
        raise Unsupported(f"the shape {after} is not determined")
    return build.reshape(call[0], after, call.name)


@translates("Flatten")
def _flatten(call: OnnxCall) -> Node:
    x, axis = call[0], int(call.get("axis", 1))
    axis = axis + len(x.shape) if axis < 0 else axis
    return build.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), call.name)


def axes_of(call: OnnxCall, since: int, position: int = 1) -> list[int] | None:
    """The axes: an attribute before opset `since`, then the input at `position`; None if they are not given."""
    if call.opset < since:
        axes = call.get("axes", None)
        return None if axes is None else [int(a) for a in axes]
    return call.ints(position, "the axes") if call.has(position) else None


@translates("Squeeze")
def _squeeze(call: OnnxCall) -> Node:
    x, axes = call[0], axes_of(call, 13)
    rank = len(x.shape)
    gone = [d for d, n in enumerate(x.shape) if n == 1] if axes is None else [a % rank for a in axes]
    if any(x.shape[d] != 1 for d in gone):
        raise Unsupported(f"axes {gone} of shape {x.shape} are not all of size 1")
    return build.reshape(x, [n for d, n in enumerate(x.shape) if d not in gone], call.name)


@translates("Unsqueeze")
def _unsqueeze(call: OnnxCall) -> Node:
    x, axes = call[0], axes_of(call, 13)
    if axes is None:
        raise Unsupported("it names no axes")
    rank = len(x.shape) + len(axes)
    new = {a % rank for a in axes}
    if len(new) < len(axes):
        raise Unsupported(f"an axis occurs twice: {axes}")
    old = iter(x.shape)
    return build.reshape(x, [1 if d in new else next(old) for d in range(rank)], call.name)


@translates("Concat")
def _concat(call: OnnxCall) -> Node:
    return build.concat([call[i] for i in range(len(call.inputs))], int(call.get("axis", 0)), call.name)


@translates("Split")
def _split(call: OnnxCall) -> list[Node]:
    x, axis = call[0], int(call.get("axis", 0)) % len(call[0].shape)
    size = x.shape[axis]
    sizes = call.get("split", None) if call.opset < 13 else (call.ints(1, "the sizes") if call.has(1) else None)
    if sizes is None:
        parts = int(call.get("num_outputs", call.outputs))
        if parts != call.outputs:
            raise Unsupported(f"it has {call.outputs} outputs, and num_outputs says {parts}")
        each = -(-size // parts)
        sizes = [min(each, size - i * each) for i in range(parts)]
    if sum(sizes) != size or any(n < 0 for n in sizes):
        raise Unsupported(f"sizes {list(sizes)} do not add up to {size}")
    ends = list(itertools.accumulate(sizes, initial=0))
    return [build.slice_(x, axis, a, b, 1, call.name) for a, b in itertools.pairwise(ends)]


@translates("Slice")
def _slice(call: OnnxCall) -> Node:
    if call.opset < 10:
        starts, ends = call.get("starts", []), call.get("ends", [])
        axes, steps = call.get("axes", None), None
    else:
        starts, ends = call.ints(1, "the start"), call.ints(2, "the end")
        axes = call.ints(3, "the axes") if call.has(3) else None
        steps = call.ints(4, "the steps") if call.has(4) else None
    x = call[0]
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        dim = axis % len(x.shape)
        if step > 0:
            x = build.slice_(x, dim, start, end, step, call.name)
        else:
            index = range(*slice(start, end, step).indices(x.shape[dim]))
            x = build.take(x, dim, torch.tensor(index, dtype=torch.int64), call.name)
    return x


@translates("Gather")
def _gather(call: OnnxCall) -> Node:
    x, index = call[0], call.value(1, "the index").long()
    axis = int(call.get("axis", 0)) % len(x.shape)
    size = x.shape[axis]
    if bool(((index < -size) | (index >= size)).any()):
        raise Unsupported(f"an index is outside the {size} entries of axis {axis}")
    index = torch.where(index < 0, index + size, index)
    if index.dim() == 0:
        return build.select(x, axis, int(index), call.name)
    out = build.take(x, axis, index.reshape(-1), call.name)
    return build.reshape(out, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), call.name)


@translates("Expand")
def _expand(call: OnnxCall) -> Node:
    after = np.broadcast_shapes(call[0].shape, limited(call.ints(1, "the shape")))
    return build.expand(call[0], limited(after), call.name)


@translates("Tile")
def _tile(call: OnnxCall) -> Node:
    x = call[0]
    limited([n * r for n, r in zip(x.shape, call.ints(1, "the repeats"), strict=True)])
    for dim, repeats in enumerate(call.ints(1, "the repeats")):
        if repeats != 1:
            x = build.take(x, dim, torch.arange(x.shape[dim]).repeat(repeats), call.name)
    return x


@translates("Trilu")
def _trilu(call: OnnxCall) -> Node:
    k = call.ints(1, "the diagonal")[0] if call.has(1) else 0
    upper = bool(call.get("upper", 1))
    value = build.value_of(call[0])
    if value is not None:
        return build.constant(value.triu(k) if upper else value.tril(k), call.name)
    ones = torch.ones(limited(call[0].shape[-2:]), dtype=torch.float64)
    return build.multiply(call[0], build.constant(ones.triu(k) if upper else ones.tril(k)), call.name)


# Reductions

REDUCE_AXES_SINCE = {"ReduceSum": 13}
"""The opset in which the axes became an input; 18 for all other reductions."""


@translates("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2", "ReduceProd")
def _reduce(call: OnnxCall) -> Node:
    x, name, keepdims = call[0], call.name, bool(call.get("keepdims", 1))
    axes = axes_of(call, REDUCE_AXES_SINCE.get(call.kind, 18))
    if not axes and call.get("noop_with_empty_axes", 0):
        if call.kind in ("ReduceSumSquare", "ReduceL2"):
            raise Unsupported("it reduces no axes")
        return x
    if not x.shape:
        raise Unsupported("it reduces a scalar")
    if call.kind in ("ReduceMean", "ReduceL2") and not call.model_dtype(0).is_floating_point:
        raise Unsupported("it takes a mean or root of integers")
    if call.kind == "ReduceMean":
        return build.mean(x, axes, keepdims, name)
    if call.kind == "ReduceSum":
        return build.total(x, axes, keepdims, name)
    if call.kind == "ReduceMax":
        return build.maximum(x, axes, keepdims, name)
    if call.kind == "ReduceMin":
        return build.negate(build.maximum(build.negate(x, name), axes, keepdims, name), name)
    if call.kind == "ReduceProd":
        return _product(call, axes, keepdims)
    square = build.total(build.multiply(x, x, name), axes, keepdims, name)
    return square if call.kind == "ReduceSumSquare" else build.apply(elementwise.Sqrt(), square, name=name)


def _product(call: OnnxCall, axes: Sequence[int] | None, keepdims: bool) -> Node:
    x = call.value(0, "the input")
    for d in sorted((a % x.dim() for a in (axes or range(x.dim()))), reverse=True):
        x = x.prod(d, keepdim=keepdims, dtype=x.dtype)
    return build.constant(x, call.name)


@translates("GlobalAveragePool")
def _global_average(call: OnnxCall) -> Node:
    return build.mean(call[0], range(2, len(call[0].shape)), True, call.name)


@translates("GlobalMaxPool")
def _global_max(call: OnnxCall) -> Node:
    return build.maximum(call[0], range(2, len(call[0].shape)), True, call.name)
