"""Branch and bound on one case by other processes: what the cascade asks of them, and how they rebuild the question.

Invariant: except for its aim, a `BranchRequest` is determined by the network, the property, the number of the case and
the options. Whoever has these makes the same question and the same boxes (`question_over`, `root_boxes`); `root_bounds`
serves to check that. The objectives and goals of the aim are sent, exact to the last bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.bounds.backward import lower_bound
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import Accept, Aim, Outcome, Search
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.still_rows import without_still_rows
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.foundation.tolerances import COMPARISON
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bab import root_options
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.region import BoxRegion
from vertex_softmax.sets.rounding import outward
from vertex_softmax.specs.property import Case, Floats

AFFINE = Rules(attention=RowRule.AFFINE)


@dataclasses.dataclass(frozen=True, eq=False)
class BranchRequest:
    """A request for branch and bound on the open conjunctions of one case."""

    case: int
    """the number of the case in the property"""
    question: Question
    boxes: Boxes
    """the boxes of `joint`, as `root_boxes` makes them"""
    aim: Aim
    search: Search
    """the limits of the search, with the seconds that are left for this case"""


class Branching(Protocol):
    """Something that does branch and bound in place of this process."""

    def prepare(self, case: int) -> None:
        """Called when the first bounds of a case have left something open, so that branch and bound may follow."""

    def branch(self, request: BranchRequest, accept: Accept, meanwhile: Callable[[], None]) -> Outcome:
        """Run branch and bound; `accept` is called with every input at which an objective may be at most its goal.

        `meanwhile` is called again and again while there is nothing to do but wait; it returns soon.
        """


def question_over(graph: Graph, case: Case, options: Options, deadline: float | None = None) -> Question:
    """The question about the network over the box of a case, rounded outward where rounding is needed."""
    return Question.over(graph, region_of(graph, case), memory=options.memory, deadline=deadline)


def moving_question(graph: Graph, case: Case, options: Options, deadline: float | None = None) -> Question:
    """The same question about the network without rows that no input of the box can move (bounds/still_rows.py).

    What holds of the smaller network holds of the network. But its nodes are new, so neither a certificate nor another
    process can refer to them.
    """
    region = region_of(graph, case)
    moving = without_still_rows(graph, region, options.memory, deadline=deadline)
    return Question.over(moving, region, memory=options.memory, deadline=deadline)


def region_of(graph: Graph, case: Case) -> BoxRegion:
    """The box of a case, rounded outward where rounding is needed."""

    def placed(x: Floats, way: float) -> Tensor:
        moved = outward(torch.from_numpy(np.ascontiguousarray(x)), graph.dtype, way)
        return moved.reshape(1, *graph.input.shape).to(graph.device)

    return BoxRegion(placed(case.lower, -torch.inf), placed(case.upper, torch.inf))


@full_precision()
def root_boxes(question: Question, options: Options) -> Boxes:
    """The boxes with which branch and bound starts: those of `joint` under `root_options`."""
    with torch.no_grad():
        return tightened_boxes(question, root_options(options))


@full_precision()
def root_bounds(question: Question, boxes: Boxes, rows: Tensor) -> Tensor:
    """Bounds (n,) of rows (n, *output shape) by one pass over the boxes of the whole set, to compare roots of two
    machines.
    """
    with torch.no_grad():
        return lower_bound(question, boxes, Objective.dense(question.graph.output, rows.unsqueeze(0)), AFFINE)[0]


def are_same_bounds(first: Tensor, second: Tensor) -> bool:
    """Whether bounds (n,) of two machines belong to the same root, up to the rounding of either."""
    if first.shape != second.shape or not bool((first.isfinite() & second.isfinite()).all()):
        return False
    size = torch.maximum(first.abs(), second.abs()).clamp(min=1.0)
    return bool(((first - second).abs() <= COMPARISON[first.dtype] * size).all())
