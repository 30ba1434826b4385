"""Functions that create nodes. Constants are folded at once, and a product with a constant becomes an affine op.

Both importers use only these functions. Operands broadcast as in torch; broadcasting becomes an explicit Expand, so
that every op has operands of one shape. Dimensions may be negative, as in torch. The last argument `name` of each
function is the name of the new node.

No tensor with more than LARGEST numbers is created: sizes are computed first, from the shapes where the op is one of
ours, else on torch's meta device. The first use of that device takes torch seconds, so it is the last resort.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.ir import Constant, Input, Node
from vertex_softmax.ops import bilinear, elementwise, linear, normalization, shape
from vertex_softmax.ops.contract import Op, Shape
from vertex_softmax.ops.fields import moved
from vertex_softmax.ops.maximum import Maximum
from vertex_softmax.ops.softmax import Softmax

LARGEST = 1 << 27
"""The most numbers in one tensor that a model may create."""
MOST_DIMENSIONS = 32


def source(dims: Sequence[int], name: str = "input") -> Node:
    """An input node of this shape."""
    return Node(name, Input(), (), tuple(dims))


def constant(value: Tensor, name: str = "constant") -> Node:
    """A constant node with this value."""
    return Node(name, Constant(value), (), tuple(value.shape))


def value_of(node: Node) -> Tensor | None:
    """The value of a constant node; None for any other node."""
    return node.op.value if isinstance(node.op, Constant) else None


def apply(op: Op, *inputs: Node, name: str) -> Node:
    """The node op(inputs); a constant if every input is constant. Its shape is determined by evaluating at zeros."""
    values = [value_of(node) for node in inputs]
    op_tensors = [field for field in vars(op).values() if isinstance(field, Tensor)]
    if _most_numbers(op, [node.shape for node in inputs]) > LARGEST:
        _refuse_large(op, inputs, name)
    if all(v is not None for v in values):
        return constant(op.evaluate(*[v for v in values if v is not None]), name)
    dtype = next((v.dtype for v in values if v is not None), torch.float64)
    probes = [torch.zeros(node.shape, dtype=dtype) if v is None else v for node, v in zip(inputs, values, strict=True)]
    for field in op_tensors:
        if field.is_floating_point():
            probes = [p.to(field.dtype) for p in probes]
    return Node(name, op, inputs, tuple(op.evaluate(*probes).shape))


def _most_numbers(op: Op, shapes: Sequence[Shape]) -> int:
    """The most numbers that the op's result has for inputs of these shapes: exact for products and elementwise ops.

    For any other op it is the product of the sizes of all its inputs and constants. Shapes that do not fit each other
    have no result, and may give any number.
    """
    x = shapes[0]
    if isinstance(op, linear.Linear) and x and (op.bias is None or op.bias.shape == op.weight.shape[-1:]):
        return math.prod(x[:-1]) * math.prod(op.weight.shape[:-2]) * op.weight.shape[-1]
    if isinstance(op, linear.LeftLinear) and len(x) > 1:
        return math.prod(op.weight.shape[:-1]) * math.prod(x[:-2]) * x[-1]
    if isinstance(op, bilinear.MatMul) and len(x) > 1 and x[:-2] == shapes[1][:-2]:
        return math.prod(x[:-1]) * shapes[1][-1]
    constants = [field for field in vars(op).values() if isinstance(field, Tensor)]
    if isinstance(op, _ELEMENTWISE):
        with contextlib.suppress(ValueError):  # shapes that do not broadcast
            return math.prod(np.broadcast_shapes(*shapes, *(field.shape for field in constants)))
    sizes = [math.prod(dims) for dims in shapes] + [field.numel() for field in constants]
    return math.prod(max(size, 1) for size in sizes)


_ELEMENTWISE = (linear.Scale, linear.Shift, linear.Add, linear.Subtract, bilinear.Multiply, Softmax)
"""Ops whose result has the shape to which their inputs and constants broadcast."""


def _refuse_large(op: Op, inputs: Sequence[Node], name: str) -> None:
    """Raise if the op's result is too large. A third-party op that cannot run on the meta device is not checked."""
    empty = [torch.empty(node.shape, dtype=torch.float64, device="meta") for node in inputs]
    with contextlib.suppress(NotImplementedError):
        limited(moved(op, torch.float64, torch.device("meta")).evaluate(*empty).shape, name)


