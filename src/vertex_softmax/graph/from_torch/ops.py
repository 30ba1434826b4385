"""Translations of aten's ops to Vertex's ops: one small function per op, registered by its name.

Invariant: `TRANSLATIONS[name](call, …)` has the op's value at every input, in real arithmetic. The arguments are those
of the aten op (hence some long signatures): a graph node where an argument depends on the network's input, a tensor or
number where it does not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops import elementwise, linear

Value = Node | Tensor | float
"""An argument: a node if it depends on the network's input, else a constant."""


@dataclasses.dataclass(frozen=True)
class TorchCall:
    """One call of an aten op in an exported program."""

    name: str
    """The path of its module and the name of the op, as the name of nodes."""
    shape: tuple[int, ...]
    """The shape of its result."""
    dtype: torch.dtype
    """The precision of the user's model before its conversion to float64; eps=None refers to it."""
    strides: tuple[int, ...] = ()
    """How far apart the numbers of its first argument lie in memory, along each dimension; as_strided refers to it."""


Translation = Callable[..., Any]
TRANSLATIONS: dict[str, Translation] = {}
T = TypeVar("T", bound=Translation)


def translates(*names: str) -> Callable[[T], T]:
    """Register a translation under the names of aten ops (all their overloads)."""

    def add(function: T) -> T:
        TRANSLATIONS.update(dict.fromkeys(names, function))
        return function

    return add


def node(value: Value) -> Node:
    """The value as a node; a constant becomes a constant node."""
    return value if isinstance(value, Node) else build.constant(tensor(value))


def tensor(value: Tensor | float) -> Tensor:
    """A constant as a float64 tensor; a Python number is not rounded to float32 before."""
    return value.double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def number(value: Any, what: str) -> Any:
    """The value, which has to be a constant; an error that calls it `what` if it is a node."""
    if isinstance(value, Node):
        raise UnsupportedModelError(f"{what} depends on the perturbed input; it has to be a constant")
    return value


def parameter(value: Value | None, what: str) -> Tensor | None:
    """An optional constant as a float64 tensor."""
    return None if value is None else tensor(number(value, what))


# Arithmetic ----------------------------------------------------------------------------------------------------------


@translates("add")
def _add(call: TorchCall, x: Value, y: Value, *, alpha: float = 1) -> Node:
    return build.add(node(x), times(call, y, alpha), call.name)


@translates("sub")
def _subtract(call: TorchCall, x: Value, y: Value, *, alpha: float = 1) -> Node:
    return build.subtract(node(x), times(call, y, alpha), call.name)


@translates("rsub")
def _subtract_from(call: TorchCall, x: Value, y: Value, alpha: float = 1) -> Node:
    return build.subtract(node(y), times(call, x, alpha), call.name)


def times(call: TorchCall, x: Value, factor: float) -> Node:
    """The node x · factor."""
    return node(x) if factor == 1 else build.multiply(node(x), node(factor), call.name)


@translates("mul")
def _multiply(call: TorchCall, x: Value, y: Value) -> Node:
    return build.multiply(node(x), node(y), call.name)


@translates("div", "true_divide")
def _divide(call: TorchCall, x: Value, y: Value, *, rounding_mode: str | None = None) -> Node:
    if rounding_mode is not None:
        raise UnsupportedModelError("division with rounding is not continuous")
    if not isinstance(y, Node) and bool((tensor(y) == 0).any()):
        raise UnsupportedModelError("division by a constant that is 0")
    return build.divide(node(x), node(y), call.name)


@translates("neg")
def _negate(call: TorchCall, x: Node) -> Node:
    return build.negate(x, call.name)


