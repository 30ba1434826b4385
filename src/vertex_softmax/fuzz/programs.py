"""Small networks as ONNX graphs written by hand, and the same as a torch module.

Invariant: a program's steps are ONNX nodes in order, its constants are the numbers that the file has (float32 or
float64), and the torch module computes step by step what the nodes say, with the same constants.

A program maps tokens (1, T, d) through blocks, each of which keeps the shape, to a head (1, classes): blocks may be
dropped and put in any order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from vertex_softmax.fuzz.asking import UnfitError
from vertex_softmax.fuzz.recipe import Layer

Array = NDArray[Any]
INV_SQRT2 = 0.5**0.5
TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


@dataclasses.dataclass
class Step:
    """One node."""

    op: str
    inputs: list[str]
    output: str
    attributes: dict[str, Any]
    domain: str = ""


@dataclasses.dataclass
class Program:
    """Nodes and constants in the making; `dtype` is the file's."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    steps: list[Step] = dataclasses.field(default_factory=list)
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)
    output: str = "x"
    classes: int = 0

    def constant(self, value: Any, kind: str | None = None) -> str:
        """A new constant's name."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype=kind or self.dtype)
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A new node's output."""
        name = f"h{len(self.steps)}"
        self.steps.append(Step(op, list(inputs), name, attributes))
        return name

    def weights(self, seed: int, shape: tuple[int, ...], scale: float = 1.0) -> str:
        """A random constant."""
        fan = shape[0] if len(shape) > 1 else 9
        return self.constant(np.random.default_rng(seed).standard_normal(shape) * fan**-0.5 * scale)

    def onnx(self, opset: int = 18) -> Any:
        """The model as protobuf."""
        from onnx import TensorProto, helper, numpy_helper

        kind = TensorProto.FLOAT if self.dtype == "float32" else TensorProto.DOUBLE
        nodes = [
            helper.make_node(step.op, step.inputs, [step.output], domain=step.domain, **step.attributes)
            for step in self.steps
        ]
        graph = helper.make_graph(
            nodes,
            "program",
            [helper.make_tensor_value_info("x", kind, list(self.shape))],
            [helper.make_tensor_value_info(self.output, kind, [1, self.classes])],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)

    def module(self) -> nn.Module:
        """The same for torch, in eval mode and in the file's precision."""
        return Stepwise(self).eval()