def limited(dims: Sequence[int], name: str) -> tuple[int, ...]:
    """The shape as a tuple; an error if a tensor of this shape would be too large. `name` names the node in it."""
    if len(dims) > MOST_DIMENSIONS:
        raise InvalidValueError(f"{name}: a tensor of {len(dims)} dimensions; up to {MOST_DIMENSIONS} are supported")
    if math.prod(dims) > LARGEST:
        raise InvalidValueError(f"{name}: a tensor of shape {tuple(dims)}; at most {LARGEST} numbers are supported")
    return tuple(dims)


def folded(function: Callable[..., Tensor], *values: Tensor, name: str) -> Node:
    """The constant node function(*values); a result that may be too large is computed on the meta device first."""
    if math.prod([max(value.numel(), 1) for value in values]) > LARGEST:
        limited(function(*(value.to("meta") for value in values)).shape, name)
    return constant(function(*values), name)


def expand(x: Node, after: Sequence[int], name: str) -> Node:
    """x broadcast to the shape `after`; x itself if it has that shape."""
    after = limited(after, name)
    if x.shape == after:
        return x
    if len(x.shape) < len(after):
        x = reshape(x, (1,) * (len(after) - len(x.shape)) + x.shape, name)
    return x if x.shape == after else apply(shape.Expand(x.shape, after), x, name=name)


def _broadcast(x: Node, y: Node, name: str) -> tuple[Node, Node]:
    """x and y, broadcast against each other."""
    try:
        joint = np.broadcast_shapes(x.shape, y.shape)
    except ValueError as error:
        raise InvalidValueError(f"{name}: shapes {x.shape} and {y.shape} do not broadcast") from error
    return expand(x, joint, name), expand(y, joint, name)


def _with_constant(x: Node, c: Tensor, op: type[linear.Scale] | type[linear.Shift], name: str) -> Node:
    """x · c (op Scale) or x + c (op Shift), x broadcast to their common shape."""
    wide = expand(x, np.broadcast_shapes(x.shape, c.shape), name)
    return apply(op(c.clone()), wide, name=name)


def add(x: Node, y: Node, name: str) -> Node:
    """x + y, elementwise with broadcasting."""
    cx, cy = value_of(x), value_of(y)
    if cx is not None and cy is not None:
        return folded(torch.add, cx, cy, name=name)
    if cy is not None:
        return _with_constant(x, cy, linear.Shift, name)
    if cx is not None:
        return _with_constant(y, cx, linear.Shift, name)
    return apply(linear.Add(), *_broadcast(x, y, name), name=name)


def subtract(x: Node, y: Node, name: str) -> Node:
    """x − y, elementwise with broadcasting."""
    cx, cy = value_of(x), value_of(y)
    if cx is not None and cy is not None:
        return folded(torch.sub, cx, cy, name=name)
    if cy is not None:
        return _with_constant(x, -cy, linear.Shift, name)
    if cx is not None:
        return _with_constant(negate(y, name), cx, linear.Shift, name)
    return apply(linear.Subtract(), *_broadcast(x, y, name), name=name)


def negate(x: Node, name: str) -> Node:
    """−x, elementwise."""
    c = value_of(x)
    return (
        constant(-c, name)
        if c is not None
        else apply(linear.Scale(torch.tensor(-1.0, dtype=torch.float64)), x, name=name)
    )


def multiply(x: Node, y: Node, name: str) -> Node:
    """x · y, elementwise with broadcasting; x · x becomes a Square."""
    cx, cy = value_of(x), value_of(y)
    if cx is not None and cy is not None:
        return folded(torch.mul, cx, cy, name=name)
    if cy is not None:
        return _with_constant(x, cy, linear.Scale, name)
    if cx is not None:
        return _with_constant(y, cx, linear.Scale, name)
    if x is y:
        return apply(elementwise.Square(), x, name=name)
    return apply(bilinear.Multiply(), *_broadcast(x, y, name), name=name)


def divide(x: Node, y: Node, name: str) -> Node:
    """x / y, elementwise with broadcasting."""
    cx, cy = value_of(x), value_of(y)
    if cx is not None and cy is not None:
        return folded(torch.div, cx, cy, name=name)
    if cy is not None:
        wide = expand(x, np.broadcast_shapes(x.shape, cy.shape), name)
        return apply(linear.Divide.by(cy), wide, name=name)
    return multiply(x, apply(elementwise.Reciprocal(), y, name=name), name)


