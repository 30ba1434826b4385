"""Translation of a graph into the few ops of the checker.

Ops that only move numbers become a gather (Move), sums and convolutions become Linear, and softmax becomes attention.

Invariant: the lowered network computes the same function as the graph, in real arithmetic, with the same stored
numbers: no number is rounded. An op that cannot be translated in this way is refused by name.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.ops import (
    activations,
    attention,
    bilinear,
    elementwise,
    linear,
    normalization,
    shape,
    softmax,
)
from vertex_softmax.ops.maximum import Maximum
from vertex_softmax.ops.rounding import Round

THRESHOLD = 20.0
"""Of torch's softplus: the only one that the checker has."""
MOST_NUMBERS = 1 << 25
"""The most entries of a node, and of a matrix that an op is written as."""
OWN = "vertex_softmax.ops."
"""The modules whose functions of one number the checker has."""
MOVES = (shape.Reshape, shape.Permute, shape.Slice, shape.Take, shape.Expand, shape.Concat)

LOWERED = (
    *MOVES,
    Constant,
    linear.Linear,
    linear.LeftLinear,
    linear.Convolution,
    linear.Sum,
    linear.Scale,
    linear.Shift,
    linear.Add,
    linear.Subtract,
    bilinear.Multiply,
    bilinear.MatMul,
    attention.Attention,
    softmax.Softmax,
    normalization.Normalize,
    Maximum,
    elementwise.Elementwise,
)
"""The ops that have a translation."""


@dataclasses.dataclass
class Lowered:
    """A network in the checker's form: the entries of the certificate's header, and the arrays that they name."""

    entries: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = dataclasses.field(default_factory=dict)
    number: dict[Node, int] = dataclasses.field(default_factory=dict)
    """graph node → number of the checker's node that has its value"""
    at: dict[Node, int] = dataclasses.field(default_factory=dict)
    """graph node → number of the checker's node that has its op, which may be followed by a Move"""

    def add(self, op: str, inputs: tuple[int, ...], dims: tuple[int, ...], eps: float = 0.0, **arrays: Any) -> int:
        """Add a node of shape `dims`; arrays that are None are left out. Returns the node's number."""
        if math.prod(dims) > MOST_NUMBERS:
            raise UnsupportedModelError(
                f"no certificate: {op} of shape {list(dims)} is larger than the checker accepts"
            )
        number = len(self.entries)
        names = {}
        for name, value in arrays.items():
            if value is not None:
                names[name] = f"graph.{number}.{name}"
                self.arrays[names[name]] = np.ascontiguousarray(_numpy(value))
        entry = {"op": op, "inputs": list(inputs), "shape": list(dims), "arrays": names}
        self.entries.append({**entry, "eps": eps} if eps else entry)
        return number

    def move(self, inputs: tuple[int, ...], index: Tensor) -> int:
        """Add a gather: the entries of all inputs, flattened and concatenated, at `index` (*shape)."""
        return self.add("Move", inputs, tuple(index.shape), index=index)

    def plus(self, number: int, dims: tuple[int, ...], value: Tensor) -> int:
        """Add the sum of a node of shape `dims` and a constant that broadcasts to that shape."""
        return self.add("Add", (number, self.add("Constant", (), dims, value=value.expand(dims))), dims)

    def reshaped(self, number: int, dims: tuple[int, ...]) -> int:
        """The same entries in another shape: a Move, or the node itself if it has that shape."""
        if tuple(self.entries[number]["shape"]) == dims:
            return number
        return self.move((number,), torch.arange(math.prod(dims)).reshape(dims))