@translates("pow")
def _power(call: TorchCall, x: Value, exponent: Value) -> Node:
    power = tensor(number(exponent, "the exponent"))
    base = node(x)
    roots = {0.5: elementwise.Sqrt, -0.5: elementwise.Rsqrt, -1.0: elementwise.Reciprocal}
    if power.numel() != 1 or not isinstance(x, Node):
        raise UnsupportedModelError("only powers with one constant exponent are supported")
    p = float(power)
    if p in roots:
        return build.apply(roots[p](), base, name=call.name)
    if p != round(p) or p == 0 or abs(p) > 64:
        raise UnsupportedModelError(f"the exponent {p} is not supported; use a whole number, 0.5, -0.5 or -1")
    result = _whole_power(call, base, int(abs(p)))
    return result if p > 0 else build.apply(elementwise.Reciprocal(), result, name=call.name)


def _whole_power(call: TorchCall, x: Node, p: int) -> Node:
    """x^p for an integer p ≥ 1, by repeated squaring."""
    if p == 1:
        return x
    half = _whole_power(call, x, p // 2)
    square = build.apply(elementwise.Square(), half, name=call.name)
    return square if p % 2 == 0 else build.multiply(x, square, call.name)


def relu(call: TorchCall, x: Node) -> Node:
    """max(x, 0)"""
    return build.apply(elementwise.Relu(), x, name=call.name)


@translates("abs")
def _absolute(call: TorchCall, x: Node) -> Node:
    """|x| = relu(x) + relu(−x)"""
    return build.add(relu(call, x), relu(call, build.negate(x, call.name)), call.name)


@translates("leaky_relu")
def _leaky_relu(call: TorchCall, x: Node, slope: float = 0.01) -> Node:
    """relu(x) − slope · relu(−x)"""
    return build.subtract(relu(call, x), times(call, relu(call, build.negate(x, call.name)), slope), call.name)


@translates("maximum", "clamp_min")
def _maximum(call: TorchCall, x: Value, y: Value) -> Node:
    """max(x, y) = y + relu(x − y)"""
    return build.add(node(y), relu(call, build.subtract(node(x), node(y), call.name)), call.name)


@translates("minimum", "clamp_max")
def _minimum(call: TorchCall, x: Value, y: Value) -> Node:
    """min(x, y) = y − relu(y − x)"""
    return build.subtract(node(y), relu(call, build.subtract(node(y), node(x), call.name)), call.name)


@translates("clamp")
def _clamp(call: TorchCall, x: Node, low: Value | None = None, high: Value | None = None) -> Node:
    if (
        low is not None
        and high is not None
        and bool((tensor(number(low, "an end")) > tensor(number(high, "an end"))).any())
    ):
        raise UnsupportedModelError("clamp with its lower end above its upper end")
    y = x if low is None else _maximum(call, x, number(low, "an end of clamp"))
    return y if high is None else _minimum(call, y, number(high, "an end of clamp"))


@translates("hardtanh")
def _hard_tanh(call: TorchCall, x: Node, low: Value = -1.0, high: Value = 1.0) -> Node:
    """Ends that are aten's defaults are left out of an exported program: `Hardtanh(0, 1)` has one, and not two."""
    return _clamp(call, x, low, high)


@translates("where")
def _where(call: TorchCall, condition: Value, x: Value, y: Value) -> Node:
    """x where the constant condition is true, else y; −∞ becomes part of a Shift, from which `move_masks` takes it."""
    chosen = torch.as_tensor(number(condition, "the condition of where"))
    return build.add(_zero_elsewhere(call, chosen, x), _zero_elsewhere(call, ~chosen, y), call.name)


def _zero_elsewhere(call: TorchCall, chosen: Tensor, x: Value) -> Node:
    """x where `chosen`, 0 elsewhere."""
    if isinstance(x, Node):
        return build.multiply(x, node(chosen), call.name)
    return node(torch.where(chosen, tensor(x), 0.0))


@translates("masked_fill")
def _masked_fill(call: TorchCall, x: Value, mask: Value, fill: Value) -> Node:
    return _where(call, mask, fill, x)


# Affine maps ---------------------------------------------------------------------------------------------------------


@translates("linear")
def _linear(call: TorchCall, x: Node, weight: Value, bias: Value | None = None) -> Node:
    if isinstance(weight, Node):
        y = build.matmul(x, build.transpose(weight, -1, -2, call.name), call.name)
        return y if bias is None else build.add(y, node(bias), call.name)
    return build.affine(x, tensor(weight), parameter(bias, "the bias"), call.name)


@translates("matmul", "mm", "bmm", "mv", "dot")
def _matmul(call: TorchCall, x: Value, y: Value) -> Node:
    return build.matmul(node(x), node(y), call.name)


@translates("addmm", "baddbmm")
def _add_matmul(call: TorchCall, start: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Node:
    product = times(call, _matmul(call, x, y), alpha)
    return product if beta == 0 else build.add(times(call, start, beta), product, call.name)


@translates("_native_batch_norm_legit_no_training")
def _batch_norm(  # aten's signature
    call: TorchCall,
    x: Node,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Node]:
    """Batch normalisation by the running statistics, as a Shift, a Scale and a Shift of every channel."""
    shape = (-1, *[1] * (len(x.shape) - 2))
    factor = (tensor(number(variance, "the running variance")) + eps).rsqrt()
    if weight is not None:
        factor = factor * number(weight, "the weight")
    y = build.subtract(x, node(tensor(number(mean, "the running mean")).reshape(shape)), call.name)
    y = build.multiply(y, node(factor.reshape(shape)), call.name)
    if bias is not None:
        y = build.add(y, node(tensor(number(bias, "the bias")).reshape(shape)), call.name)
    return (y,)


# Sums, means, maxima ------------------------------------------------------------------------------------------------


def dims_of(dims: int | Sequence[int] | None) -> list[int] | None:
    """Dimensions as a list; None, which means all of them, is kept."""
    return [dims] if isinstance(dims, int) else None if dims is None else list(dims)


@translates("sum")
def _sum(call: TorchCall, x: Node, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return build.total(x, dims_of(dims), keepdim, call.name)


@translates("mean")
def _mean(call: TorchCall, x: Node, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return build.mean(x, dims_of(dims), keepdim, call.name)


@translates("amax")
def _amax(call: TorchCall, x: Node, dims: Any = (), keepdim: bool = False) -> Node:
    return build.maximum(x, dims_of(dims), keepdim, call.name)


@translates("max")
def _max(call: TorchCall, x: Node, dim: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, Node | Tensor):
        return _maximum(call, x, dim)
    return _amax(call, x) if dim is None else (_amax(call, x, dim, keepdim),)


@translates("amin")
def _amin(call: TorchCall, x: Node, dims: Any = (), keepdim: bool = False) -> Node:
    return build.negate(_amax(call, build.negate(x, call.name), dims, keepdim), call.name)


@translates("var")
def _variance(
    call: TorchCall, x: Node, dims: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> Node:
    """Σ (x − mean)² / (count − correction)"""
    over = dims_of(dims) or list(range(len(x.shape)))
    squares = build.apply(elementwise.Square(), build.centre(x, over, call.name), name=call.name)
    count = math.prod(x.shape[d] for d in over) - (1 if correction is None else correction)
    if count <= 0:
        raise UnsupportedModelError("a variance of too few numbers")
    return times(call, build.total(squares, over, keepdim, call.name), 1.0 / count)


@translates("linalg_vector_norm")
def _norm(
    call: TorchCall, x: Node, order: float = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    if order != 2:
        raise UnsupportedModelError(f"the {order}-norm is not supported; the 2-norm is")
    squares = build.apply(elementwise.Square(), x, name=call.name)
    return build.apply(elementwise.Sqrt(), build.total(squares, dims_of(dims), keepdim, call.name), name=call.name)


@translates("cumsum")
def _cumsum(call: TorchCall, x: Node, dim: int, *, dtype: Any = None) -> Node:
    n = x.shape[dim]
    y = build.transpose(x, dim, -1, call.name)
    y = build.apply(linear.Linear(torch.ones(n, n, dtype=torch.float64).triu()), y, name=call.name)
    return build.transpose(y, dim, -1, call.name)