def matmul(x: Node, y: Node, name: str) -> Node:
    """torch.matmul, vectors and broadcast leading dimensions included."""
    if len(x.shape) == 1 or len(y.shape) == 1:
        a = reshape(x, (1, *x.shape), name) if len(x.shape) == 1 else x
        b = reshape(y, (*y.shape, 1), name) if len(y.shape) == 1 else y
        out = matmul(a, b, name)
        dims = list(out.shape)
        if len(y.shape) == 1:
            dims.pop()
        if len(x.shape) == 1:
            dims.pop(-1 if len(y.shape) == 1 else -2)
        return reshape(out, dims, name)
    cx, cy = value_of(x), value_of(y)
    if cx is not None and cy is not None:
        return folded(torch.matmul, cx, cy, name=name)
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if cy is not None:
        return apply(linear.Linear(cy), expand(x, (*lead, *x.shape[-2:]), name), name=name)
    if cx is not None:
        return apply(linear.LeftLinear(cx), expand(y, (*lead, *y.shape[-2:]), name), name=name)
    return apply(
        bilinear.MatMul(), expand(x, (*lead, *x.shape[-2:]), name), expand(y, (*lead, *y.shape[-2:]), name), name=name
    )


def affine(x: Node, weight: Tensor, bias: Tensor | None, name: str) -> Node:
    """torch.nn.functional.linear: x @ weightᵀ + bias; weight (out, in)."""
    return apply(linear.Linear(weight.mT, bias), x, name=name)


