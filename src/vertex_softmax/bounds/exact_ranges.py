"""Exact ranges over sets of word choices: of affine nodes, and of products of two such nodes.

Invariant: the interval returned contains every value of the node over the input set, and is rounded outward.
"""

from __future__ import annotations

from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.bilinear import MatMul, choice_factors
from vertex_softmax.ops.choice_rows import ChoiceForm
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.shape import Moving
from vertex_softmax.sets.choice_region import ChoiceRegion


def exact_range(question: Question, node: Node) -> Interval | None:
    """The exact range of a node over choices of words; None where it is not known, or no better than the node's
    inputs'.
    """
    if not isinstance(question.region, ChoiceRegion) or isinstance(node.op, (Constant, Moving)):
        return None
    if isinstance(node.op, MatMul):
        pair = choice_factors(*(_form(question, each) for each in node.inputs))
        return None if pair is None else pair[0].products(pair[1])
    form = _form(question, node)
    return None if form is None else form.box


def _form(question: Question, node: Node) -> ChoiceForm | None:
    index = question.index
    if node not in index.affine or index.position[node] < index.position[index.start]:
        return None
    form = question.relaxations.form(node)
    return form if isinstance(form, ChoiceForm) else None
