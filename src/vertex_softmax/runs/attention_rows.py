"""The softmax rows of every attention of a sentence: at the sentence itself, and how far they move while it does.

Invariant: every weight of the network, at every point of the set, lies between `lower` and `upper` of its layer, as far
as the boxes of the scores hold: they are those of `crown`, by backward passes or by zonotopes. Over a box of scores the
range of a weight is exact, and rounded outward (softmax_box/probabilities.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.boxes import boxes_by_passes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule
from vertex_softmax.runs.attention_record import MOST_WEIGHTS, AttentionLayer, AttentionRows, require_rows
from vertex_softmax.runs.journal import Journal, key_of
from vertex_softmax.runs.records import made, packed
from vertex_softmax.runs.subject import Inputs, Subject
from vertex_softmax.sets import InputSet
from vertex_softmax.softmax_box import softmax_box_probabilities

MOST_SENTENCES = 32
"""Of how many sentences of a run the rows are kept."""


@dataclasses.dataclass(frozen=True, eq=False)
class MovingSentence:
    """A sentence whose rows are wanted, and how far it moves."""

    number: int
    """its position in `Run.inputs`"""
    inputs: Inputs
    """the sentence alone"""
    eps: float
    """the radius of its ball; 0: it does not move, and there are no ranges"""
    what: str
    """what moves, in words"""


def kept_rows(
    subject: Subject, sentences: Sequence[MovingSentence], journal: Journal, context: Mapping[str, Any]
) -> tuple[AttentionRows, ...]:
    """The rows of sentences, from the first on, while there are not too many weights; each is computed once, ever."""
    found: list[AttentionRows] = []
    total = 0
    for each in sentences[:MOST_SENTENCES]:
        graph = subject.groups(each.inputs)[0].graph
        size = weights_in(graph)
        total += size
        if not size or total > MOST_WEIGHTS:
            break
        key = key_of("attention", input=each.number, eps=each.eps, what=each.what, **context)
        layers = journal.once(key, _plain_layers, graph, each)
        where = f"the attention of input {each.number}"
        about = f"{each.what} within ε = {each.eps:.6g}" if each.eps > 0 else ""
        rows = made(AttentionRows, {"input": each.number, "about": about, "layers": layers}, where)
        require_rows([rows], [each.number])
        found.append(rows)
    return tuple(found)


def _plain_layers(graph: Graph, sentence: MovingSentence) -> list[dict[str, Any]]:
    layers = attention_layers(graph, sentence.inputs.ball(sentence.eps), moves=sentence.eps > 0)
    return [dataclasses.asdict(layer) for layer in layers]


def attentions_of(graph: Graph) -> list[Node]:
    """The attentions of a network whose scores are (..., rows, keys), in the order in which they are computed."""
    return [node for node in graph.nodes() if isinstance(node.op, Attention) and len(node.inputs[0].shape) >= 2]


def weights_in(graph: Graph) -> int:
    """How many softmax weights one sentence has."""
    return sum(math.prod(node.inputs[0].shape) for node in attentions_of(graph))


@full_precision()
def attention_layers(graph: Graph, input_set: InputSet, *, moves: bool = True) -> tuple[AttentionLayer, ...]:
    """The layers of a set of one input; without ranges if it does not move."""
    region = input_set.region(graph.input.shape, graph.dtype, graph.device)
    centre = input_set.centre.to(graph.device, graph.dtype).reshape(1, *graph.input.shape)
    with torch.no_grad():
        values, boxes = graph.values(centre), None
        if moves:
            question = Question.over(graph, region, memory=Options().memory)
            boxes = boxes_by_passes(question, RowRule.AFFINE, Options())
    return tuple(_layer(node, values, boxes) for node in attentions_of(graph))


def _layer(node: Node, values: Mapping[Node, Tensor], boxes: Boxes | None) -> AttentionLayer:
    """One attention, from the values of its scores and their box."""
    op, scores = node.op, node.inputs[0]
    if not isinstance(op, Attention):
        raise InternalError(f"{node} is no attention")
    shape = (math.prod(scores.shape[:-2]), scores.shape[-2], scores.shape[-1])
    weights = op.masked(values[scores]).softmax(-1).reshape(shape)
    lower = upper = None
    if boxes is not None:
        low, high = _ranges(op.score_box(boxes[scores]))
        lower, upper = packed(low.reshape(shape).cpu()), packed(high.reshape(shape).cpu())
    return AttentionLayer(node.name, shape, packed(weights.cpu()), lower, upper)


def _ranges(box: Interval) -> tuple[Tensor, Tensor]:
    """The range of every weight over a box of scores; from 0 to 1 in a row of which nothing is known."""
    fine = ~(box.lower.isnan() | box.upper.isnan() | (box.upper == torch.inf)).any(-1, keepdim=True)
    zero = torch.zeros_like(box.lower)
    ends = (torch.where(fine, box.lower, zero).double(), torch.where(fine, box.upper, zero).double())
    low, high = (torch.as_tensor(x) for x in softmax_box_probabilities(*ends, outward=True))
    return torch.where(fine, low, 0.0), torch.where(fine, high, 1.0)