def convolution(  # the arguments of aten's and ONNX's convolutions
    x: Node,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    name: str,
) -> Node:
    """The convolution of x (batch, channels, *size) with weight (out, channels / groups, *kernel).

    If it cuts the image into patches (stride = kernel, no padding), it becomes reshapes and one Linear.
    """
    kernel, size = tuple(weight.shape[2:]), x.shape[2:]
    padded = [s + 2 * max(p, 0) for s, p in zip(size, padding, strict=True)]
    limited((*x.shape[:2], *padded), name)
    limited((x.shape[0], weight.shape[0], *(s // max(n, 1) + 1 for s, n in zip(padded, stride, strict=True))), name)
    patches = (
        tuple(stride) == kernel
        and not any(padding)
        and all(d == 1 for d in dilation)
        and groups == 1
        and not any(s % k for s, k in zip(size, kernel, strict=True))
    )
    if not patches:
        op = linear.Convolution(weight, bias, size, tuple(stride), tuple(padding), tuple(dilation), groups)
        return apply(op, x, name=name)
    n = len(kernel)
    cut = [v for s, k in zip(size, kernel, strict=True) for v in (s // k, k)]
    x = reshape(x, (x.shape[0], x.shape[1], *cut), name)
    x = permute(x, (0, *(2 + 2 * i for i in range(n)), 1, *(3 + 2 * i for i in range(n))), name)
    x = reshape(x, (*x.shape[: n + 1], math.prod(x.shape[n + 1 :])), name)
    x = affine(x, weight.reshape(weight.shape[0], -1), bias, name)
    return permute(x, (0, n + 1, *range(1, n + 1)), name)


def reshape(x: Node, after: Sequence[int], name: str) -> Node:
    """The same numbers in the shape `after`; one entry may be −1, as in torch.reshape."""
    after = limited([int(n) for n in after], name)
    if -1 in after:
        known = math.prod(n for n in after if n != -1)
        after = tuple(math.prod(x.shape) // known if n == -1 else n for n in after)
    if math.prod(after) != math.prod(x.shape):
        raise InvalidValueError(f"{name}: cannot reshape {x.shape} to {after}")
    return x if after == x.shape else apply(shape.Reshape(x.shape, after), x, name=name)


def permute(x: Node, dims: Sequence[int], name: str) -> Node:
    """x with its dimensions in the order `dims`, as torch.permute."""
    dims = tuple(d % len(x.shape) for d in dims)
    return x if dims == tuple(range(len(dims))) else apply(shape.Permute(dims), x, name=name)


def transpose(x: Node, a: int, b: int, name: str) -> Node:
    """x with dimensions a and b exchanged, as torch.transpose."""
    dims = list(range(len(x.shape)))
    dims[a], dims[b] = dims[b], dims[a]
    return permute(x, dims, name)


def slice_(x: Node, dim: int, start: int, stop: int, step: int, name: str) -> Node:
    """x[start:stop:step] along one dimension, Python's rules for ends; step > 0."""
    dim %= len(x.shape)
    start, stop, step = slice(start, stop, step).indices(x.shape[dim])
    if (start, stop, step) == (0, x.shape[dim], 1):
        return x
    return apply(shape.Slice(dim, start, stop, step, len(x.shape), x.shape[dim]), x, name=name)


def select(x: Node, dim: int, index: int, name: str) -> Node:
    """x[index] along one dimension, which is removed."""
    dim %= len(x.shape)
    index %= x.shape[dim]
    part = slice_(x, dim, index, index + 1, 1, name)
    return reshape(part, (*part.shape[:dim], *part.shape[dim + 1 :]), name)


def take(x: Node, dim: int, index: Tensor, name: str) -> Node:
    """The entries of x with these indices along one dimension, as torch.index_select."""
    dim %= len(x.shape)
    return apply(shape.Take(dim, index.long(), len(x.shape), x.shape[dim]), x, name=name)


def concat(xs: Sequence[Node], dim: int, name: str) -> Node:
    """The nodes joined along one dimension, as torch.cat."""
    rank = len(xs[0].shape)
    dim %= rank
    if len(xs) == 1:
        return xs[0]
    return apply(shape.Concat(dim, tuple(x.shape[dim] for x in xs), rank), *xs, name=name)


def _dims(x: Node, dims: Sequence[int] | None) -> Shape:
    return tuple(range(len(x.shape))) if dims is None or len(dims) == 0 else tuple(d % len(x.shape) for d in dims)


def total(x: Node, dims: Sequence[int] | None, keepdim: bool, name: str) -> Node:
    """torch.sum over some dimensions; None or an empty list means all."""
    over = _dims(x, dims)
    out = apply(linear.Sum(over, len(x.shape), tuple(x.shape[d] for d in over)), x, name=name)
    return out if keepdim else reshape(out, [n for d, n in enumerate(x.shape) if d not in over], name)


def mean(x: Node, dims: Sequence[int] | None, keepdim: bool, name: str) -> Node:
    """torch.mean over some dimensions; None or an empty list means all."""
    count = math.prod(x.shape[d] for d in _dims(x, dims))
    return divide(total(x, dims, keepdim, name), constant(torch.tensor(float(count), dtype=torch.float64)), name)


def maximum(x: Node, dims: Sequence[int] | None, keepdim: bool, name: str) -> Node:
    """torch.amax over some dimensions; None or an empty list means all."""
    over = _dims(x, dims)
    rest = [d for d in range(len(x.shape)) if d not in over]
    y = permute(x, (*rest, *over), name)
    y = reshape(y, (*(x.shape[d] for d in rest), math.prod(x.shape[d] for d in over)), name)
    y = apply(Maximum(), y, name=name)
    return reshape(y, [(1 if d in over else n) for d, n in enumerate(x.shape) if keepdim or d not in over], name)


def softmax(x: Node, dim: int, name: str, mask: Tensor | None = None, penalty: Tensor | None = None) -> Node:
    """torch.softmax along one dimension; `mask` and `penalty` are those of the op `Softmax`, and broadcast to x."""
    last, dim = len(x.shape) - 1, dim % len(x.shape)
    if dim != last:
        mask, penalty = (None if t is None else t.expand(x.shape).transpose(dim, last) for t in (mask, penalty))
    return transpose(apply(Softmax(mask, penalty), transpose(x, dim, last, name), name=name), dim, last, name)


def _on_last(x: Node, dims: Sequence[int] | None, change: Callable[[Node], Node], name: str) -> Node:
    """Apply `change`, which acts on the last dimension, to the given dimensions taken as one.

    They are moved to the end and merged before, and split and moved back afterwards.
    """
    over = sorted(_dims(x, dims))
    order = (*(d for d in range(len(x.shape)) if d not in over), *over)
    moved = permute(x, order, name)
    leading = moved.shape[: len(order) - len(over)]
    y = change(reshape(moved, (*leading, math.prod(x.shape[d] for d in over)), name))
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return permute(reshape(y, moved.shape, name), inverse, name)


WIDEST_CENTRING = 1024
"""Dimensions up to this size are centred by one Linear, whose bounds account for the dependence of x and its mean."""


def centre(x: Node, dims: Sequence[int] | None, name: str, share: Fraction | None = None) -> Node:
    """x minus its mean over some dimensions, as x (I − 11ᵀ/d); `share` is an exact number to use instead of 1/d.

    Every entry of the matrix is the float nearest to its exact value.
    """
    d = math.prod(x.shape[i] for i in _dims(x, dims))
    if d > WIDEST_CENTRING and share is None:
        return subtract(x, mean(x, dims, True, name), name)
    part = Fraction(1, d) if share is None else share
    matrix = torch.full((d, d), float(-part), dtype=torch.float64).fill_diagonal_(float(1 - part))
    return _on_last(x, dims, lambda y: apply(linear.Linear(matrix), y, name=name), name)


def normalize(x: Node, dims: Sequence[int] | None, eps: float, name: str) -> Node:
    """x / √(mean of x² over some dimensions + eps)."""
    return _on_last(x, dims, lambda y: apply(normalization.Normalize(eps), y, name=name), name)
