"""Interval propagation (IBP): a box for every node, from the input on.

Invariant: for every input in the box, every node's value lies in its box, to rounding.
"""

from __future__ import annotations

from torch import Tensor

from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.registry import Interval


def interval_bounds(graph: Graph, lower: Tensor, upper: Tensor) -> dict[Node, Interval]:
    """The box of every node; lower, upper (batch, *input shape)."""
    boxes = {graph.input: Interval(lower, upper)}
    for node in graph.nodes():
        if node is not graph.input:
            found = node.op.interval(*(boxes[i] for i in node.inputs))
            boxes[node] = found.meet(found)  # ends that rounding crossed are a point to the ops that follow
    return boxes
