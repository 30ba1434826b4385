"""The method `hybrid`: at least as tight as `crown` and `vertex`, by construction.

Both run; their boxes are met, and tightened by the affine vertex rule at its default slopes (docs/method.md, section
7). Over the resulting boxes every objective gets the best bound of all row rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.boxes import boxes_by_passes
from vertex_softmax.methods.combination import combined, goal_first
from vertex_softmax.methods.crown import crown
from vertex_softmax.methods.last_pass import Passes, last_pass
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.vertex import vertex
from vertex_softmax.ops.rules import RowRule

PASSES = Passes(plain=(RowRule.LSE, RowRule.VERTEX, RowRule.AFFINE, RowRule.BETTER), by_box=True)


def hybrid(question: Question, objective: Objective, options: Options) -> Bound:
    """`hybrid` in full; with a goal first its own boxes alone, and the rest only if an objective stays unsettled."""

    def alone(known: Sequence[Boxes]) -> Bound:
        return _own(question, objective, options, known)

    def in_full() -> Bound:
        return hybrid_over(question, objective, options, crown(question, objective, options))

    return goal_first(alone, in_full, options)


def hybrid_over(question: Question, objective: Objective, options: Options, by_crown: Bound) -> Bound:
    """`hybrid` in full, whatever the goal, given the bound of `crown`."""
    by_vertex = vertex(question, objective, options)
    own = _own(question, objective, options, [by_crown.boxes, by_vertex.boxes])
    return combined(own, by_crown, by_vertex)


def _own(question: Question, objective: Objective, options: Options, known: Sequence[Boxes]) -> Bound:
    boxes = boxes_by_passes(question, RowRule.AFFINE, options, known)
    passes = dataclasses.replace(PASSES, by_box=bool(known))  # on its own it is only a first attempt
    return last_pass(question, boxes, objective, passes, options)
