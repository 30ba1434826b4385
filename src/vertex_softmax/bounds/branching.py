"""What to split next: numbers for whose intervals a bound loses most.

At the input where a backward pass has its least value, every op says for each number of its input how much the linear
bound may lose for knowing that number by its interval only (`Op.bend`), and so for what it computes on the way
(`Op.inner_bend`). Any choice is sound; a good one makes the tree small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.subsets import Subsets
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.registry import Interval, Rules, Step

NARROW = 1e-6
"""An inner interval this narrow, relative to its upper end, is not split any more."""


class Candidate(NamedTuple):
    """What may be split: number `place` of a node, flattened, at a point; `slope` is the bound's coefficient on it."""

    node: Node
    place: int
    point: float
    slope: float
    inner: bool = False
    """not of the node's value, but of what its op computes on the way"""


class _Ranking:
    """The most bent numbers of each of a batch of domains, over all nodes."""

    def __init__(self, count: int, most: int) -> None:
        self.count, self.most = count, most
        self.nodes: list[tuple[Node, bool]] = []
        self.columns: list[tuple[Tensor, ...]] = []

    def add(self, node: Node, bend: Tensor, point: Tensor, slope: Tensor, *, inner: bool) -> None:
        """A node's numbers: each tensor (domains or 1, numbers)."""
        bend, point, slope = (x.expand(self.count, -1) for x in (bend, point, slope))
        best = torch.where(bend.isfinite(), bend, torch.zeros_like(bend)).topk(min(self.most, bend.shape[1]), dim=1)
        self.columns.append((best.values, best.indices, *(x.gather(1, best.indices) for x in (point, slope))))
        self.nodes += [(node, inner)] * best.indices.shape[1]

    def candidates(self) -> list[tuple[Candidate, ...]]:
        """For each domain, the most bent first."""
        if not self.columns:
            return [()] * self.count
        bend, place, point, slope = (torch.cat(column, 1) for column in zip(*self.columns, strict=True))
        top = bend.topk(min(self.most, bend.shape[1]), dim=1)
        details = [x.gather(1, top.indices).tolist() for x in (place, point, slope)]
        found = []
        for bends, which, *rest in zip(top.values.tolist(), top.indices.tolist(), *details, strict=True):
            row = zip(bends, which, *rest, strict=True)
            found.append(
                tuple(Candidate(self.nodes[w][0], n, c, s, self.nodes[w][1]) for b, w, n, c, s in row if b > 0)
            )
        return found


def most_bent(
    sub: Subsets,
    rules: Rules,
    steps: Sequence[tuple[Node, Tensor, Step]],
    values: Mapping[Node, Tensor],
    inner: Mapping[Node, Interval],
    most: int,
) -> list[tuple[Candidate, ...]]:
    """At most `most` candidates for each subset of a pass.

    steps: the pass's ops with their coefficients and what they made of them. values: of all nodes, (batch, *shape),
    where each subset's bound is least. inner: what is known before any split of what ops compute on the way.
    """
    ranking = _Ranking(sub.batch, most)
    for at, A, step in steps:
        if at in inner:
            box = sub.inner.get(at, inner[at])
            wide = box.upper - box.lower > NARROW * box.upper.abs()
            bend = at.op.inner_bend(A, sub.relaxed(at, rules)).squeeze(1)
            bend = torch.where(wide, bend, torch.zeros_like(bend)).flatten(1)
            ranking.add(at, bend, box.centre.flatten(1), torch.zeros_like(bend), inner=True)
        for i in at.op.splits:
            node, slope = at.inputs[i], step.coefficients[i]
            if slope is None or isinstance(node.op, Constant) or node in (sub.graph.input, sub.start):
                continue
            low, high = (x.unsqueeze(1) for x in sub.boxes[node])
            x = torch.minimum(torch.maximum(values[node].unsqueeze(1), low), high)
            point = at.op.split_point(i, Interval(low, high), x)
            inputs = tuple(values[other].unsqueeze(1) for other in at.inputs)
            bend = at.op.bend(i, A, slope, inputs, (low, point, high))
            inside = (point > low) & (point < high)
            bend = torch.where(inside, bend, torch.zeros_like(bend))
            ranking.add(node, bend.flatten(1), point.flatten(1), slope.flatten(1), inner=False)
    return ranking.candidates()
