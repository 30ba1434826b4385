"""What each aten op computes, in Vertex's ops: one small function per op, found by its name.

Invariant: `translate(name)(call, …)` is the op's value at every input, in real arithmetic. Arguments are those of the aten
op, with graph nodes where it depends on the network's input and plain tensors or numbers where it does not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vertex_softmax.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Node
from vertex_softmax.graph.recognise import split_mask
from vertex_softmax.ops import attention, elementwise, linear

Value = Node | Tensor | float
"""A node where it depends on the network's input, else a constant."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an aten op: where it stands in the model, and the shape of what it returns."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    """Of the user's model, before it was made float64: what eps=None refers to."""


Translation = Callable[..., Any]
TRANSLATIONS: dict[str, Translation] = {}


def translates(*names: str) -> Callable[[Translation], Translation]:
    """Register a translation under the names of aten ops (all their overloads)."""

    def add(function: Translation) -> Translation:
        TRANSLATIONS.update(dict.fromkeys(names, function))
        return function

    return add


def node(value: Value) -> Node:
    """A node, made of a constant if need be."""
    return value if isinstance(value, Node) else build.constant(tensor(value))


def tensor(value: Tensor | float) -> Tensor:
    """A constant in float64; a Python number is not rounded to float32 on the way."""
    return value.double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def number(value: Any, what: str) -> Any:
    """A value that has to be a constant."""
    if isinstance(value, Node):
        raise UnsupportedModelError(f"{what} depends on the perturbed input; it has to be a constant")
    return value


def _parameter(value: Value | None, what: str) -> Tensor | None:
    return None if value is None else tensor(number(value, what))


# Arithmetic ----------------------------------------------------------------------------------------------------------


@translates("add")
def _add(call: Call, x: Value, y: Value, *, alpha: float = 1) -> Node:
    return build.add(node(x), _times(call, y, alpha), call.name)


@translates("sub")
def _subtract(call: Call, x: Value, y: Value, *, alpha: float = 1) -> Node:
    return build.subtract(node(x), _times(call, y, alpha), call.name)


@translates("rsub")
def _subtract_from(call: Call, x: Value, y: Value, alpha: float = 1) -> Node:
    return build.subtract(node(y), _times(call, x, alpha), call.name)


def _times(call: Call, x: Value, factor: float) -> Node:
    return node(x) if factor == 1 else build.multiply(node(x), node(factor), call.name)


@translates("mul")
def _multiply(call: Call, x: Value, y: Value) -> Node:
    return build.multiply(node(x), node(y), call.name)


@translates("div", "true_divide")
def _divide(call: Call, x: Value, y: Value, *, rounding_mode: str | None = None) -> Node:
    if rounding_mode is not None:
        raise UnsupportedModelError("division with rounding is not continuous")
    if not isinstance(y, Node) and bool((tensor(y) == 0).any()):
        raise UnsupportedModelError("division by a constant that is 0")
    return build.divide(node(x), node(y), call.name)


@translates("neg")
def _negate(call: Call, x: Node) -> Node:
    return build.negate(x, call.name)


@translates("pow")
def _power(call: Call, x: Value, exponent: Value) -> Node:
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


def _whole_power(call: Call, x: Node, p: int) -> Node:
    if p == 1:
        return x
    half = _whole_power(call, x, p // 2)
    square = build.apply(elementwise.Square(), half, name=call.name)
    return square if p % 2 == 0 else build.multiply(x, square, call.name)


ELEMENTWISE = {
    "relu": elementwise.Relu,
    "silu": elementwise.Silu,
    "tanh": elementwise.Tanh,
    "sigmoid": elementwise.Sigmoid,
    "erf": elementwise.Erf,
    "exp": elementwise.Exp,
    "log": elementwise.Log,
    "reciprocal": elementwise.Reciprocal,
    "sqrt": elementwise.Sqrt,
    "rsqrt": elementwise.Rsqrt,
    "square": elementwise.Square,
}


def _elementwise(op: type) -> Translation:
    return lambda call, x: build.apply(op(), x, name=call.name)


for _name, _op in ELEMENTWISE.items():
    translates(_name)(_elementwise(_op))


@translates("gelu")
def _gelu(call: Call, x: Node, *, approximate: str = "none") -> Node:
    return build.apply(elementwise.Gelu(tanh=approximate == "tanh"), x, name=call.name)


def _relu(call: Call, x: Node) -> Node:
    return build.apply(elementwise.Relu(), x, name=call.name)


@translates("abs")
def _absolute(call: Call, x: Node) -> Node:
    """|x| = relu(x) + relu(−x)"""
    return build.add(_relu(call, x), _relu(call, build.negate(x, call.name)), call.name)


@translates("leaky_relu")
def _leaky_relu(call: Call, x: Node, slope: float = 0.01) -> Node:
    """relu(x) − slope · relu(−x)"""
    return build.subtract(_relu(call, x), _times(call, _relu(call, build.negate(x, call.name)), slope), call.name)


@translates("maximum", "clamp_min")
def _maximum(call: Call, x: Value, y: Value) -> Node:
    """max(x, y) = y + relu(x − y)"""
    return build.add(node(y), _relu(call, build.subtract(node(x), node(y), call.name)), call.name)


@translates("minimum", "clamp_max")
def _minimum(call: Call, x: Value, y: Value) -> Node:
    """min(x, y) = y − relu(y − x)"""
    return build.subtract(node(y), _relu(call, build.subtract(node(y), node(x), call.name)), call.name)


@translates("clamp", "hardtanh")
def _clamp(call: Call, x: Node, low: Value | None = None, high: Value | None = None) -> Node:
    if (
        low is not None
        and high is not None
        and bool((tensor(number(low, "an end")) > tensor(number(high, "an end"))).any())
    ):
        raise UnsupportedModelError("clamp with its lower end above its upper end")
    y = x if low is None else _maximum(call, x, number(low, "an end of clamp"))
    return y if high is None else _minimum(call, y, number(high, "an end of clamp"))


@translates("where")
def _where(call: Call, condition: Value, x: Value, y: Value) -> Node:
    """x where the constant condition holds, else y; infinite constants go into a Shift, whence `move_masks` takes them."""
    chosen = torch.as_tensor(number(condition, "the condition of where"))
    return build.add(_keep(call, chosen, x), _keep(call, ~chosen, y), call.name)


def _keep(call: Call, chosen: Tensor, x: Value) -> Node:
    if isinstance(x, Node):
        return build.multiply(x, node(chosen), call.name)
    return node(torch.where(chosen, tensor(x), 0.0))


@translates("masked_fill")
def _masked_fill(call: Call, x: Value, mask: Value, fill: Value) -> Node:
    return _where(call, mask, fill, x)


# Affine maps ---------------------------------------------------------------------------------------------------------


@translates("linear")
def _linear(call: Call, x: Node, weight: Value, bias: Value | None = None) -> Node:
    if isinstance(weight, Node):
        y = build.matmul(x, build.transpose(weight, -1, -2, call.name), call.name)
        return y if bias is None else build.add(y, node(bias), call.name)
    return build.affine(x, weight.double(), _parameter(bias, "the bias"), call.name)  # type: ignore[union-attr]


@translates("matmul", "mm", "bmm", "mv", "dot")
def _matmul(call: Call, x: Value, y: Value) -> Node:
    return build.matmul(node(x), node(y), call.name)


@translates("addmm", "baddbmm")
def _add_matmul(call: Call, start: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Node:
    product = _times(call, _matmul(call, x, y), alpha)
    return product if beta == 0 else build.add(_times(call, start, beta), product, call.name)


@translates("conv1d", "conv2d", "conv3d")
def _convolution(
    call: Call,
    x: Node,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Node:
    w = _parameter(weight, "the weight of a convolution")
    if isinstance(padding, str) or w is None:
        raise UnsupportedModelError(f"padding={padding!r}: give the number of zeros instead")
    n = w.dim() - 2
    if len(x.shape) == n + 1:
        raise UnsupportedModelError("a convolution without a batch dimension: add one of size 1")
    full = [tuple(v) * (n if len(v) == 1 else 1) for v in (stride, padding, dilation)]
    return build.convolution(x, w, _parameter(bias, "the bias"), *full, groups, call.name)


@translates("avg_pool1d", "avg_pool2d")
def _average_pool(
    call: Call,
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """A convolution of every channel with a constant kernel."""
    if ceil_mode or divisor_override is not None or (any(padding) and not count_include_pad):
        raise UnsupportedModelError("average pooling with ceil_mode, divisor_override or count_include_pad=False")
    n = 2 if call.name.endswith("2d") else 1
    size, channels = tuple(kernel) * (n if len(kernel) == 1 else 1), x.shape[1]
    weight = torch.full((channels, 1, *size), 1.0 / math.prod(size), dtype=torch.float64)
    return _convolution(call, x, weight, None, stride or size, padding, (1,), channels)


@translates("_native_batch_norm_legit_no_training")
def _batch_norm(
    call: Call,
    x: Node,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Node]:
    """Scale and Shift of every channel, by the running statistics."""
    shape = (-1, *[1] * (len(x.shape) - 2))
    factor = (tensor(number(variance, "the running variance")) + eps).rsqrt()
    if weight is not None:
        factor = factor * number(weight, "the weight")
    offset = -tensor(number(mean, "the running mean")) * factor
    if bias is not None:
        offset = offset + number(bias, "the bias")
    y = build.multiply(x, node(factor.reshape(shape)), call.name)
    return (build.add(y, node(offset.reshape(shape)), call.name),)


# Sums, means, maxima ---------------------------------------------------------------------------------------------------


def _dims(dims: int | Sequence[int] | None) -> list[int] | None:
    return [dims] if isinstance(dims, int) else None if dims is None else list(dims)


@translates("sum")
def _sum(call: Call, x: Node, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return build.total(x, _dims(dims), keepdim, call.name)


@translates("mean")
def _mean(call: Call, x: Node, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return build.mean(x, _dims(dims), keepdim, call.name)


@translates("amax")
def _amax(call: Call, x: Node, dims: Any = (), keepdim: bool = False) -> Node:
    return build.maximum(x, _dims(dims), keepdim, call.name)


@translates("max")
def _max(call: Call, x: Node, dim: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, Node | Tensor):
        return _maximum(call, x, dim)
    return _amax(call, x) if dim is None else (_amax(call, x, dim, keepdim),)


@translates("amin")
def _amin(call: Call, x: Node, dims: Any = (), keepdim: bool = False) -> Node:
    return build.negate(_amax(call, build.negate(x, call.name), dims, keepdim), call.name)


@translates("var")
def _variance(call: Call, x: Node, dims: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Node:
    """Σ (x − mean)² / (count − correction)"""
    over = _dims(dims) or list(range(len(x.shape)))
    squares = build.apply(elementwise.Square(), build.centre(x, over, call.name), name=call.name)
    count = math.prod(x.shape[d] for d in over) - (1 if correction is None else correction)
    if count <= 0:
        raise UnsupportedModelError("a variance of too few numbers")
    return _times(call, build.total(squares, over, keepdim, call.name), 1.0 / count)


@translates("linalg_vector_norm")
def _norm(call: Call, x: Node, order: float = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    if order != 2:
        raise UnsupportedModelError(f"the {order}-norm is not supported; the 2-norm is")
    squares = build.apply(elementwise.Square(), x, name=call.name)
    return build.apply(elementwise.Sqrt(), build.total(squares, _dims(dims), keepdim, call.name), name=call.name)


@translates("cumsum")
def _cumsum(call: Call, x: Node, dim: int, *, dtype: Any = None) -> Node:
    n = x.shape[dim]
    y = build.transpose(x, dim, -1, call.name)
    y = build.apply(linear.Linear(torch.ones(n, n, dtype=torch.float64).triu()), y, name=call.name)
    return build.transpose(y, dim, -1, call.name)


# Softmax, attention, normalisation ----------------------------------------------------------------------------------------


@translates("softmax", "_softmax", "_safe_softmax")
def _softmax(call: Call, x: Node, dim: int, dtype: Any = None) -> Node:
    return build.softmax(x, dim, call.name)


@translates("log_softmax", "_log_softmax")
def _log_softmax(call: Call, x: Node, dim: int, dtype: Any = None) -> Node:
    return build.apply(elementwise.Log(), build.softmax(x, dim, call.name), name=call.name)


@translates("logsumexp")
def _log_sum_exp(call: Call, x: Node, dims: Any, keepdim: bool = False) -> Node:
    powers = build.apply(elementwise.Exp(), x, name=call.name)
    return build.apply(elementwise.Log(), build.total(powers, _dims(dims), keepdim, call.name), name=call.name)


@translates("scaled_dot_product_attention")
def _attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:
    """softmax(scale · Q Kᵀ + mask) V; where the mask is −1e30 or less (or False), the key has weight 0."""
    if dropout_p > 0:
        raise UnsupportedModelError("dropout_p > 0: pass dropout_p=0.0 when the model is not training")
    place = call.name.rpartition("/")[0]
    scores_name = f"{place}/scores" if place else "scores"
    q, k, v = node(query), node(key), node(value)
    if enable_gqa:
        k, v = (_repeat_heads(call, x, q.shape[-3] // x.shape[-3]) for x in (k, v))
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    scores = build.matmul(
        _times(dataclasses.replace(call, name=scores_name), q, factor),
        build.transpose(k, -1, -2, scores_name),
        scores_name,
    )
    masked: Tensor | None = None
    if is_causal:
        masked = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    elif isinstance(attn_mask, Node):
        scores = build.add(scores, attn_mask, scores_name)
    elif attn_mask is not None:
        added, masked = split_mask(torch.as_tensor(attn_mask))
        scores = build.expand(scores, torch.broadcast_shapes(scores.shape, added.shape), scores_name)
        if bool(added.any()):
            scores = build.add(scores, build.constant(added), scores_name)
    scores, v = _same_lead(scores, v, call.name)
    weights = build.value_of(scores)
    if weights is not None:
        p = build.softmax(build.constant(weights), -1, call.name, masked)
        return build.matmul(p, v, call.name)
    return build.apply(attention.Attention(masked), scores, v, name=call.name)


def _same_lead(x: Node, y: Node, name: str) -> tuple[Node, Node]:
    lead = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return build.expand(x, (*lead, *x.shape[-2:]), name), build.expand(y, (*lead, *y.shape[-2:]), name)


def _repeat_heads(call: Call, x: Node, times: int) -> Node:
    """Every head `times` times in a row: (..., heads, n, d) → (..., heads · times, n, d)."""
    *lead, heads, n, d = x.shape
    split = build.reshape(x, (*lead, heads, 1, n, d), call.name)
    wide = build.expand(split, (*lead, heads, times, n, d), call.name)
    return build.reshape(wide, (*lead, heads * times, n, d), call.name)


@translates("layer_norm")
def _layer_norm(
    call: Call,
    x: Node,
    shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Node:
    dims = list(range(-len(shape), 0))
    y = build.normalize(build.centre(x, dims, call.name), dims, eps, call.name)
    return _scale_shift(call, y, weight, bias)


def _scale_shift(call: Call, y: Node, weight: Value | None, bias: Value | None) -> Node:
    if weight is not None:
        y = build.multiply(y, node(weight), call.name)
    return y if bias is None else build.add(y, node(bias), call.name)


@translates("rms_norm")
def _rms_norm(call: Call, x: Node, shape: Sequence[int], weight: Value | None = None, eps: float | None = None) -> Node:
    """Without eps, torch takes the machine epsilon of the model's own dtype."""
    smallest = torch.finfo(call.dtype).eps if eps is None else eps
    return _scale_shift(call, build.normalize(x, list(range(-len(shape), 0)), smallest, call.name), weight, None)


@translates("native_group_norm")
def _group_norm(
    call: Call,
    x: Node,
    weight: Value | None,
    bias: Value | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[Node]:
    grouped = build.reshape(x, (n, groups, channels // groups * size), call.name)
    y = build.normalize(build.centre(grouped, [-1], call.name), [-1], eps, call.name)
    per_channel = (-1, *[1] * (len(x.shape) - 2))
    w, b = (None if p is None else tensor(number(p, "a weight")).reshape(per_channel) for p in (weight, bias))
    return (_scale_shift(call, build.reshape(y, x.shape, call.name), w, b),)
