"""The centres of input sets and other points of them: margins, and which are misclassified beyond doubt.

Invariant: `misclassified` is true only of points at which bounds in float64 over that point alone put a class that
counts above the label, by more than rounding can have added (the rule of `verified`), and where the original, in its
own precision, puts one above it too.
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
from vertex_softmax.runs.classes import Classes
from vertex_softmax.sets import InputSet
from vertex_softmax.sets.loading import Loaded
from vertex_softmax.sets.region import BoxRegion, placed


def rounding(question: Question, found: Bound, objective: Objective, method: Method, options: Options) -> Tensor:
    """How far above 0 the bounds of objectives must be, (batch,): more than rounding can have added to any of them."""
    rule = METHODS[method].rule
    rules = None if rule is None else Rules(attention=rule, product=options.product, sums=True)  # the last pass's
    known = None if rules is None else found.terms.get(rules)
    size = terms(question, found.boxes, objective, rules) if known is None else known
    return VERDICT[question.dtype] * size.amax(1)


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

    def misclassified(self, classes: Classes, suspects: Tensor, points: Tensor | None = None) -> Tensor:
        """Which of the suspects (batch,) bool are misclassified, beyond doubt; (batch,) bool.

        points: (batch, *graph input shape), float64; None: the centres.
        """
        at = self.points if points is None else points
        sure = torch.zeros_like(suspects)
        which = suspects.nonzero().flatten()
        for method in (Method.IBP, Method.CROWN) if METHODS[self.method].tables else (Method.IBP,):
            which = which[~sure[which]]
            if len(which):
                sure[which] = self._above(at[which], classes.at(which), method)
        which = sure.nonzero().flatten()
        if len(which):
            alone = len(self.input_set) == len(sure)  # else the whole batch is one input
            some = self.input_set[which] if alone else self.input_set
            own = self.original.outputs(some, self.graph.input.shape, None if points is None else points[which])
            if own is not None:
                mine = classes.at(which)
                sure[which] = mine.leads(mine.logits(own).to(classes.labels.device))[1] > 0
        return sure

    def _above(self, points: Tensor, classes: Classes, method: Method) -> Tensor:
        """Where bounds over the points (n, *shape) alone put a class that counts above the label, (n,) bool."""
        shape = self.graph.output.shape
        with torch.no_grad():
            output = self.graph.evaluate(points)
            other, _ = classes.leads(classes.logits(output))
            pair = dataclasses.replace(classes, targets=other[:, None])
            C = -pair.objectives(output[0].numel(), output)
            objective = Objective.dense(self.graph.output, C.reshape(len(C), 1, *shape))
            try:
                question = Question.over(self.graph, BoxRegion(points, points), memory=self.options.memory)
                found = lower_bounds(question, objective, method, self.options)
                needed = rounding(question, found, objective, method, self.options)
            except NotEnoughMemoryError:
                return torch.zeros_like(classes.labels, dtype=torch.bool)
        above = found.lower[:, 0] > needed
        for problem in found.boxes.problems:
            above &= ~problem.where
        return above
