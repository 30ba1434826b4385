"""Many subsets of one walk's set at once, each the inputs for which some nodes lie in narrower boxes.

What an op computes on the way (`Op.inner_box`: the σ of a normalisation) may be in a narrower box too.

Invariant: what is bounded over a subset holds for every input of the whole set whose nodes lie in the subset's boxes.

The subsets are the batch. Only what reads a narrower box is relaxed anew; everything else is the whole walk's, once for
all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from vertex_softmax.bounds.backward import Walk
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.registry import AffineForm, Interval, Rules


class Subsets(Walk):
    """A walk over `count` subsets of another's set, whose own batch is one."""

    def __init__(
        self, whole: Walk, boxes: Mapping[Node, Interval], count: int, inner: Mapping[Node, Interval] | None = None
    ) -> None:
        if whole.batch != 1:
            raise InvalidValueError(f"the whole walk has a batch of {whole.batch}; subsets are of one input's set")
        if whole.graph.input in boxes or whole.start in boxes:
            raise InvalidValueError("the input's own box is cut: that is another walk, not a subset of this one's")
        super().__init__(whole.graph, *whole.boxes[whole.graph.input], memory=whole.memory)
        self.whole, self.batch, self.deadline = whole, count, whole.deadline
        self.boxes = {**whole.boxes, **boxes}  # (count, *shape) each
        self.centred = whole.centred
        self.inner = {**whole.inner, **(inner or {})}
        self._cut = {user for node in boxes for user in self.users(node)} | set(inner or {})

    def relaxed(self, node: Node, rules: Rules) -> object:
        """What the node's backward rule needs; the whole walk's if no box that it reads is narrower here."""
        return super().relaxed(node, rules) if node in self._cut else self.whole.relaxed(node, rules)

    def form(self, node: Node) -> AffineForm | None:
        """An affine function of the input is the same on every subset."""
        return self.whole.form(node)

    def _table(self, node: Node) -> object:
        """Generators are the whole walk's."""
        return self.whole._table(node)
