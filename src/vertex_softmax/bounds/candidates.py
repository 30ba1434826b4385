"""What to split next: the numbers whose intervals cost a bound most.

The costs are evaluated at the input where the linear bound of a backward pass is least. For each number that an op
reads, `Splittable.bend` tells how much the bound may lose because that number is known only by its interval;
`InnerLoss.inner_loss` does the same for quantities that an op computes inside. Any candidate is sound to split; good
ones make the tree small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.linear import LinearBound
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.tolerances import NARROW
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.contract import InnerLoss, Splittable
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A number that may be split: the entry with flat index `place` of a node, at the value `point`."""

    node: Node
    place: int
    point: float
    slope: float
    """the linear bound's coefficient on that number"""
    cost: float = 0.0
    """how much the bound may lose because the number is known only by its interval"""
    inner: bool = False
    """whether the number is not an entry of the node's value but one that its op computes inside (`InnerRange`)"""


class _Ranking:
    """The `most` numbers with the largest cost over all nodes, for each of `count` parts."""

    def __init__(self, count: int, most: int) -> None:
        self.count, self.most = count, most
        self.nodes: list[tuple[Node, bool]] = []
        self.columns: list[tuple[Tensor, ...]] = []

    def add(self, node: Node, cost: Tensor, point: Tensor, slope: Tensor, *, inner: bool) -> None:
        """Add a node's numbers: cost, point and slope are (parts or 1, numbers) each."""
        cost, point, slope = (x.expand(self.count, -1) for x in (cost, point, slope))
        best = torch.where(cost.isfinite(), cost, torch.zeros_like(cost)).topk(min(self.most, cost.shape[1]), dim=1)
        self.columns.append((best.values, best.indices, *(x.gather(1, best.indices) for x in (point, slope))))
        self.nodes += [(node, inner)] * best.indices.shape[1]

    def candidates(self) -> list[tuple[Candidate, ...]]:
        """For each part its candidates with a positive cost, the largest cost first."""
        if not self.columns:
            return [()] * self.count
        cost, place, point, slope = (torch.cat(column, 1) for column in zip(*self.columns, strict=True))
        top = cost.topk(min(self.most, cost.shape[1]), dim=1)
        details = [x.gather(1, top.indices).tolist() for x in (place, point, slope)]
        found = []
        for costs, columns, *rest in zip(top.values.tolist(), top.indices.tolist(), *details, strict=True):
            row = zip(costs, columns, *rest, strict=True)
            found.append(
                tuple(
                    Candidate(self.nodes[column][0], number, where, coefficient, value, self.nodes[column][1])
                    for value, column, number, where, coefficient in row
                    if value > 0
                )
            )
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Survey:
    """A backward pass over a batch of parts, and the values of all nodes at the inputs where the parts' bounds are
    least.
    """

    boxes: Boxes
    rules: Rules
    linear: LinearBound
    """the result of the pass, with its steps"""
    values: Mapping[Node, Tensor]
    """by node, (parts, *shape)"""


def candidates(
    question: Question, survey: Survey, inner: Mapping[Node, Interval], most: int
) -> list[tuple[Candidate, ...]]:
    """At most `most` candidates for each part.

    `inner`: by node, the range before any split of what its op computes inside.
    """
    boxes, values = survey.boxes, survey.values
    ranking = _Ranking(boxes.batch, most)
    for each in survey.linear.steps:
        node, A, step = each.node, each.coefficients.A, each.step
        if node in inner:
            box = boxes.inner.get(node, inner[node])
            wide = box.upper - box.lower > NARROW * box.upper.abs()
            relaxation = question.relaxations.of(node, boxes, survey.rules)
            if isinstance(relaxation, InnerLoss):
                cost = relaxation.inner_loss(A).squeeze(1)
                cost = torch.where(wide, cost, torch.zeros_like(cost)).flatten(1)
                ranking.add(node, cost, box.centre.flatten(1), torch.zeros_like(cost), inner=True)
        op = node.op
        for i in op.split_inputs if isinstance(op, Splittable) else ():
            source, slope = node.inputs[i], step.coefficients[i]
            fixed = isinstance(source.op, Constant) or source in (question.graph.input, question.index.start)
            if slope is None or fixed or not isinstance(op, Splittable):
                continue
            low, high = (end.unsqueeze(1) for end in boxes[source])
            x = torch.minimum(torch.maximum(values[source].unsqueeze(1), low), high)
            point = op.split_point(i, Interval(low, high), x)
            inputs = tuple(values[other].unsqueeze(1) for other in node.inputs)
            cost = op.bend(i, A, slope, inputs, (low, point, high))
            inside = (point > low) & (point < high)
            cost = torch.where(inside, cost, torch.zeros_like(cost))
            ranking.add(source, cost.flatten(1), point.flatten(1), slope.flatten(1), inner=False)
    return ranking.candidates()
