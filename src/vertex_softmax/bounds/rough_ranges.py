"""Which nodes need their zonotope's exact range, where a rough one is quicker (`SpannedUnknowns`).

Invariant: the boxes of nodes that ops read which are not affine are those that exact ranges everywhere would give.

Let a node be *plain* if no interval is tighter than its zonotope anywhere. Behind plain nodes an affine op's interval
is no tighter than its zonotope: |W| times ranges is at least the range of W y. So it is plain too, and as no later box
comes from its interval, it does not matter by how much its box is too wide. Where an interval is tighter somewhere, as
that of a ReLU is, whatever is combined with it needs its exact range.
"""

from __future__ import annotations

from collections.abc import Mapping

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.shape import Moving
from vertex_softmax.ops.unknowns import span_of
from vertex_softmax.ops.zonotope import Zonotope


class RoughRanges:
    """The plain nodes, and those whose boxes are not exact."""

    def __init__(self, start: Node) -> None:
        self.plain, self.rough = {start}, set[Node]()

    def before(self, node: Node, boxes: Boxes, zonotopes: Mapping[Node, Zonotope]) -> Boxes:
        """Boxes that are exact where a node combines its inputs with one that is not plain."""
        if all(i in self.plain for i in node.inputs):
            return boxes
        for i in node.inputs:
            if i in self.rough:
                self.rough.discard(i)
                boxes = boxes.tightened(i, zonotopes[i].box)
        return boxes

    def after(self, node: Node, boxes: Boxes, found: Zonotope, *, careful: bool, whole: bool) -> Boxes:
        """Boxes with the range of a node that is known by its interval; `whole`: none of its blocks were merged."""
        inherits = all(i in self.plain for i in node.inputs) and node.op.affine and whole
        if isinstance(node.op, Moving):  # then the box is the inputs', moved
            self.plain.update({node} if inherits else ())
            self.rough.update({node} if any(i in self.rough for i in node.inputs) else ())
            return boxes
        if careful or not any(span_of(unknowns) is not None for unknowns in found.blocks):
            box = found.tight_box if careful else found.rough_box
        elif inherits or _within(found.rough_box, boxes[node]):
            self.rough.add(node)
            self.plain.add(node)
            return boxes.tightened(node, found.rough_box)
        else:
            box = found.box
        if inherits or _within(box, boxes[node]):
            self.plain.add(node)
        return boxes.tightened(node, box)


def _within(inner: Interval, outer: Interval) -> bool:
    return bool(((inner.lower >= outer.lower) & (inner.upper <= outer.upper)).all())
