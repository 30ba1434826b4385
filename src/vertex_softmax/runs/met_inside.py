"""Counterexamples that branch and bound meets while it bounds one input: judged like those of any attack.

Invariant: an input counts only if `counterexamples.judged` says so: it lies in the set without tolerance, bounds over
it alone put a class that counts above the label by more than rounding, and the user's own model does too. A tie is no
counterexample.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.bounds.aims import Progress
from vertex_softmax.bounds.branch_and_bound import Watchers
from vertex_softmax.runs.centres import Centres
from vertex_softmax.runs.classes import Classes
from vertex_softmax.runs.counterexamples import Counterexamples, in_precision, judged
from vertex_softmax.search.attack import Descent, descended_from

REFUSALS = 8
"""After so many inputs at which an objective is not above its goal, and which are no counterexamples, the search ends:
then outputs tie, or the model's own precision decides, and nothing can be verified."""
STEPS = 20
"""Of a descent."""
REACHES = (0.1, 1.0)
"""How long the steps of descents are: first around where they begin, then across the set."""


class MetInside:
    """What is met inside of the set of one input: `centres` and `classes` are of that input alone."""

    def __init__(self, centres: Centres, classes: Classes) -> None:
        self.centres, self.classes = centres, classes
        self.found: Counterexamples | None = None
        """of the one input"""
        self.margins: Tensor | None = None
        """(1, classes): the least margins at the points of the set that were looked at; None before the first"""
        self._refused = 0

    def watchers(self, progress: Progress | None = None) -> Watchers:
        """Who hears of the search."""
        return Watchers(accept=self.accept, attack=self.attack, progress=progress)

    def accept(self, point: Tensor, _objective: int) -> bool:
        """Whether an input (*graph input shape) ends the search."""
        if not self._counts(point.reshape(1, *self.centres.input_set.shape[1:])):
            self._refused += 1
        return self.found is not None or self._refused >= REFUSALS

    def attack(self, points: Tensor, objectives: Sequence[int], until: float) -> tuple[Tensor, int] | None:
        """Descents from inputs (n, *graph input shape), each on the margin to the target of its number."""
        centres, inputs = self.centres, self.centres.input_set
        home, graph = inputs.lower.device, centres.graph
        labels, targets = self.classes.labels.to(home), self.classes.targets.to(home)

        def logits(x: Tensor) -> Tensor:
            x = x.reshape(len(x), *graph.input.shape).to(graph.device)
            return self.classes.logits(graph.evaluate(x)).to(home)

        for objective, reach in itertools.product(dict.fromkeys(objectives), REACHES):
            mine = [k for k, each in enumerate(objectives) if each == objective]
            starts = inputs.project(points[mine].reshape(1, len(mine), *inputs.shape[1:]))
            aim, how = targets[:, objective : objective + 1], Descent(STEPS, reach=reach, until=until)
            margins, lowest = descended_from(logits, inputs, labels, aim, starts, how)
            if float(margins) < 0 and self._counts(lowest[:, 0]):
                return lowest[0, 0].reshape(graph.input.shape).to(points), objective
            if time.perf_counter() >= until:
                break
        return None

    def _counts(self, point: Tensor) -> bool:
        """Whether an input (1, *input shape), moved into the set if rounding put it outside, is a counterexample."""
        inputs = self.centres.input_set
        inside = inputs.project(point.unsqueeze(1))[:, 0]
        chosen = in_precision(inside, inputs, self.centres.original.precision)
        found = judged(self.centres, self.classes, chosen, torch.ones_like(self.classes.labels, dtype=torch.bool))
        if bool(inputs.contains(chosen).all()):
            self.margins = found.margins if self.margins is None else torch.minimum(self.margins, found.margins)
        if bool(found.where.all()):
            self.found = found
        return self.found is not None
