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

from vertex_lab.fuzz.asking import UnfitError
from vertex_lab.fuzz.recipe import Layer

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
    centre: Array = dataclasses.field(default_factory=lambda: np.zeros(1))
    eps: float = 0.0

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
        self.places = {k: v.tolist() for k, v in program.constants.items() if v.dtype.kind == "i"}
        for name, value in program.constants.items():
            if name not in self.places:
                self.register_buffer(name, torch.from_numpy(np.array(value)))

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        known: dict[str, Any] = {"x": x, **self.places, **dict(self.named_buffers())}
        for step in self.steps:
            known[step.output] = TORCH[step.op](*[known[name] for name in step.inputs], **step.attributes)
        found: Tensor = known[self.last]
        return found


def _reduce_mean(x: Tensor, axes: list[int], keepdims: int = 1) -> Tensor:
    return x.mean(axes, keepdim=bool(keepdims))


TORCH: dict[str, Callable[..., Tensor]] = {
    "MatMul": torch.matmul,
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Neg": torch.neg,
    "Relu": torch.relu,
    "LeakyRelu": lambda x, alpha=0.01: functional.leaky_relu(x, float(np.float32(alpha))),
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Erf": torch.erf,
    "Sqrt": torch.sqrt,
    "Max": torch.maximum,
    "Identity": lambda x: x,
    "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "Transpose": lambda x, perm: x.permute(*perm),
    "Reshape": lambda x, shape: x.reshape(shape),
    "ReduceMean": _reduce_mean,
    "HardSwish": functional.hardswish,
    "Gelu": lambda x, approximate="none": functional.gelu(x, approximate=approximate),
}


def program_of(recipe: Layer) -> Program:
    """Of `tokens`, `d`, `classes`, `blocks`, and `dtype` if it is there."""
    tokens, d = recipe["tokens"], recipe["d"]
    program = Program((1, tokens, d), recipe.get("dtype", "float32"), centre=centre_of(recipe), eps=recipe["eps"])
    last = "x"
    for block in recipe["blocks"]:
        if block["op"] not in BLOCKS:
            raise UnfitError(f"there is no block {block['op']}")
        last = BLOCKS[block["op"]](program, last, tokens, d, block)
    last = program.add("Reshape", last, program.constant([1, tokens * d], "int64"))
    if "threshold" in recipe:
        return _against(program, last, recipe, tokens * d)
    last = program.add("MatMul", last, program.weights(recipe["seed"], (tokens * d, recipe["classes"])))
    program.output = program.add("Add", last, program.weights(recipe["seed"] + 1, (1, recipe["classes"])))
    program.classes = recipe["classes"]
    return program


def _against(program: Program, last: str, recipe: Layer, size: int) -> Program:
    """Outputs (y, threshold), to ask whether y is above or below it; and `third`, beside which both are small."""
    weight = np.random.default_rng(recipe["seed"]).standard_normal(size) * size**-0.5
    others = [float(recipe["threshold"]), *([recipe["third"]] if recipe.get("third") else [])]
    program.classes = 1 + len(others)
    last = program.add("MatMul", last, program.constant(np.stack([weight, *[0 * weight for _ in others]], 1)))
    program.output = program.add("Add", last, program.constant([[0.0, *others]]))
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
    cube = p.add("Mul", p.add("Mul", p.add("Mul", x, x), x), p.constant(TANH_CUBE))
    inner = p.add("Mul", p.add("Add", x, cube), p.constant(TANH_SCALE * times))
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
    for _ in range(2):  # two factors: one alone may be beyond what is taken for a number
        s = p.add("Mul", s, p.constant((d**-0.5 * block.get("loud", 1.0)) ** 0.5))
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


def _leaked(p: Program, x: str, _tokens: int, _d: int, block: Layer) -> str:
    """(LeakyRelu without its slope − LeakyRelu with the default's slope) · times, + x: x in real arithmetic."""
    slope = float(np.float32(0.01))
    gone = p.add("Sub", p.add("LeakyRelu", x), p.add("LeakyRelu", x, alpha=slope))
    return p.add("Add", p.add("Mul", gone, p.constant(float(block["times"]))), x)


def _drift(p: Program, x: str, tokens: int, d: int, block: Layer) -> str:
    """(x · factors − x) · times, + x: 0 beside x if the factors are taken for 1."""
    gone = p.add("Sub", _chain(p, x, tokens, d, block), x)
    return p.add("Add", p.add("Mul", gone, p.constant(float(block["times"]))), x)


def _gated(p: Program, x: str, tokens: int, d: int, block: Layer) -> str:
    """x + inner(x) · g(x), with g = 0 but near corners of the box where neighbours go opposite ways.

    What goes wrong in `inner` is not seen at the centre, at both ends of the box, and far away from it.
    """
    centre, eps = p.centre, max(p.eps, 1e-3)
    one = p.add("Relu", p.add("Sub", x, p.constant(centre + 0.5 * eps)))
    turned = np.eye(tokens)[::-1] if tokens > 1 else np.eye(1)
    across = np.eye(d) if tokens > 1 else np.eye(d)[::-1]
    other = p.add("MatMul", p.add("MatMul", p.constant(turned), x), p.constant(across))
    far = p.constant(turned @ centre @ across - 0.5 * eps)
    two = p.add("Relu", p.add("Sub", far, other))
    gate = p.add("Mul", p.add("Mul", one, two), p.constant(block.get("times", 1.0) / eps**2))
    inner = BLOCKS[block["inner"]["op"]](p, x, tokens, d, block["inner"])
    return p.add("Add", x, p.add("Mul", inner, gate))


def centre_of(recipe: Layer) -> Array:
    """The middle of the recipe's box, (1, tokens, d), in float32."""
    draw = np.random.default_rng(recipe["seed"] + 5).uniform(-1, 1, (1, recipe["tokens"], recipe["d"]))
    found: Array = (draw * recipe.get("spread", 1.0)).astype(np.float32).astype(np.float64)
    return found


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
    "drift": _drift,
    "gated": _gated,
    "leaked": _leaked,
}
