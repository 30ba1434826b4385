"""Boxes for one objective: what attentions know of their values, fitted to the functionals that the objective asks for.

Invariant: the boxes returned hold for the same inputs as those given, whatever the objective and the choice.
"""

from __future__ import annotations

from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import Choice
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.generators import Ellipsoid, fitted
from vertex_softmax.ops.rules import Rules


def fitted_boxes(question: Question, boxes: Boxes, objective: Objective, rules: Rules, choice: Choice) -> Boxes:
    """Boxes of one input's set with ellipsoids fitted to what a pass of one dense objective asks of the values."""
    made = boxes
    for each in backward(question, boxes, objective, rules, choice, Wanted(steps=True)).steps:
        known = boxes.summaries.get(each.node)
        if isinstance(each.node.op, Attention) and isinstance(known, Ellipsoid) and known.rows is not None:
            eta = each.coefficients.dense()[0, 0]
            if bool(eta.isfinite().all()):
                made = made.with_summary(each.node, fitted(known, eta))
    return made
