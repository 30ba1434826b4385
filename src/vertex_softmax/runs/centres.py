"""The centres of input sets: margins there, and which inputs are misclassified there beyond doubt.

Invariant: `misclassified` is true only of inputs at whose centre, a point of the set, bounds in float64 over that point
alone put another class above the label, by more than rounding can have added (the rule of `verified`), and where the
original, in its own precision, puts one above it too.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.guard import terms
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.errors import NotEnoughMemoryError
from vertex_softmax.foundation.tolerances import VERDICT
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS, Method, lower_bounds
from vertex_softmax.ops.rules import Rules
from vertex_softmax.sets import InputSet
from vertex_softmax.sets.loading import Loaded
from vertex_softmax.sets.region import BoxRegion, placed


def rounding(question: Question, found: Bound, objective: Objective, method: Method, options: Options) -> Tensor:
    """How far above 0 the bounds of objectives must be, (batch,): more than rounding can have added to any of them."""
    rule = METHODS[method].rule
    rules = None if rule is None else Rules(attention=rule, product=options.product, sums=True)  # the last pass's
    return VERDICT[question.dtype] * terms(question, found.boxes, objective, rules).amax(1)


@dataclasses.dataclass(frozen=True, eq=False)
class Centres:
    """The centres of some inputs' sets, and what is needed to judge them."""

    graph: Graph
    """the network in float64, on the device of the bounds"""
    input_set: InputSet
    original: Loaded
    method: Method
    """the method of the bounds: what it cannot afford is not done here either"""
    options: Options

    @property
    def points(self) -> Tensor:
        """The centres, (batch, *graph input shape), float64."""
        return placed(self.input_set.centre, self.graph.input.shape).to(self.graph.device)

    def misclassified(self, labels: Tensor, suspects: Tensor) -> Tensor:
        """Which of the suspects (batch,) bool are misclassified at their centre, beyond doubt; (batch,) bool."""
        sure = torch.zeros_like(suspects)
        which = suspects.nonzero().flatten()
        for method in (Method.IBP, Method.CROWN) if METHODS[self.method].tables else (Method.IBP,):
            which = which[~sure[which]]
            if len(which):
                sure[which] = self._above(self.points[which], labels[which], method)
        which = sure.nonzero().flatten()
        if len(which):
            alone = len(self.input_set) == len(sure)  # else the whole batch is one input
            some = self.input_set[which] if alone else self.input_set
            own = self.original.outputs(some, self.graph.input.shape)
            if own is not None:
                sure[which] = _lead(own.flatten(1).to(labels.device), labels[which]).lead > 0
        return sure

    def _above(self, points: Tensor, labels: Tensor, method: Method) -> Tensor:
        """Where bounds over the points (n, *shape) alone put another class above the label, (n,) bool."""
        shape = self.graph.output.shape
        with torch.no_grad():
            logits = self.graph.evaluate(points).flatten(1)
            other = _lead(logits, labels).other
            C = torch.zeros_like(logits)
            C.scatter_(1, other[:, None], 1.0).scatter_add_(1, labels[:, None], torch.full_like(C[:, :1], -1.0))
            objective = Objective.dense(self.graph.output, C.reshape(len(C), 1, *shape))
            try:
                question = Question.over(self.graph, BoxRegion(points, points), memory=self.options.memory)
                found = lower_bounds(question, objective, method, self.options)
                needed = rounding(question, found, objective, method, self.options)
            except NotEnoughMemoryError:
                return torch.zeros_like(labels, dtype=torch.bool)
        above = found.lower[:, 0] > needed
        for problem in found.boxes.problems:
            above &= ~problem.where
        return above


@dataclasses.dataclass(frozen=True, eq=False)
class _Lead:
    """The class that has most of all but the label, (n,), and by how much it has more than the label, (n,)."""

    other: Tensor
    lead: Tensor


def _lead(logits: Tensor, labels: Tensor) -> _Lead:
    """Of logits (n, classes); NaN where a number is NaN."""
    own = logits.gather(1, labels[:, None])
    best, other = logits.scatter(1, labels[:, None], -torch.inf).max(1)
    return _Lead(other, best - own[:, 0])
