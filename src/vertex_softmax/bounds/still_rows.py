"""Replace rows of nodes that no input of the set can move by intervals, so that they are neither bounded nor stored.

Invariant: for every input of the set, the output of the new graph equals that of the old one for some values of the new
graph's `Enclosed` nodes between their ends. So a bound that holds for all such values holds for the old graph.

In a causal language model of whose input only the last words may change, every earlier row of every block is constant.
In any network the tokens that the set keeps fixed are constant up to the first attention, and so is a second input that
is fixed. Such a row has one value over the whole set (bounds/dependence.py). So its box at any single input of the set
holds for all inputs; the box used is that of zonotopes over a single point, which is as narrow as rounding permits. If
the rows of a node that do not move lie along one dimension, only its other rows are computed, by its op restricted to
them (graph/liveness.py). An op that mixes rows, as attention does with keys and values, reads a concatenation of both
kinds.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.dependence import moving_numbers
from vertex_softmax.bounds.index import GraphIndex
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.underflow import lost_by_underflow, widened
from vertex_softmax.bounds.zonotopes import boxes_by_zonotopes
from vertex_softmax.graph.ir import Constant, Graph, Input, Node
from vertex_softmax.graph.liveness import Selection, through
from vertex_softmax.graph.rewrite import share
from vertex_softmax.ops import shape
from vertex_softmax.ops.contract import Op
from vertex_softmax.ops.enclosed import Enclosed
from vertex_softmax.ops.interval import Interval
from vertex_softmax.sets.choice_region import ChoiceRegion
from vertex_softmax.sets.region import BoxRegion, Region

LEAST_SHARE = 0.25
"""Rows that do not move are replaced if they have at least this share of all numbers of the ops that are not affine in
the input: the zonotopes over a point that enclose them take only a fraction of the time of bounding all rows."""


def without_still_rows(
    graph: Graph, region: Region, memory: Memory | None = None, *, deadline: float | None = None
) -> Graph:
    """The graph with intervals in place of rows that do not move over the region; the same graph if these are few.

    A batch of several sets leaves the graph unchanged, because a row that is constant over one set may move in another.
    So do single precision, a GPU (where fewer rows take as long as all), and choices of words (whose ranges are
    enumerated). When the deadline passes (`Stopwatch`), OutOfTimeError is raised.
    """
    lower, upper = region.box
    if isinstance(region, ChoiceRegion) or lower.shape[0] != 1:
        return graph
    if lower.dtype != torch.float64 or lower.device.type != "cpu":
        return graph
    moves = (lower != upper)[0]
    if bool(moves.all()) or not bool(moves.any()):
        return graph
    moving = moving_numbers(graph, moves)
    affine = GraphIndex(graph).affine
    bent = [node for node in graph.nodes() if node not in affine and not isinstance(node.op, Constant)]
    still, every = (sum(int(count(moving[node])) for node in bent) for count in (_still, torch.numel))
    if still < LEAST_SHARE * every:
        return graph
    point = Question.over(graph, BoxRegion(lower, lower), memory=memory, deadline=deadline).to_first_order()
    boxes = _with_what_underflowed(point, boxes_by_zonotopes(point))
    if boxes.problems or not all(_finite_where_still(boxes[node], moving[node]) for node in bent):
        return graph
    return _Rebuilding(graph, moving, boxes).rebuilt()


def _with_what_underflowed(point: Question, boxes: Boxes) -> Boxes:
    """The boxes widened by what underflow may have lost: later, an `Enclosed` no longer shows where its numbers came
    from.
    """
    errors = lost_by_underflow(point, boxes)
    wider = {node: widened(boxes[node], error) for node, error in errors.items() if bool((error > 0).any())}
    return dataclasses.replace(boxes, intervals={**boxes.intervals, **wider})


def _finite_where_still(box: Interval, moves: Tensor) -> bool:
    fine = (box.lower.isfinite() & box.upper.isfinite())[0].expand(moves.shape)
    return bool((fine | moves).all())


def _still(moves: Tensor) -> int:
    return int((~moves).sum())


class _Rebuilding:
    """The construction of a graph without the rows that do not move, node by node."""

    def __init__(self, graph: Graph, moving: dict[Node, Tensor], boxes: Boxes) -> None:
        self.graph = graph
        self.affine = GraphIndex(graph).affine
        self.moving = moving
        self.boxes = boxes
        self.new: dict[Node, Node] = {}
        """by old node, the new node that has all of its rows"""
        self.parts: dict[Node, tuple[Selection, Node]] = {}
        """by old node without such a new node: the rows that move, and the new node that computes these"""

    def rebuilt(self) -> Graph:
        """The graph without the rows that do not move."""
        for node in self.graph.nodes():
            if isinstance(node.op, Input | Constant) or node in self.affine:
                self.new[node] = self._with_new_inputs(node)
            else:
                self._place(node)
        if all(self.new.get(node) is node for node in self.graph.nodes()):
            return self.graph
        return share(Graph(self.graph.input, self._whole(self.graph.output)))

    def _place(self, node: Node) -> None:
        """Decide whether a node is computed, replaced by intervals, or computed in some rows only."""
        still = ~self.moving[node]
        if bool(still.all()):
            self.new[node] = self._known(node, None)
            return
        for part in _moving_parts(still, node.name):
            found = self._through(node, part)
            if found is not None:
                op, inputs = found
                moving = Node(node.name, op, tuple(self._input(i, node.inputs) for i in inputs), part.shape(node.shape))
                self.parts[node] = (part, moving)
                return
        self.new[node] = self._with_new_inputs(node)

    @staticmethod
    def _through(node: Node, part: Selection) -> tuple[Op, tuple[Node, ...]] | None:
        """The op that computes some rows of a node, and its inputs; None if there is none."""
        op = node.op
        if isinstance(op, shape.Slice | shape.Take) and op.dim != part.dim:
            return op, (part.of(node.inputs[0]),)
        return through(node, part)

    def _input(self, wanted: Node, old: tuple[Node, ...]) -> Node:
        """The new node for an input of an op that computes some rows: all of an old input, or a selection of one."""
        if wanted in old:
            return self._whole(wanted)
        (base,) = wanted.inputs
        if base in self.parts:
            part, moving = self.parts[base]
            rows = _rows(wanted)
            inside = torch.isin(rows, part.index) if part.dim == _dimension(wanted) else torch.tensor(False)
            if bool(inside.all()):
                where = torch.searchsorted(part.index, rows.contiguous())
                if torch.equal(where, torch.arange(len(part.index))):
                    return moving
                return Selection(part.dim, where, wanted.name).of(moving)
        whole = self._whole(base)
        if isinstance(whole.op, Constant):
            return Node(wanted.name, Constant(wanted.op.evaluate(whole.op.value)), (), wanted.shape)
        if isinstance(whole.op, Enclosed):
            lower, upper = wanted.op.evaluate(whole.op.lower), wanted.op.evaluate(whole.op.upper)
            return Node(wanted.name, Enclosed(lower, upper), (), wanted.shape)
        return Node(wanted.name, wanted.op, (whole,), wanted.shape)

    def _with_new_inputs(self, node: Node) -> Node:
        inputs = tuple(self._whole(i) for i in node.inputs)
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        return node if same else Node(node.name, node.op, inputs, node.shape)

    def _whole(self, node: Node) -> Node:
        """The new node with all rows of an old one: the computed rows, between those that are known."""
        if node not in self.new:
            part, moving = self.parts[node]
            self.new[node] = self._joined(node, part, moving)
        return self.new[node]

    def _joined(self, node: Node, part: Selection, moving: Node) -> Node:
        every = torch.arange(node.shape[part.dim])
        others = every[~torch.isin(every, part.index)]
        first, last = int(part.index[0]), int(part.index[-1])
        if last - first + 1 != len(part.index):  # known rows lie between: put all known rows first, then reorder
            found = self._concat(node, part.dim, [self._known(node, Selection(part.dim, others, node.name)), moving])
            order = torch.argsort(torch.cat([others, part.index])).to(self.moving[node].device)
            return Node(node.name, shape.Take(part.dim, order, len(node.shape), len(every)), (found,), node.shape)
        ends = [others[others < first], others[others > last]]
        known = [self._known(node, Selection(part.dim, end, node.name)) if len(end) else None for end in ends]
        return self._concat(node, part.dim, [each for each in (known[0], moving, known[1]) if each is not None])

    @staticmethod
    def _concat(node: Node, dim: int, pieces: list[Node]) -> Node:
        sizes = tuple(piece.shape[dim] for piece in pieces)
        whole = (*node.shape[:dim], sum(sizes), *node.shape[dim + 1 :])
        return Node(node.name, shape.Concat(dim, sizes, len(node.shape)), tuple(pieces), whole)

    def _known(self, node: Node, part: Selection | None) -> Node:
        """The rows of a node that do not move (`part`; None: all its rows) as a node of intervals."""
        ends = [end[0].expand(node.shape) for end in self.boxes[node]]
        if part is not None:
            ends = [end.index_select(part.dim, part.index.to(end.device)) for end in ends]
        lower, upper = (end.contiguous() for end in ends)
        return Node(node.name, Enclosed(lower, upper), (), tuple(lower.shape))


def _moving_parts(still: Tensor, name: str) -> list[Selection]:
    """For each dimension along which some rows do not move, the rows that do; the smallest selection first."""
    found = []
    for dim in range(still.dim()):
        rows = still.movedim(dim, 0).reshape(still.shape[dim], -1).all(1)
        if bool(rows.any()):
            found.append(Selection(dim, (~rows).nonzero().flatten(), name))
    return sorted(found, key=lambda part: math.prod(part.shape(still.shape)))


def _dimension(selection: Node) -> int:
    """The dimension along which a node selects; −1 if it does not."""
    op = selection.op
    return op.dim if isinstance(op, shape.Slice | shape.Take) else -1


def _rows(selection: Node) -> Tensor:
    """The indices that a node selects."""
    op = selection.op
    if isinstance(op, shape.Slice):
        return torch.arange(op.size)[op.start : op.stop : op.step]
    return op.index.cpu() if isinstance(op, shape.Take) else torch.empty(0, dtype=torch.long)
