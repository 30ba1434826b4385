"""The method `ibp`: interval arithmetic alone."""

from __future__ import annotations

from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.underflow import with_underflow
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.last_pass import by_box
from vertex_softmax.methods.options import Options


def ibp(question: Question, objective: Objective, options: Options) -> Bound:  # noqa: ARG001
    """Bounds of dense objectives on the output, over its box by interval arithmetic."""
    boxes = with_underflow(question, all_boxes(question))
    return Bound(by_box(boxes, objective), boxes)
