"""Points of an input set, and what a network does there: what no sound bound may be above.

Invariant: every point lies in the set, without tolerance.

Rounding: a value computed in float64 is off by some ulps, amplified by the network. How much a network amplifies is
measured, not guessed: by `noise`, the difference between its float32 and its float64 values at the same points. An
error of ε32 · κ is seen, so one of ε64 · κ is to be expected, and ε64 / ε32 = 2e-9.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import backward
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.boxes import boxes_by_passes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets import InputSet
from vertex_softmax.sets.region import BoxRegion


def samples(input_set: InputSet, count: int, seed: int) -> Tensor:
    """(points, batch, *shape): the centre, both ends, random corners, corners of few entries, random points."""
    generator = torch.Generator().manual_seed(seed)
    lower, upper, centre = input_set.lower, input_set.upper, input_set.centre
    found = [centre, lower, upper]
    for i in range(count):
        draw = torch.rand(lower.shape, generator=generator, dtype=torch.float64)
        if i % 3 == 0:
            found.append(torch.where(draw < 0.5, lower, upper))
        elif i % 3 == 1:
            found.append(torch.where(draw < 0.15, lower, torch.where(draw > 0.85, upper, centre)))
        else:
            found.append(lower + draw * (upper - lower))
    return input_set.project(torch.stack(found, 1)).transpose(0, 1)


def linear_corners(graph: Graph, input_set: InputSet, objectives: Tensor) -> Tensor:
    """(S, batch, *shape): the corners where CROWN's linear bounds of the objectives (batch, S, *output) are least."""
    shape = (len(input_set), *graph.input.shape)
    question = Question.over(graph, BoxRegion(input_set.lower.reshape(shape), input_set.upper.reshape(shape)))
    with torch.no_grad():
        boxes = boxes_by_passes(question, RowRule.LSE, Options())
        linear = backward(question, boxes, Objective.dense(graph.output, objectives), Rules(attention=RowRule.LSE))
        _, corner = linear.minimise(question.region)
        found = question.index.as_input(corner).transpose(0, 1).reshape(-1, *input_set.shape)
    found = torch.where(found.isfinite(), found, input_set.centre)
    return input_set.project(found.transpose(0, 1)).transpose(0, 1)


@dataclasses.dataclass
class Seen:
    """What a network did at points, per input of the batch."""

    outputs: Tensor
    """(points, batch, classes), float64"""
    noise: Tensor
    """(batch): the largest |float32 − float64| of outputs seen"""

    @property
    def size(self) -> Tensor:
        """(batch): the largest output seen."""
        return self.outputs.abs().amax((0, 2))

    def least(self, labels: Tensor) -> Tensor:
        """(batch, classes): the least margins; inf at the label."""
        own = self.outputs.gather(2, labels[None, :, None].expand(len(self.outputs), -1, 1))
        margins = (own - self.outputs).nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).amin(0)
        return margins.scatter(1, labels[:, None], torch.inf)

    def allowed(self, relative: float, of_noise: float) -> Tensor:
        """(batch): what rounding may cost; inf where the network overflows in float32."""
        total = relative * (1 + self.size) + of_noise * self.noise
        return total.nan_to_num(nan=torch.inf, posinf=torch.inf)


def seen(function: Callable[[Tensor], Tensor], single: Callable[[Tensor], Tensor], points: Tensor) -> Seen:
    """Outputs at points (P, batch, *shape) by the function in float64 and by the same in float32."""
    flat = points.flatten(0, 1)
    with torch.no_grad():
        double = function(flat).reshape(*points.shape[:2], -1)
        rough = single(flat.float()).double().reshape(double.shape)
    return Seen(double, (rough - double).abs().amax((0, 2)))
