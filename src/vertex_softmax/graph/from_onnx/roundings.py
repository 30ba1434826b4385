"""The comparison of quantised models with onnxruntime: what it rounds to is taken over, after it was checked.

Invariant: with the rounded numbers of onnxruntime in place of the graph's, a tensor of the graph differs from
onnxruntime's by float32 rounding alone, as in any other model; so the comparison needs no larger tolerance. A number
that onnxruntime rounded is off the graph's number by no more than the bounds of `Round` assume, ½ and rounding.

Without this a number next to a tie, rounded to the other side in float32, would change every tensor after it by a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.from_onnx.file import to_tensor
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.rounding import SLACK, Round

if TYPE_CHECKING:
    import onnx


class Roundings:
    """The roundings of a graph: its nodes, the tensors of the model that they are, and the zero points of those.

    A node `Round` has the name of the tensor that its QuantizeLinear computes, which is the rounded number plus zero.
    """

    def __init__(self, graph: Graph, model: onnx.ModelProto) -> None:
        self.nodes = [node for node in graph.nodes() if isinstance(node.op, Round)]
        self.names: list[str] = list(dict.fromkeys(node.name for node in self.nodes))
        self.zeros = {name: _zero(model, name) for name in self.names}

    def given(self, theirs: Mapping[str, Any]) -> dict[Node, Tensor]:
        """The rounded numbers of onnxruntime, from its tensors, for every node that rounds."""
        found = {}
        for node in self.nodes:
            value = torch.from_numpy(np.asarray(theirs[node.name]).astype(np.float64))
            zero = self.zeros[node.name]
            if zero.numel() > 1:
                raise UnsupportedModelError(f"{node.name}: activations are quantised with one zero point, not several")
            places = node.op.places if isinstance(node.op, Round) else None
            if places is not None:  # rows that nobody reads are not computed (graph/liveness.py)
                whole = value.flatten()
                value = whole[places.cpu().flatten()] if int(places.max()) < len(whole) else whole
            if value.numel() != int(np.prod(node.shape)):
                raise UnsupportedModelError(f"{node.name}: the rounded numbers are not those of the model")
            found[node] = (value - zero.reshape(())).reshape(node.shape)
        return found

    @staticmethod
    def excess(node: Node, values: Mapping[Node, Tensor]) -> Tensor:
        """How much farther a rounded number is from the graph's than the bounds of `Round` allow; 0 if it is not."""
        x, rounded = cut(node, values[node.inputs[0]]), values[node].double()
        return ((rounded - x).abs() - 0.5 - SLACK * x.abs().clamp(min=1)).clamp(min=0)


def cut(node: Node, x: Tensor) -> Tensor:
    """x, the argument of a node that rounds, cut to the range of its whole numbers."""
    return x.double().clamp(node.op.least, node.op.most) if isinstance(node.op, Round) else x.double()


def _zero(model: onnx.ModelProto, name: str) -> Tensor:
    """The zero point of the QuantizeLinear that computes a tensor; 0 if it has none."""
    node = next((n for n in model.graph.node if name in n.output), None)
    if node is None or node.op_type != "QuantizeLinear":
        raise UnsupportedModelError(f"the rounding {name!r} of the graph is no QuantizeLinear of the model")
    return torch.zeros(()) if len(node.input) < 3 or not node.input[2] else _constant(model, node.input[2])


def _constant(model: onnx.ModelProto, name: str) -> Tensor:
    """The constant of this name, an initializer or a Constant node, in float64."""
    for proto in model.graph.initializer:
        if proto.name == name:
            return to_tensor(proto, name).double()
    attributes: Sequence[Any] = [a for n in model.graph.node if name in n.output for a in n.attribute]
    for attribute in attributes:
        if attribute.name == "value":
            return to_tensor(attribute.t, name).double()
    raise UnsupportedModelError(f"the zero point {name!r} is computed; it has to be a constant of the file")
