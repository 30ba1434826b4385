"""The networks of planted.py, node by node: transformers and hats in ONNX, a transformer in torch, and their values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

Array = NDArray[Any]

EPSILON = float(np.float32(1e-5))
"""LayerNorm's"""


def single(x: Any) -> Array:
    """As float32."""
    return np.asarray(x, dtype=np.float32)


class Builder:
    """A model x (batch, *shape) → y, node by node; arrays among an operator's inputs become constants."""

    def __init__(self, shape: tuple[int, ...], opset: int = 18) -> None:
        self.shape, self.opset = shape, opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str | Array | list[int] | float, **attributes: Any) -> str:
        """A node; the name of its output."""
        names = []
        for value in inputs:
            if isinstance(value, str):
                names.append(value)
                continue
            whole = isinstance(value, list)
            names.append(f"c{len(self.constants)}")
            array = np.array(value, dtype=np.int64 if whole else np.float32)
            self.constants.append(numpy_helper.from_array(array, names[-1]))
        out = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [out], name=out, **attributes))
        return out

    def affine(self, x: str, W: Array, b: Array | None = None) -> str:
        """x W + b"""
        y = self.op("MatMul", x, W)
        return y if b is None else self.op("Add", y, b)

    def model(self, output: str, outputs: int, batch: int | str = 1) -> bytes:
        """The file with one output."""
        graph = helper.make_graph(
            [*self.nodes, helper.make_node("Identity", [output], ["y"])],
            "planted",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *self.shape])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, outputs])],
            self.constants,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def values(model: bytes, points: Array) -> Array:
    """onnxruntime, on its own: points (n, *shape) → outputs (n, m)."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": np.asarray(points, dtype=np.float32)})[0])


def exact_values(model: bytes, point: Array) -> Array:
    """The reference evaluator in float64 at one point (*shape) → (m,)."""
    proto = onnx.load_from_string(model)
    for constant in proto.graph.initializer:
        if constant.data_type == TensorProto.FLOAT:
            constant.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(constant).astype(np.float64), constant.name)
            )
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    found: Any = ReferenceEvaluator(proto).run(None, {"x": point[None].astype(np.float64)})
    return np.asarray(found[0][0])


def layer_norm(b: Builder, x: str, gamma: Array, beta: Array, spelled: bool) -> str:
    """As an operator, or spelled out."""
    if not spelled:
        return b.op("LayerNormalization", x, gamma, beta, epsilon=EPSILON, axis=-1)
    centred = b.op("Sub", x, b.op("ReduceMean", x, [-1]))
    variance = b.op("ReduceMean", b.op("Mul", centred, centred), [-1])
    scaled = b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, EPSILON)))
    return b.op("Add", b.op("Mul", scaled, gamma), beta)


def activate(b: Builder, x: str, kind: str) -> str:
    """ReLU, or GELU as the opset has it."""
    if kind == "relu":
        return b.op("Relu", x)
    if b.opset >= 20:
        return b.op("Gelu", x)
    return b.op("Mul", b.op("Mul", x, 0.5), b.op("Add", b.op("Erf", b.op("Mul", x, math.sqrt(0.5))), 1.0))


def attend(b: Builder, q: str, k: str, v: str, tokens: int, width: int, heads: int) -> str:
    """softmax(q kᵀ / √size) v in each head, (batch, tokens, width)"""
    size = width // heads
    q, k, v = (b.op("Reshape", z, [0, tokens, heads, size]) for z in (q, k, v))
    q, v = (b.op("Transpose", z, perm=[0, 2, 1, 3]) for z in (q, v))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 3, 1]))
    rows = b.op("Softmax", b.op("Mul", scores, size**-0.5), axis=-1)
    out = b.op("Transpose", b.op("MatMul", rows, v), perm=[0, 2, 1, 3])
    return b.op("Reshape", out, [0, tokens, width])


@dataclasses.dataclass
class Sizes:
    """What a seed makes of depth and norm."""

    rng: np.random.Generator
    depth: int
    norm: bool
    seed: int

    def __post_init__(self) -> None:
        self.tokens = int(self.rng.integers(3, 7))
        self.width = int(self.rng.choice([4, 6, 8]))
        self.heads = int(self.rng.integers(1, 3))
        self.activation = "gelu" if self.seed % 2 else "relu"
        self.opset = 20 if self.seed % 4 == 3 else 18
        self.spelled = self.seed % 3 == 1

    def weights(self, *shape: int, scale: float = 1.0) -> Array:
        """Random, of float32."""
        return (self.rng.normal(size=shape) * scale / math.sqrt(shape[0])).astype(np.float32)


def transformer(b: Builder, s: Sizes, h: str, *, spelled: bool | None = None) -> str:
    """h (batch, tokens, width) through `depth` blocks with residuals, and the mean over tokens."""
    w = s.width
    spelled = s.spelled if spelled is None else spelled

    def before(z: str) -> str:
        if not s.norm:
            return z
        return layer_norm(b, z, 1 + s.weights(w, scale=0.3), s.weights(w, scale=0.3), spelled)

    for _ in range(s.depth):
        z = before(h)
        q, k, v = (b.affine(z, s.weights(w, w), s.weights(w, scale=0.3)) for _ in "qkv")
        h = b.op("Add", h, b.affine(attend(b, q, k, v, s.tokens, w, s.heads), s.weights(w, w, scale=0.7)))
        z = activate(b, b.affine(before(h), s.weights(w, w + 2), s.weights(w + 2, scale=0.5)), s.activation)
        h = b.op("Add", h, b.affine(z, s.weights(w + 2, w, scale=0.7)))
    return b.op("ReduceMean", h, [1], keepdims=0)


def hat(b: Builder, spot: Array, places: Array, slope: float, form: int) -> str:
    """(batch, 1): 1 at the spot, 0 where Σ|x − spot| over the places is at least 1/slope (or, as a product or minimum,
    where any |x − spot| is).
    """
    size = spot.size
    pick = np.zeros((size, len(places)), np.float32)
    pick[places, np.arange(len(places))] = 1
    flat = b.op("Reshape", "x", [0, size])
    off = b.op("Sub", b.op("MatMul", flat, pick), spot.reshape(-1)[places])
    far = b.op("Abs", off) if form % 2 else b.op("Add", b.op("Relu", off), b.op("Relu", b.op("Neg", off)))
    if form in (0, 1):
        return b.op("Relu", b.op("Sub", 1.0, b.op("Mul", b.op("ReduceSum", far, [-1]), slope)))
    each = b.op("Sub", 1.0, b.op("Mul", far, slope))
    ones = np.eye(len(places), dtype=np.float32)[..., None]
    parts = [b.op("MatMul", each, one) for one in ones]
    if form == 2:
        return b.op("Relu", b.op("Min", *parts))
    out = b.op("Relu", parts[0])
    for part in parts[1:]:
        out = b.op("Mul", out, b.op("Relu", part))
    return out


class Block(nn.Module):
    """Attention and an MLP, with residuals and perhaps norms before them."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        w = s.width
        self.heads, self.act = s.heads, nn.ReLU()
        self.first, self.second = (nn.LayerNorm(w) if s.norm else nn.Identity() for _ in range(2))
        self.qkv, self.out, self.up, self.down = (
            nn.Linear(w, 3 * w), nn.Linear(w, w), nn.Linear(w, 2 * w), nn.Linear(2 * w, w)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width), both"""
        n, t, w = x.shape
        q, k, v = self.qkv(self.first(x)).reshape(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        rows = (q @ k.transpose(-2, -1) / math.sqrt(w // self.heads)).softmax(-1)
        x = x + self.out((rows @ v).transpose(1, 2).reshape(n, t, w))
        y: torch.Tensor = x + self.down(self.act(self.up(self.second(x))))
        return y


class Whole(nn.Module):
    """Blocks, and logits of the first token."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(*(Block(s) for _ in range(s.depth))), nn.Linear(s.width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) → (batch, 3)"""
        y: torch.Tensor = self.head(self.blocks(x)[:, 0])
        return y
