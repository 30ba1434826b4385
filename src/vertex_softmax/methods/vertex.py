"""The method `vertex`: linear bounds with the exact score-box optimum at each attention (docs/method.md, section 5)."""

from __future__ import annotations

from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.boxes import boxes_by_passes
from vertex_softmax.methods.last_pass import Passes, last_pass
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule


def vertex(question: Question, objective: Objective, options: Options) -> Bound:
    """Bound the objectives by one pass over boxes made by passes, both under the vertex rule."""
    boxes = boxes_by_passes(question, RowRule.VERTEX, options)
    return last_pass(question, boxes, objective, Passes(plain=(RowRule.VERTEX,)), options)
