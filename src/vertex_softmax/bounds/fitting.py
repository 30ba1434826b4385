"""What the parts of a set share, for one objective: boxes fitted to it, and which free parameters keep their values.

Invariant: the boxes returned hold for the same inputs as those given, whatever the objective and the choice.
"""

from __future__ import annotations

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
    """By node, the free parameters that parts of a set do not optimise again (`Relaxation.shared`)."""
    bent = [node for node in question.index.nodes if node.inputs and not node.op.affine]
    made = {node: question.relaxations.of(node, boxes, rules) for node in bent}
    found = {node: tuple(name for name in each.parameters() if name in each.shared) for node, each in made.items()}
    return {node: names for node, names in found.items() if names}


def fitted_boxes(question: Question, boxes: Boxes, objective: Objective, rules: Rules, choice: Choice) -> Boxes:
    """Boxes of one input's set with ellipsoids fitted to what one dense objective asks of the values of attentions."""
    made = boxes
    for each in backward(question, boxes, objective, rules, choice, Wanted(steps=True)).steps:
        known = boxes.summaries.get(each.node)
        if isinstance(each.node.op, Attention) and isinstance(known, Ellipsoid) and known.rows is not None:
            eta = each.coefficients.dense()[0, 0]
            if bool(eta.isfinite().all()):
                made = made.with_summary(each.node, fitted(known, eta))
    return made
