"""What is known of every node over one input set: its box, and for some nodes more.

Invariant: for every input of the set, each node's value lies in its interval, its rows minus their weighted means lie
in `centred`, its generators and zonotope contain it, and what its op computes inside lies in `inner`; all to rounding.

`Boxes` never change: every method returns new ones. A relaxation that was made from older boxes stays sound for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.index import GraphIndex
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.tolerances import CROSSING, OUTWARD, rounded_constants
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.contract import CentredRows, Summarising
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.zonotope import Zonotope

SETTLED = 1000.0
"""Weights of scores that are so much lower than another are 0 in any precision, times any number."""
OF_SCORES = 16
"""Rows of attentions round their weights a few times, relative to the scores: less than OUTWARD / OF_SCORES of them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Why the boxes allow no answer for some inputs of the batch."""

    node: Node
    where: Tensor
    """(batch,) bool: the inputs concerned"""
    text: str


class NodeReach(NamedTuple):
    """How large the numbers of a node can be."""

    each: Tensor
    """(batch, *shape): the largest absolute values; of an attention, those of what it takes the means of"""
    total: Tensor
    """(batch,): the sum of these, each increased by 1"""


@dataclasses.dataclass(frozen=True, eq=False)
class Boxes:
    """The intervals of nodes, (batch, *shape) each, and what else is known of their values."""

    batch: int
    intervals: Mapping[Node, Interval]
    centred: Mapping[tuple[Node, Node], CentredRows] = dataclasses.field(default_factory=dict)
    """by node and user: the node's rows minus their means, with the weights that the user asked for"""
    generators: Mapping[Node, Generators] = dataclasses.field(default_factory=dict)
    """the generators of nodes, kept only until every user that wants them has made its summary"""
    summaries: Mapping[Node, object] = dataclasses.field(default_factory=dict)
    """by node: what its op made of its inputs' generators (`Summarising.summarise`)"""
    inner: Mapping[Node, Interval] = dataclasses.field(default_factory=dict)
    """by node: a narrower range of the quantity that its op computes inside, such as σ of a norm (`InnerRange`)"""
    zonotopes: Mapping[Node, Zonotope] = dataclasses.field(default_factory=dict)
    """kept for the few nodes whose linear functions are bounded over them: the output, and the input of the last
    norm"""
    problems: tuple[Problem, ...] = ()
    """reasons for which some inputs of the batch have no answer"""
    whole: Boxes | None = None
    """if these are boxes of parts of a set: the boxes of the whole set, whose batch is one"""
    reaches: dict[Node, tuple[Interval, NodeReach]] = dataclasses.field(default_factory=dict, repr=False)
    """a cache, shared with boxes that were made from these; by node, with the interval that it is about"""

    def __getitem__(self, node: Node) -> Interval:
        return self.intervals[node]

    def __contains__(self, node: Node) -> bool:
        return node in self.intervals

    def reach(self, node: Node) -> NodeReach:
        """How large the numbers of a node can be; many passes over the same boxes ask for it."""
        interval, known = self.intervals[node], self.reaches.get(node)
        if known is not None and known[0] is interval:
            return known[1]
        magnitude = interval.magnitude
        if isinstance(node.op, Attention):
            values = self.intervals[node.inputs[1]].magnitude.amax(-2, keepdim=True)
            # what is added up in a mean of values that may cancel, by weights that an offset of the scores may round
            offset = _rounded_scores(node.op.score_box(self.intervals[node.inputs[0]]))
            magnitude = torch.maximum(magnitude, values * (1 + offset / OF_SCORES))
        found = NodeReach(magnitude, (magnitude + 1).flatten(1).sum(1))
        self.reaches[node] = interval, found
        return found

    def facts(self, node: Node) -> tuple[object, ...]:
        """All objects that the relaxation of a node depends on: if they are the same objects, the relaxation is the
        same.
        """
        inputs = node.inputs
        return (
            *(self.intervals[i] for i in inputs),
            *(self.centred.get((i, node)) for i in inputs),
            self.summaries.get(node),
            self.inner.get(node),
        )

    def with_interval(self, node: Node, interval: Interval) -> Boxes:
        """The boxes with the first interval of a node; lower and upper ends that crossed by rounding are swapped."""
        return self._with_met(node, interval, interval)

    def tightened(self, node: Node, interval: Interval) -> Boxes:
        """The boxes with a node's interval intersected with another sound one; NaN in either gives NaN.

        If the intersection equals the other interval, that object itself is stored, so that relaxations made from it
        are reused.
        """
        return self._with_met(node, self.intervals[node], interval)

    def inspected(self, node: Node) -> Boxes:
        """The boxes with a problem noted for every input at which the node's interval is not finite."""
        found = []
        lower, upper = self.intervals[node]
        if bool((upper - lower).isfinite().all()):  # then both ends are finite
            return self
        for text, test in (("NaN", torch.isnan), ("infinite", torch.isinf)):
            bad = (test(lower) | test(upper)).flatten(1).any(1)
            if bool(bad.any()):
                found.append(Problem(node, bad.expand(self.batch), f"the bounds are {text}"))
        return dataclasses.replace(self, problems=(*self.problems, *found)) if found else self

    def with_centred(self, node: Node, user: Node, rows: CentredRows) -> Boxes:
        """The boxes with bounds of a node's rows minus their means; without them if any bound is not finite."""
        box = rows.box
        problems = self._crossing(node, box, box)
        known = dict(self.centred)
        if bool(box.lower.isfinite().all() & box.upper.isfinite().all()):
            known[node, user] = CentredRows(rows.weights, box.meet(box))
        return dataclasses.replace(self, centred=known, problems=(*self.problems, *problems))

    def with_generators(self, index: GraphIndex, node: Node, generators: Generators) -> Boxes:
        """The boxes with a node's generators.

        Users that now have all the generators they want summarise them; generators that no user still needs are
        dropped.
        """
        known = {**self.generators, node: generators}
        summaries = dict(self.summaries)
        for user in index.users(node):
            op = user.op
            if not isinstance(op, Summarising) or user in summaries:
                continue
            if all(user.inputs[i] in known for i in op.generator_inputs):
                summaries[user] = op.summarise({i: known[user.inputs[i]] for i in op.generator_inputs})
        needed = {
            each: value
            for each, value in known.items()
            if any(
                user not in summaries and each in [user.inputs[i] for i in _wanted(user)] for user in index.users(each)
            )
        }
        return dataclasses.replace(self, generators=needed, summaries=summaries)

    def with_summary(self, node: Node, summary: object) -> Boxes:
        """The boxes with a summary of a node's inputs for its relaxation (`Summarising`)."""
        return dataclasses.replace(self, summaries={**self.summaries, node: summary})

    def with_learnt(self, other: Boxes) -> Boxes:
        """The boxes with the summaries, centred rows, zonotopes and problems of other boxes of the same question."""
        return dataclasses.replace(
            self,
            summaries={**self.summaries, **other.summaries},
            centred={**self.centred, **other.centred},
            zonotopes={**self.zonotopes, **other.zonotopes},
            problems=(*self.problems, *other.problems),
        )

    def parts(self, count: int, intervals: Mapping[Node, Interval], inner: Mapping[Node, Interval]) -> Boxes:
        """Boxes of `count` parts of the set of a single input, with narrower intervals, (count, *shape) each.

        A bound over a part's boxes holds for every input of the set at which the nodes lie in the part's intervals.
        Only relaxations that read a narrower interval are made anew; all others are those of the whole set.
        """
        if self.batch != 1:
            raise InvalidValueError(f"the boxes have a batch of {self.batch}; only the set of one input has parts")
        return dataclasses.replace(
            self,
            batch=count,
            intervals={**self.intervals, **intervals},
            inner={**self.inner, **inner},
            whole=self,
            reaches={},
        )

    def _with_met(self, node: Node, old: Interval, new: Interval) -> Boxes:
        """The boxes with the intersection of two intervals of a node, and a problem if they are apart by more than
        rounding.
        """
        both = new if old is new else Interval(torch.maximum(old.lower, new.lower), torch.minimum(old.upper, new.upper))
        if not bool((both.lower > both.upper).any()):  # the ends are in order, or NaN
            if all(torch.equal(*ends) for ends in zip(both, new, strict=True)):
                both = new
            return dataclasses.replace(self, intervals={**self.intervals, node: both})
        problems = self._crossing(node, old, new)
        return dataclasses.replace(
            self, intervals={**self.intervals, node: old.meet(new)}, problems=(*self.problems, *problems)
        )

    def _crossing(self, node: Node, old: Interval, new: Interval) -> tuple[Problem, ...]:
        """A problem if two intervals of a node do not meet, by more than rounding, at some input; or if lower exceeds
        upper.
        """
        gap = torch.maximum(old.lower, new.lower) - torch.minimum(old.upper, new.upper)
        size = torch.maximum(old.magnitude, torch.ones_like(gap))
        crossed = (gap > CROSSING[gap.dtype] * size).flatten(1).any(1)
        if not bool(crossed.any()):
            return ()
        text = f"two bounds cross by {float(gap.max()):.3g}, more than rounding can"
        return (Problem(node, crossed.expand(self.batch), text),)


