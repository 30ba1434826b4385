"""Interval propagation (IBP): a box for every node, from the input on.

Invariant: for every input in the box, every node's value lies in its box, to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.registry import ROUNDING, Interval


def interval_bounds(graph: Graph, lower: Tensor, upper: Tensor) -> dict[Node, Interval]:
    """The box of every node; lower, upper (batch, *input shape)."""
    boxes = {graph.input: Interval(lower, upper)}
    for node in graph.nodes():
        if node is not graph.input:
            found = node_interval(node, boxes)
            boxes[node] = found.meet(found)  # ends that rounding crossed are a point to the ops that follow
    return boxes


def node_interval(node: Node, boxes: Mapping[Node, Interval]) -> Interval:
    """A node's box from its inputs' boxes, rounded outward."""
    box = node.op.interval(*(boxes[i] for i in node.inputs))
    share = ROUNDING.get(box.lower.dtype, 0.0)
    if share == 0 or not node.inputs or node.op.rearranges:
        return box
    low, high = ((share * end.abs()).nan_to_num(0.0, 0.0) for end in box)
    return Interval(box.lower - low, box.upper + high)