def _numpy(value: Tensor | NDArray[Any] | float) -> NDArray[Any]:
    """A tensor, array or number as a numpy array; floats become float64, which changes none of them."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return np.asarray(value.double().numpy() if value.is_floating_point() else value.numpy())
    return np.asarray(value)


def lowered(graph: Graph) -> Lowered:
    """The whole graph in the checker's form; the last node has the graph's output."""
    found = Lowered()
    found.number[graph.input] = found.at[graph.input] = found.add("Input", (), graph.input.shape)
    for node in graph.nodes():
        if node is not graph.input:
            found.number[node] = _lower(found, node)
            found.at.setdefault(node, found.number[node])
    last = found.number[graph.output]
    if last != len(found.entries) - 1:
        found.number[graph.output] = found.move(
            (last,), torch.arange(math.prod(graph.output.shape)).reshape(graph.output.shape)
        )
    return found


def require_lowerable(graph: Graph) -> None:
    """Raise as `lowered` would, by looking at the ops and their sizes alone: before anything is computed."""
    for node in graph.nodes():
        if node is not graph.input:
            _require_lowerable(node)


def _require_lowerable(node: Node) -> None:
    """Raise if the checker has no such op, or if it would be too large."""
    op = node.op
    if not isinstance(op, LOWERED) or (isinstance(op, elementwise.Elementwise) and not _known(op)):
        raise UnsupportedModelError(f"no certificate: the checker has no {type(op).__name__} ({node.name})")
    if isinstance(op, activations.Softplus) and op.threshold not in (THRESHOLD, math.inf):
        raise UnsupportedModelError(
            f"no certificate: the checker has Softplus with torch's threshold of {THRESHOLD:g} alone, and "
            f"{node.name} has {op.threshold:g}"
        )
    if math.prod(node.shape) > MOST_NUMBERS:
        raise UnsupportedModelError(
            f"no certificate: {type(op).__name__} of shape {list(node.shape)} is larger than the checker accepts"
        )
    whole = isinstance(op, linear.Convolution | linear.Sum)
    if whole and math.prod(node.inputs[0].shape) * math.prod(node.shape) > MOST_NUMBERS:
        raise UnsupportedModelError(f"no certificate: {node.name} is too large to be written as one matrix")


def _known(op: elementwise.Elementwise) -> bool:
    """Whether the checker has a function of one number, under whatever name: never one that a third party has added."""
    return type(op).__module__.startswith(OWN)


def _lower(found: Lowered, node: Node) -> int:
    """Add the nodes that compute a graph node; the number of the one that has its value."""
    _require_lowerable(node)
    op, dims = node.op, node.shape
    x = tuple(found.number[i] for i in node.inputs)
    if isinstance(op, Constant):
        return found.add("Constant", (), dims, value=op.value.expand(dims))
    if isinstance(op, MOVES):
        starts = [0]
        for i in node.inputs:
            starts.append(starts[-1] + math.prod(i.shape))
        places = [torch.arange(a, b).reshape(i.shape) for a, b, i in zip(starts, starts[1:], node.inputs, strict=False)]
        return found.move(x, op.evaluate(*places))
    if isinstance(op, linear.Linear | linear.LeftLinear | linear.Convolution | linear.Sum):
        return _linear(found, node, x[0])
    if isinstance(op, linear.Scale):
        return found.add("Scale", x, dims, factor=op.factor.expand(dims))
    if isinstance(op, linear.Shift):
        return found.plus(x[0], dims, op.offset)
    if isinstance(op, linear.Subtract):
        minus = found.add("Scale", (x[1],), dims, factor=-torch.ones(dims))
        return found.add("Add", (x[0], minus), dims)
    if isinstance(op, attention.Attention):
        return found.add("Attention", x, dims, **_masks(op, node.inputs[0].shape))
    if isinstance(op, softmax.Softmax):
        return _softmax(found, node, op, x[0])
    if isinstance(op, normalization.Normalize):
        flat = (*dims[: len(dims) - op.count], math.prod(dims[len(dims) - op.count :]))
        found.at[node] = found.add("Normalize", (found.reshaped(x[0], flat),), flat, eps=op.eps)
        return found.reshaped(found.at[node], dims)
    if isinstance(op, elementwise.Gelu):
        precision = "Single" if op.single else "Double" if op.double else ""
        return found.add(f"GeluTanh{precision}" if op.tanh else "Gelu", x, dims)
    if isinstance(op, activations.Softplus) and op.threshold < math.inf:
        return found.add("SoftplusTorch", x, dims)
    if isinstance(op, Maximum):
        return _maximum(found, x[0], node.inputs[0].shape)
    if isinstance(op, Round):
        found.at[node] = found.add("Round", (_cut(found, op, x[0], dims),), dims)
        return found.at[node]
    if isinstance(op, activations.HardSwish) and op.single:
        return found.add("HardSwishSingle", x, dims)
    return found.add(type(op).__name__, x, dims)


def _maximum(found: Lowered, x: int, dims: tuple[int, ...]) -> int:
    """Add the maximum over the last dimension, pair by pair: max(a, b) = a + max(b − a, 0)."""
    while (n := dims[-1]) > 1:
        index = torch.arange(math.prod(dims)).reshape(dims)
        half = (*dims[:-1], n // 2)
        a, b = (found.move((x,), index[..., k * (n // 2) : (k + 1) * (n // 2)]) for k in (0, 1))
        minus = found.add("Scale", (a,), half, factor=-torch.ones(half))
        more = found.add("Relu", (found.add("Add", (b, minus), half),), half)
        y = found.add("Add", (a, more), half)
        if n % 2:
            count = math.prod(half)
            both = torch.cat([torch.arange(count).reshape(half), count + index[..., n - 1 :]], -1)
            y = found.move((y, x), both)
        x, dims = y, (*dims[:-1], (n + 1) // 2)
    return x


def _cut(found: Lowered, op: Round, x: int, dims: tuple[int, ...]) -> int:
    """Add clamp(x): least + max(x − least, 0), then most − max(most − that, 0), as far as the range has ends."""
    for end, side in ((op.least, 1.0), (op.most, -1.0)):
        if math.isfinite(end):
            ends = torch.full(dims, end, dtype=torch.float64)
            signs = torch.full(dims, side, dtype=torch.float64)
            beyond = found.add("Scale", (found.plus(x, dims, -ends),), dims, factor=signs)
            beyond = found.add("Relu", (beyond,), dims)
            x = found.plus(found.add("Scale", (beyond,), dims, factor=signs), dims, ends)
    return x


def _linear(found: Lowered, node: Node, x: int) -> int:
    """Add an affine op x W + b. With a different matrix per leading index it is a matrix product with a constant."""
    op, dims, before = node.op, node.shape, node.inputs[0].shape
    if isinstance(op, linear.Linear) and op.weight.dim() == 2:
        out = found.add("Linear", (x,), dims, weight=op.weight)
        return out if op.bias is None else found.plus(out, dims, op.bias)
    if isinstance(op, linear.Linear):
        weight = found.add(
            "Constant", (), (*dims[:-1][:-1], before[-1], dims[-1]), value=op.weight.expand(*dims[:-2], -1, -1)
        )
        out = found.add("MatMul", (x, weight), dims)
        return out if op.bias is None else found.plus(out, dims, op.bias)
    if isinstance(op, linear.LeftLinear):
        weight = found.add("Constant", (), (*dims[:-1], before[-2]), value=op.weight.expand(*dims[:-2], -1, -1))
        return found.add("MatMul", (weight, x), dims)
    size, out_size = math.prod(before), math.prod(dims)
    flat = found.reshaped(x, (size,))
    bias = getattr(op, "bias", None)
    plain = dataclasses.replace(op, bias=None) if isinstance(op, linear.Convolution) else op
    dtype = op.weight.dtype if isinstance(op, linear.Convolution) else torch.float64
    weight_of = plain.evaluate(torch.eye(size, dtype=dtype).reshape(size, *before)).reshape(size, out_size)
    out = found.reshaped(found.add("Linear", (flat,), (out_size,), weight=weight_of), dims)
    if bias is None:
        return out
    wide = bias.reshape(-1, *[1] * len(getattr(op, "size", ()))).expand(dims)
    return found.plus(out, dims, wide)


def _softmax(found: Lowered, node: Node, op: softmax.Softmax, x: int) -> int:
    """Add softmax(s) as attention whose values are the rows of the identity."""
    dims = node.shape if len(node.shape) > 1 else (1, *node.shape)
    eye = torch.eye(dims[-1]).expand(*dims[:-2], dims[-1], dims[-1])
    values = found.add("Constant", (), tuple(eye.shape), value=eye)
    masks = {name: value.reshape(dims) for name, value in _masks(op, node.shape).items()}
    found.at[node] = found.add("Attention", (found.reshaped(x, dims), values), dims, **masks)
    return found.reshaped(found.at[node], node.shape)


def _masks(op: softmax.MaskedSoftmax, dims: tuple[int, ...]) -> dict[str, Any]:
    """The mask arrays of the checker's Attention, each of the scores' shape `dims`.

    mask: which keys are masked. penalty: the finite number at a masked key, if it is not −∞. replaced: whether the
    penalty replaces the score, instead of being added to it.
    """
    if op.mask is None:
        return {}
    arrays = {"mask": op.mask.expand(dims)}
    if op.penalty is not None:
        nowhere = torch.zeros((), dtype=torch.bool)
        arrays["penalty"] = op.penalty.expand(dims)
        arrays["replaced"] = (nowhere if op.replaced is None else op.replaced).expand(dims)
    return arrays
