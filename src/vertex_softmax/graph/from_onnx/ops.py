"""Translations of ONNX operators to nodes of the graph: one small function per operator, registered by its name.

Invariant: a function returns nodes that compute what the ONNX standard defines for the opset of the model, or it raises
`Unsupported` with the reason; it never returns an approximation. Constants keep their ONNX type until they are combined
with a variable (integer division truncates, a Cast rounds). The functions get floating-point constants in float64, and
a folded constant is rounded to its type in the model.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops import elementwise
from vertex_softmax.ops.contract import Op


class Unsupported(Exception):  # noqa: N818
    """The reason why a node cannot be translated; the importer collects these into one error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnnxCall:
    """One ONNX node with its inputs translated."""

    kind: str
    """The name of its operator."""
    name: str
    opset: int
    """The version of the standard operators that the model imports."""
    inputs: tuple[Node | None, ...]
    """None for an optional input that is left out."""
    attributes: dict[str, Any]
    """Its attributes as Python values and tensors."""
    outputs: int
    """The number of its outputs."""
    used: int
    """One more than the index of the last output that is used."""
    output: str = ""
    """The name of its first output."""
    dtypes: tuple[torch.dtype | None, ...] = dataclasses.field(init=False, default=())
    """The dtypes of constant inputs in the model (float64 for a variable); None for an input that is left out."""

    def __post_init__(self) -> None:
        dtypes = tuple(None if x is None else _dtype(x) for x in self.inputs)
        object.__setattr__(self, "dtypes", dtypes)
        object.__setattr__(self, "inputs", tuple(_in_float64(x) for x in self.inputs))

    def model_dtype(self, i: int) -> torch.dtype:
        """The dtype of a constant input in the model; float64 for a variable."""
        return self.dtypes[i] or torch.float64

    @property
    def constant(self) -> bool:
        """Whether all inputs are constant, so that the node is folded."""
        return all(x is None or isinstance(x.op, Constant) for x in self.inputs)

    def has(self, i: int) -> bool:
        """Whether the optional input i is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def __getitem__(self, i: int) -> Node:
        """The required input i; `Unsupported` if it is missing."""
        x = self.inputs[i] if i < len(self.inputs) else None
        if x is None:
            raise Unsupported(f"input {i} is missing")
        return x

    def value(self, i: int, what: str) -> Tensor:
        """The value of the required input i, which has to be constant; `what` names it in the reason if it is not."""
        value = build.value_of(self[i])
        if value is None:
            raise Unsupported(f"{what} depends on the network's input; only a constant is supported there")
        return value

    def ints(self, i: int, what: str) -> list[int]:
        """The entries of the constant input i as integers."""
        return [int(v) for v in self.value(i, what).reshape(-1).tolist()]

    def get(self, name: str, default: Any) -> Any:
        """An attribute, or its default; a float default is rounded to float32, as all float attributes of ONNX are."""
        return self.attributes.get(name, single(default) if isinstance(default, float) else default)


def single(value: float) -> float:
    """The value rounded to float32."""
    return float(np.float32(value))


def _dtype(x: Node) -> torch.dtype:
    value = build.value_of(x)
    return torch.float64 if value is None else value.dtype


def _in_float64(x: Node | None) -> Node | None:
    value = None if x is None else build.value_of(x)
    if x is None or value is None or not value.is_floating_point() or value.dtype == torch.float64:
        return x
    return build.constant(value.double(), x.name)


Translate = Callable[[OnnxCall], Node | Sequence[Node]]
TRANSLATE: dict[tuple[str, str], Translate] = {}
"""(domain, operator) → its function; the standard domain is ''."""


def translates(*kinds: str, domains: Sequence[str] = ("",)) -> Callable[[Translate], Translate]:
    """Register a translation for the operators of these names."""

    def register(function: Translate) -> Translate:
        for kind in kinds:
            for domain in domains:
                TRANSLATE[domain, kind] = function
        return function

    return register


def number(value: float) -> Node:
    """A scalar constant node in float64."""
    return build.constant(torch.tensor(value, dtype=torch.float64))


def limited(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape as a tuple; `Unsupported` if a tensor of this shape would be too large."""
    if any(n < 0 for n in shape) or math.prod(shape) > build.LARGEST:
        raise Unsupported(f"it makes a tensor of shape {tuple(shape)}; at most {build.LARGEST} numbers are supported")
    return tuple(int(n) for n in shape)


# Arithmetic


@translates("Add", "Sub", "Mul")
def _arithmetic(call: OnnxCall) -> Node:
    function = {"Add": build.add, "Sub": build.subtract, "Mul": build.multiply}[call.kind]
    return function(call[0], call[1], call.name)


@translates("Div")
def _divide(call: OnnxCall) -> Node:
    if call.constant and not call.model_dtype(0).is_floating_point:
        x, y = call.value(0, "dividend"), call.value(1, "divisor")
        if bool((y == 0).any()):
            raise Unsupported("it divides integers by zero")
        return build.folded(functools.partial(torch.div, rounding_mode="trunc"), x, y, name=call.name)
    divisor = build.value_of(call[1])
    if divisor is not None and bool((divisor == 0).any()):
        raise Unsupported("it divides by zero")
    return build.divide(call[0], call[1], call.name)


