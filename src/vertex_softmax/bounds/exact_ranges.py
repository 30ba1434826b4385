"""Exact ranges over sets of word choices: of affine nodes, and of products of two such nodes.

Invariant: the interval returned contains every value of the node over the input set, and is rounded outward.
"""

from __future__ import annotations

from torch import Tensor

from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.tolerances import OUTWARD
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
    terms = question.relaxations.form_terms
    if isinstance(node.op, MatMul):
        pair = choice_factors(*(_form(question, each) for each in node.inputs))
        if pair is None:
            return None
        x, y, (left, right) = pair[0].box.magnitude, pair[1].box.magnitude.mT, (terms(i) for i in node.inputs)
        return _outward(pair[0].products(pair[1]), left @ y + x @ right + OUTWARD[x.dtype] * (left @ right))
    form = _form(question, node)
    return None if form is None else _outward(form.box, terms(node))


def _outward(box: Interval, terms: Tensor) -> Interval:
    """The box, outward by what the form that it was made of may have rounded, however much of it cancels."""
    away = OUTWARD[box.lower.dtype] * terms
    return Interval(box.lower - away, box.upper + away)


def _form(question: Question, node: Node) -> ChoiceForm | None:
    index = question.index
    if node not in index.affine or index.position[node] < index.position[index.start]:
        return None
    form = question.relaxations.form(node)
    return form if isinstance(form, ChoiceForm) else None
