"""Translations of aten's functions of one number to Vertex's ops (see ops.py)."""

from __future__ import annotations

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_torch.ops import TorchCall, Translation, Value, node, relu, times, translates
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops import activations, elementwise

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
    "mish": activations.Mish,
    "hardswish": activations.HardSwish,
}


def _elementwise(op: type) -> Translation:
    return lambda call, x: build.apply(op(), x, name=call.name)


for _name, _op in ELEMENTWISE.items():
    translates(_name)(_elementwise(_op))


@translates("gelu")
def _gelu(call: TorchCall, x: Node, *, approximate: str = "none") -> Node:
    return build.apply(elementwise.Gelu(tanh=approximate == "tanh"), x, name=call.name)


@translates("elu")
def _elu(call: TorchCall, x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Node:
    """scale · x above 0, scale · α (eᵏˣ − 1) below, with k = input_scale: scale · (α elu(k x) + (1 − α k) relu(x))."""
    if input_scale <= 0:
        raise UnsupportedModelError(f"elu with input_scale={input_scale}; it has to be positive")
    curve = times(call, build.apply(activations.Elu(), times(call, x, input_scale), name=call.name), alpha)
    rest = 1 - alpha * input_scale
    whole = curve if rest == 0 else build.add(curve, times(call, relu(call, x), rest), call.name)
    return times(call, whole, scale)


@translates("celu")
def _celu(call: TorchCall, x: Node, alpha: float = 1.0) -> Node:
    """x above 0, α (eˣ/ᵅ − 1) below: α elu(x/α)"""
    if alpha <= 0:
        raise UnsupportedModelError(f"celu with alpha={alpha}; it has to be positive")
    small = build.divide(x, node(alpha), call.name)
    return times(call, build.apply(activations.Elu(), small, name=call.name), alpha)


@translates("softplus")
def _softplus(call: TorchCall, x: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    """log(1 + eᵇˣ)/b, and x where b x is above the threshold."""
    if beta <= 0:
        raise UnsupportedModelError(f"softplus with beta={beta}; it has to be positive")
    curve = build.apply(activations.Softplus(float(threshold)), times(call, x, beta), name=call.name)
    return curve if beta == 1 else build.divide(curve, node(beta), call.name)


@translates("log_sigmoid")
def _log_sigmoid(call: TorchCall, x: Node) -> Node:
    """−log(1 + e⁻ˣ)"""
    curve = build.apply(activations.Softplus(), build.negate(x, call.name), name=call.name)
    return build.negate(curve, call.name)


@translates("hardsigmoid")
def _hard_sigmoid(call: TorchCall, x: Node) -> Node:
    """min(max(x + 3, 0), 6) / 6 = (relu(x + 3) − relu(x − 3)) / 6"""
    left, right = (relu(call, build.add(x, node(float(shift)), call.name)) for shift in (3, -3))
    return build.divide(build.subtract(left, right, call.name), node(6.0), call.name)


@translates("prelu")
def _prelu(call: TorchCall, x: Node, weight: Value) -> Node:
    """relu(x) − weight · relu(−x), one weight for each channel or one for all."""
    slope = node(weight)
    if len(x.shape) > 2 and slope.shape != (1,):
        slope = build.reshape(slope, (-1, *[1] * (len(x.shape) - 2)), call.name)
    down = build.multiply(relu(call, build.negate(x, call.name)), slope, call.name)
    return build.subtract(relu(call, x), down, call.name)


@translates("log1p")
def _log_one_plus(call: TorchCall, x: Node) -> Node:
    """log(1 + x)"""
    return build.apply(elementwise.Log(), build.add(x, node(1.0), call.name), name=call.name)


@translates("expm1")
def _exp_less_one(call: TorchCall, x: Node) -> Node:
    """eˣ − 1"""
    return build.add(build.apply(elementwise.Exp(), x, name=call.name), node(-1.0), call.name)