def _rounded_scores(scores: Interval) -> Tensor:
    """How large the scores (..., rows, K) are that the weights of a row are computed from, (..., rows, 1).

    0 where one key is so far above the others everywhere that rounding leaves its weight at 1, and theirs at 0.
    """
    top, which = scores.lower.max(-1, keepdim=True)
    second = scores.upper.scatter(-1, which, -torch.inf).amax(-1, keepdim=True)
    settled = top - second > SETTLED + OUTWARD.get(top.dtype, 0.0) * top.abs()
    return torch.where(settled, 0.0, scores.upper.amax(-1, keepdim=True).abs().nan_to_num(0.0, 0.0))


def by_intervals(node: Node, intervals: Mapping[Node, Interval]) -> Interval:
    """A node's interval by interval arithmetic over its inputs' intervals, rounded outward."""
    box = node.op.interval(*(intervals[i] for i in node.inputs))
    share = OUTWARD.get(box.lower.dtype, 0.0)
    if isinstance(node.op, Constant):
        share = rounded_constants(box.lower.dtype)
    if share == 0 or not (node.inputs or isinstance(node.op, Constant)) or node.op.rearranges:
        return box
    low, high = ((share * end.abs()).nan_to_num(0.0, 0.0) for end in box)
    box = Interval(box.lower - low, box.upper + high)
    if not node.inputs:  # the least number of a precision masks, and has none below it
        return Interval(*(x.clamp(torch.finfo(x.dtype).min, torch.finfo(x.dtype).max) for x in box))
    return box


def _wanted(user: Node) -> tuple[int, ...]:
    return user.op.generator_inputs if isinstance(user.op, Summarising) else ()
