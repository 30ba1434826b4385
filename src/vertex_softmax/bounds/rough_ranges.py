"""Which nodes need the exact range of their zonotope, where a rough one is quicker (`SpannedUnknowns`).

Invariant: the boxes that non-affine ops read are the same as if the exact ranges of all nodes had been used.

Call a node *plain* if no entry of its interval is tighter than its zonotope. An affine op of plain nodes has an
interval that is no tighter than its zonotope, because |W| times the ranges of y is at least the range of W y. So it is
plain too; and as no later box will come from its interval, it does not matter how much too wide that is. If an interval
is tighter in some entry, as that of a ReLU is, then the nodes that are combined with it need their exact ranges.
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
    """The nodes that are plain, and the nodes whose boxes are rough, that is, not exact."""

    def __init__(self, start: Node) -> None:
        self.plain, self.rough = {start}, set[Node]()

    def before(self, node: Node, boxes: Boxes, zonotopes: Mapping[Node, Zonotope]) -> Boxes:
        """The boxes, made exact at the inputs of a node if not all of them are plain."""
        if all(i in self.plain for i in node.inputs):
            return boxes
        for i in node.inputs:
            if i in self.rough:
                self.rough.discard(i)
                boxes = boxes.tightened(i, zonotopes[i].box)
        return boxes

    def after(self, node: Node, boxes: Boxes, found: Zonotope, *, careful: bool, whole: bool) -> Boxes:
        """The boxes with a node's interval met with the range of its zonotope `found`, rough where that is enough.

        careful: use the tightest range that the zonotope offers. whole: none of its blocks were merged.
        """
        inherits = all(i in self.plain for i in node.inputs) and node.op.affine and whole
        if isinstance(node.op, Moving):  # its box is that of its inputs, with the numbers moved
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
