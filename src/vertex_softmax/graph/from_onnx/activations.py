"""Translations of ONNX's functions of one number (see ops.py)."""

from __future__ import annotations

from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx.ops import OnnxCall, Unsupported, number, relu, smaller, translates
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops import activations, elementwise
from vertex_softmax.ops.contract import Op

UNARY: dict[str, Op] = {
    "Sqrt": elementwise.Sqrt(),
    "Reciprocal": elementwise.Reciprocal(),
    "Exp": elementwise.Exp(),
    "Log": elementwise.Log(),
    "Erf": elementwise.Erf(),
    "Tanh": elementwise.Tanh(),
    "Sigmoid": elementwise.Sigmoid(),
    "Relu": elementwise.Relu(),
    "Softplus": activations.Softplus(),
    "Mish": activations.Mish(),
    "HardSwish": activations.HardSwish(single=True),
}


@translates(*UNARY)
def _unary(call: OnnxCall) -> Node:
    return build.apply(UNARY[call.kind], call[0], name=call.name)


@translates("Gelu", domains=("", "com.microsoft"))
def _gelu(call: OnnxCall) -> Node:
    tanh = call.get("approximate", "none") == "tanh"
    return build.apply(elementwise.Gelu(tanh), call[0], name=call.name)


@translates("LeakyRelu", "PRelu")
def _leaky_relu(call: OnnxCall) -> Node:
    """relu(x) − slope · relu(−x)"""
    slope = number(float(call.get("alpha", 0.01))) if call.kind == "LeakyRelu" else call[1]
    down = build.multiply(relu(build.negate(call[0], call.name), call.name), slope, call.name)
    return build.subtract(relu(call[0], call.name), down, call.name)


@translates("Elu", "Selu")
def _elu(call: OnnxCall) -> Node:
    """γ x above 0, γ α (eˣ − 1) below: γ (α elu(x) + (1 − α) relu(x)); ELU has γ = 1."""
    alpha = float(call.get("alpha", 1.67326319217681884765625 if call.kind == "Selu" else 1.0))
    gamma = float(call.get("gamma", 1.05070102214813232421875)) if call.kind == "Selu" else 1.0
    curve = build.apply(activations.Elu(), call[0], name=call.name)
    if alpha != 1:
        rest = build.multiply(relu(call[0], call.name), number(1 - alpha), call.name)
        curve = build.add(build.multiply(curve, number(alpha), call.name), rest, call.name)
    return curve if gamma == 1 else build.multiply(curve, number(gamma), call.name)


@translates("Celu")
def _celu(call: OnnxCall) -> Node:
    """α elu(x / α)"""
    alpha = float(call.get("alpha", 1.0))
    if alpha <= 0:
        raise Unsupported(f"alpha is {alpha}; it has to be positive")
    curve = build.apply(activations.Elu(), build.divide(call[0], number(alpha), call.name), name=call.name)
    return build.multiply(curve, number(alpha), call.name)


@translates("Softsign")
def _softsign(call: OnnxCall) -> Node:
    """x / (1 + |x|)"""
    size = build.add(relu(call[0], call.name), relu(build.negate(call[0], call.name), call.name), call.name)
    return build.divide(call[0], build.add(size, number(1.0), call.name), call.name)


@translates("HardSigmoid")
def _hard_sigmoid(call: OnnxCall) -> Node:
    """max(0, min(1, alpha · x + beta))"""
    alpha, beta = float(call.get("alpha", 0.2)), float(call.get("beta", 0.5))
    line = build.add(build.multiply(call[0], number(alpha), call.name), number(beta), call.name)
    return relu(smaller(line, number(1.0), call.name), call.name)
