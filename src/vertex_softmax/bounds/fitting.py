"""What the parts of a set share for one objective: boxes fitted to it, and parameters that parts do not optimise.

Invariant: the boxes returned hold for the same inputs as those given, whatever the objective and the choice.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import Choice
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.generators import Ellipsoid, fitted
from vertex_softmax.ops.rules import Rules


def shared_names(question: Question, boxes: Boxes, rules: Rules) -> dict[Node, tuple[str, ...]]:
    """By node, the names of the free parameters that parts of a set take from the whole set (`Relaxation.shared`)."""
    bent = [node for node in question.index.nodes if node.inputs and not node.op.affine]
    made = {node: question.relaxations.of(node, boxes, rules) for node in bent}
    found = {node: tuple(name for name in each.parameters() if name in each.shared) for node, each in made.items()}
    return {node: names for node, names in found.items() if names}


def functionals_of(
    question: Question, boxes: Boxes, objective: Objective, rules: Rules, choice: Choice
) -> dict[Node, Tensor]:
    """By attention, the coefficients η (..., n, d) that the pass of one dense objective has on its output rows."""
    found = {}
    for each in backward(question, boxes, objective, rules, choice, Wanted(steps=True)).steps:
        if isinstance(each.node.op, Attention):
            eta = each.coefficients.dense()[0, 0]
            if bool(eta.isfinite().all()):
                found[each.node] = eta
    return found


def fitted_boxes(boxes: Boxes, functionals: Mapping[Node, Tensor]) -> Boxes | None:
    """The boxes of a single input's set with the ellipsoids of attentions' values fitted to functionals.

    None if no ellipsoid can be fitted.
    """
    made = boxes
    for node, eta in functionals.items():
        known = boxes.summaries.get(node)
        if isinstance(known, Ellipsoid) and known.rows is not None:
            made = made.with_summary(node, fitted(known, eta))
    return None if made is boxes else made