class Stepwise(nn.Module):
    """A program, step by step."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.steps, self.last = program.steps, program.output
        for name, value in program.constants.items():
            self.register_buffer(name, torch.from_numpy(np.array(value)))

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        known: dict[str, Tensor] = {"x": x, **dict(self.named_buffers())}
        for step in self.steps:
            known[step.output] = TORCH[step.op](*[known[name] for name in step.inputs], **step.attributes)
        return known[self.last]


def _reduce_mean(x: Tensor, axes: Tensor, keepdims: int = 1) -> Tensor:
    return x.mean([int(a) for a in axes], keepdim=bool(keepdims))


TORCH: dict[str, Callable[..., Tensor]] = {
    "MatMul": torch.matmul,
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Neg": torch.neg,
    "Relu": torch.relu,
    "LeakyRelu": lambda x, alpha=0.01: functional.leaky_relu(x, alpha),
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Erf": torch.erf,
    "Sqrt": torch.sqrt,
    "Max": torch.maximum,
    "Identity": lambda x: x,
    "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "Transpose": lambda x, perm: x.permute(*perm),
    "Reshape": lambda x, shape: x.reshape([int(n) for n in shape]),
    "ReduceMean": _reduce_mean,
    "HardSwish": functional.hardswish,
    "Gelu": lambda x, approximate="none": functional.gelu(x, approximate=approximate),
}


def program_of(recipe: Layer) -> Program:
    """Of `tokens`, `d`, `classes`, `blocks`, and `dtype` if it is there."""
    tokens, d = recipe["tokens"], recipe["d"]
    program = Program((1, tokens, d), recipe.get("dtype", "float32"))
    last = "x"
    for block in recipe["blocks"]:
        if block["op"] not in BLOCKS:
            raise UnfitError(f"there is no block {block['op']}")
        last = BLOCKS[block["op"]](program, last, tokens, d, block)
    last = program.add("Reshape", last, program.constant([1, tokens * d], "int64"))
    last = program.add("MatMul", last, program.weights(recipe["seed"], (tokens * d, recipe["classes"])))
    program.output = program.add("Add", last, program.weights(recipe["seed"] + 1, (1, recipe["classes"])))
    program.classes = recipe["classes"]
    return program


def _linear(p: Program, x: str, _tokens: int, d: int, block: Layer) -> str:
    y = p.add("MatMul", x, p.weights(block["seed"], (d, d), block.get("scale", 1.0)))
    return p.add("Add", y, p.weights(block["seed"] + 1, (d,), 0.5))


def _activation(p: Program, x: str, _tokens: int, _d: int, block: Layer) -> str:
    kind = block["kind"]
    if kind == "gelu":
        return gelu(p, x, 1 + block.get("off", 0.0))
    if kind == "gelu_tanh":
        return _gelu_tanh(p, x, 1 + block.get("off", 0.0))
    if kind == "silu":
        return p.add("Mul", x, p.add("Sigmoid", p.add("Mul", x, p.constant(1 + block.get("off", 0.0)))))
    names = {"relu": "Relu", "leaky": "LeakyRelu", "tanh": "Tanh", "sigmoid": "Sigmoid", "erf": "Erf"}
    if kind == "leaky" and "alpha" in block:
        return p.add("LeakyRelu", x, alpha=block["alpha"])
    return p.add(names[kind], x)


def gelu(p: Program, x: str, times: float = 1.0) -> str:
    """½ x (1 + erf(x·k)), written out, with k a little off."""
    e = p.add("Add", p.add("Erf", p.add("Mul", x, p.constant(INV_SQRT2 * times))), p.constant(1.0))
    return p.add("Mul", p.add("Mul", x, e), p.constant(0.5))


def _gelu_tanh(p: Program, x: str, times: float) -> str:
    cube = p.add("Mul", p.add("Mul", p.add("Mul", x, x), x), p.constant(TANH_CUBE * times))
    inner = p.add("Mul", p.add("Add", x, cube), p.constant(TANH_SCALE))
    return p.add("Mul", p.add("Mul", x, p.add("Add", p.add("Tanh", inner), p.constant(1.0))), p.constant(0.5))


def _norm(p: Program, x: str, _tokens: int, _d: int, block: Layer) -> str:
    axes = p.constant([-1], "int64")
    centred = p.add("Sub", x, p.add("ReduceMean", x, axes))
    square = p.add("ReduceMean", p.add("Mul", centred, centred), axes)
    root = p.add("Sqrt", p.add("Add", square, p.constant(block.get("eps", 2.0**-10))))
    return p.add("Div", centred, root)


def _attention(p: Program, x: str, tokens: int, d: int, block: Layer) -> str:
    """One head; scores · loud, then + mask, then each of `behind`, then softmax."""
    q, k, v = (p.add("MatMul", x, p.weights(block["seed"] + i, (d, d))) for i in range(3))
    s = p.add("MatMul", q, p.add("Transpose", k, perm=[0, 2, 1]))
    s = p.add("Mul", s, p.constant(d**-0.5 * block.get("loud", 1.0)))
    if block.get("fill") is not None:
        hidden = np.random.default_rng(block["seed"] + 9).random((tokens, tokens)) < 0.5
        hidden[:, 0] = False
        if tokens > 1:
            hidden[0, 1] = True
        s = p.add("Add", s, p.constant(np.where(hidden, float(block["fill"]), 0.0)))
    for factor in block.get("behind", []):
        s = p.add("Mul", s, p.constant(factor))
    y = p.add("MatMul", p.add("Softmax", s, axis=-1), v)
    return p.add("Add", x, y) if block.get("residual") else y


def _difference(p: Program, x: str, tokens: int, d: int, block: Layer) -> str:
    """h − f(h), or f(h) − h: the order of two edges."""
    y = _activation(p, x, tokens, d, block)
    return p.add("Sub", x, y) if block["first"] == "x" else p.add("Sub", y, x)


def _cancel(p: Program, x: str, _tokens: int, d: int, block: Layer) -> str:
    """x·big, + x, − x·big, merged into one matrix or written apart: x in real arithmetic."""
    big = float(block["big"])
    eye = np.eye(d)
    wide = p.add("MatMul", x, p.constant(np.concatenate([eye, eye, eye], 1)))
    return p.add("MatMul", wide, p.constant(np.concatenate([big * eye, eye, -big * eye], 0)))


def _chain(p: Program, x: str, _tokens: int, _d: int, block: Layer) -> str:
    """x times each factor, one after the other."""
    for factor in block["factors"]:
        x = p.add("Mul", x, p.constant(float(factor)))
    return x


def _shift(p: Program, x: str, _tokens: int, _d: int, block: Layer) -> str:
    """x plus each term, one after the other."""
    for term in block["terms"]:
        x = p.add("Add", x, p.constant(float(term)))
    return x


def _apart(p: Program, x: str, tokens: int, d: int, block: Layer) -> str:
    """(f_a(x) − f_b(x)) · times, + x: 0 beside x if the two are taken for the same."""
    a = _activation(p, x, tokens, d, {**block, "off": block["off"]})
    b = _activation(p, x, tokens, d, {**block, "off": block.get("other", -block["off"])})
    return p.add("Add", p.add("Mul", p.add("Sub", a, b), p.constant(float(block["times"]))), x)


BLOCKS: dict[str, Callable[[Program, str, int, int, Layer], str]] = {
    "linear": _linear,
    "activation": _activation,
    "norm": _norm,
    "attention": _attention,
    "difference": _difference,
    "cancel": _cancel,
    "chain": _chain,
    "shift": _shift,
    "apart": _apart,
}