@translates("Sum")
def _sum(call: OnnxCall) -> Node:
    return functools.reduce(lambda x, y: build.add(x, y, call.name), [call[i] for i in range(len(call.inputs))])


@translates("Neg")
def _negate(call: OnnxCall) -> Node:
    return build.negate(call[0], call.name)


@translates("Pow")
def _power(call: OnnxCall) -> Node:
    x, exponents = call[0], call.value(1, "the exponent")
    if call.constant:
        base = call.value(0, "base")
        return build.folded(lambda b, e: b.pow(e).to(b.dtype), base, exponents, name=call.name)
    distinct = exponents.unique().tolist()
    if len(distinct) != 1:
        raise Unsupported("exponents differ from entry to entry; only one for all is supported")
    x = build.expand(x, np.broadcast_shapes(x.shape, exponents.shape), call.name)
    return power(x, float(distinct[0]), call.name)


ROOTS: dict[float, Op] = {0.5: elementwise.Sqrt(), -0.5: elementwise.Rsqrt(), -1.0: elementwise.Reciprocal()}


def power(x: Node, exponent: float, name: str) -> Node:
    """x ** exponent for the exponents ±0.5, −1 and 1 to 8, by roots and products."""
    if exponent in ROOTS:
        return build.apply(ROOTS[exponent], x, name=name)
    if exponent not in range(1, 9):
        raise Unsupported(f"exponent {exponent}; ±0.5, -1 and 1 to 8 are supported")
    if exponent == 1:
        return x
    half = power(x, exponent // 2, name)
    square = build.multiply(half, half, name)
    return square if exponent % 2 == 0 else build.multiply(square, x, name)


def relu(x: Node, name: str) -> Node:
    """The node max(x, 0)."""
    return build.apply(elementwise.Relu(), x, name=name)


def larger(x: Node, y: Node, name: str) -> Node:
    """max(x, y) = y + relu(x − y)"""
    if build.value_of(x) is not None:
        x, y = y, x
    return build.add(relu(build.subtract(x, y, name), name), y, name)


def smaller(x: Node, y: Node, name: str) -> Node:
    """min(x, y) = y − relu(y − x)"""
    if build.value_of(x) is not None:
        x, y = y, x
    return build.subtract(y, relu(build.subtract(y, x, name), name), name)


@translates("Max", "Min")
def _extreme(call: OnnxCall) -> Node:
    if call.constant:
        exact = torch.maximum if call.kind == "Max" else torch.minimum
        values = [call.value(i, "an operand") for i in range(len(call.inputs))]
        return build.folded(lambda *xs: functools.reduce(exact, xs), *values, name=call.name)
    function = larger if call.kind == "Max" else smaller
    return functools.reduce(lambda x, y: function(x, y, call.name), [call[i] for i in range(len(call.inputs))])


@translates("Clip")
def _clip(call: OnnxCall) -> Node:
    low, high = call.get("min", None), call.get("max", None)
    if call.opset >= 11:
        low = call.value(1, "the lower end").item() if call.has(1) else None
        high = call.value(2, "the upper end").item() if call.has(2) else None
    if call.constant:
        return build.constant(call.value(0, "").clamp(low, high), call.name)
    x = call[0]
    if low is not None and -low not in _no_limits(call, 1):
        x = larger(x, number(low), call.name)
    if high is not None and high not in _no_limits(call, 2):
        x = smaller(x, number(high), call.name)
    return x


def _no_limits(call: OnnxCall, i: int) -> tuple[float, ...]:
    """The upper ends of a Clip that limit nothing: ∞, and the largest number of the type of its input i.

    The standard's default of an end that is left out is that number: no number of the type is beyond it. In another
    type it is a limit like any other. Attributes (before opset 11) are float32.
    """
    dtype = call.model_dtype(i) if call.opset >= 11 else torch.float32
    return (math.inf, torch.finfo(dtype).max) if dtype in (torch.float32, torch.float64) else (math.inf,)


@translates("Abs")
def _absolute(call: OnnxCall) -> Node:
    if call.constant:
        return build.constant(call.value(0, "").abs(), call.name)
    return build.add(relu(call[0], call.name), relu(build.negate(call[0], call.name), call.name), call.name)


# Products


@translates("MatMul")
def _matmul(call: OnnxCall) -> Node:
    return build.matmul(call[0], call[1], call.name)


@translates("FusedMatMul", domains=("com.microsoft",))
def _fused_matmul(call: OnnxCall) -> Node:
    if call.get("transBatchA", 0) or call.get("transBatchB", 0):
        raise Unsupported("transBatchA and transBatchB are not supported")
    x, y = call[0], call[1]
    x = build.transpose(x, -1, -2, call.name) if call.get("transA", 0) else x
    y = build.transpose(y, -1, -2, call.name) if call.get("transB", 0) else y
    out = build.matmul(x, y, call.name)
    alpha = float(call.get("alpha", 1.0))
    return out if alpha == 1.0 else build.multiply(out, number(alpha), call.name)


@translates("Gemm")
def _gemm(call: OnnxCall) -> Node:
    x, y = call[0], call[1]
    x = build.transpose(x, 0, 1, call.name) if call.get("transA", 0) else x
    y = build.transpose(y, 0, 1, call.name) if call.get("transB", 0) else y
    alpha, beta = float(call.get("alpha", 1.0)), float(call.get("beta", 1.0))
    added = call[2] if call.has(2) else None
    added = added if added is None or beta == 1.0 else build.multiply(added, number(beta), call.name)
    weight, bias = build.value_of(y), None if added is None else build.value_of(added)
    if weight is None or build.value_of(x) is not None:
        out = build.matmul(x, y, call.name)
        out = out if alpha == 1.0 else build.multiply(out, number(alpha), call.name)
    elif bias is not None and math.prod(bias.shape[:-1]) == 1:
        return build.affine(x, (weight * alpha).mT, bias.reshape(-1).expand(weight.shape[1]).clone(), call.name)
    else:
        out = build.affine(x, (weight * alpha).mT, None, call.name)
    return out if added is None else build.add(out, added, call.name)


# Normalisation and softmax


@translates("BatchNormalization")
def _batch_norm(call: OnnxCall) -> Node:
    if call.get("training_mode", 0) or call.used > 1:
        raise Unsupported("it is in training mode: export the model with model.eval()")
    scale, bias, mean, variance = (
        call.value(i, what).double() for i, what in enumerate(("scale", "bias", "mean", "variance"), start=1)
    )
    factor = scale / (variance + float(call.get("epsilon", 1e-5))).sqrt()
    wide = (-1, *[1] * (len(call[0].shape) - 2))
    x = build.subtract(call[0], build.constant(mean.reshape(wide)), call.name)
    x = build.multiply(x, build.constant(factor.reshape(wide)), call.name)
    return build.add(x, build.constant(bias.reshape(wide)), call.name)


def _normalized_dims(call: OnnxCall) -> list[int]:
    """The dimensions from `axis` on, over which a norm normalises."""
    rank = len(call[0].shape)
    axis = int(call.get("axis", -1)) % rank
    if call.used > 1:
        raise Unsupported("its mean or deviation is used as an output")
    return list(range(axis, rank))


@translates("LayerNormalization")
def _layer_norm(call: OnnxCall) -> Node:
    dims, eps = _normalized_dims(call), float(call.get("epsilon", 1e-5))
    if len(call.inputs) > 2 and not call.has(2):
        raise Unsupported("its bias is an empty name, by which onnxruntime's optimiser crashes: leave that input out")
    out = build.normalize(build.centre(call[0], dims, call.name), dims, eps, call.name)
    out = build.multiply(out, call[1], call.name)
    return build.add(out, call[2], call.name) if call.has(2) else out


@translates("InstanceNormalization", "GroupNormalization")
def _group_norm(call: OnnxCall) -> Node:
    """Normalisation over groups of channels, with scale and bias per channel."""
    x, name = call[0], call.name
    groups = x.shape[1] if call.kind == "InstanceNormalization" else int(call.get("num_groups", 0))
    if groups <= 0 or x.shape[1] % groups:
        raise Unsupported(f"{groups} groups of {x.shape[1]} channels")
    y = build.reshape(x, (x.shape[0], groups, math.prod(x.shape[1:]) // groups), name)
    y = build.normalize(build.centre(y, [-1], name), [-1], float(call.get("epsilon", 1e-5)), name)
    y = build.reshape(y, x.shape, name)
    scale, bias = (
        v.reshape(-1, *[1] * (len(x.shape) - 2)) for v in (call.value(1, "the scale"), call.value(2, "the bias"))
    )
    return build.add(build.multiply(y, build.constant(scale), name), build.constant(bias), name)


@translates("RMSNormalization")
@translates("SimplifiedLayerNormalization", domains=("", "com.microsoft"))
def _rms_norm(call: OnnxCall) -> Node:
    out = build.normalize(call[0], _normalized_dims(call), float(call.get("epsilon", 1e-5)), call.name)
    return build.multiply(out, call[1], call.name)


@translates("Softmax")
def _softmax(call: OnnxCall) -> Node:
    """Before opset 13 softmax is over all dimensions from `axis` on, taken as one; since then over `axis` alone."""
    return softmax_of(call)


@translates("LogSoftmax")
def _log_softmax(call: OnnxCall) -> Node:
    return build.apply(elementwise.Log(), softmax_of(call), name=call.name)


def softmax_of(call: OnnxCall) -> Node:
    """The softmax of the first input over the node's axis, with its meaning in the node's opset."""
    x, rank = call[0], len(call[0].shape)
    axis = int(call.get("axis", 1 if call.opset < 13 else -1)) % rank
    if call.opset >= 13 or axis == rank - 1:
        return build.softmax(x, axis, call.name)
    flat = build.reshape(x, (*x.shape[:axis], math.prod(x.shape[axis:])), call.name)
    return build.reshape(build.softmax(flat, -1, call.name), x.shape, call.name)
