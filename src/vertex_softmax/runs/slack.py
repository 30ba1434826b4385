"""Where a bound loses, over a batch of inputs: op by op, and in every attention by head and row.

Invariant: the parts of `slack_map` add up to its total, to rounding: the mean of (objective at the corner where the
bound is least) − bound, over the inputs, for each one's worst class.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.bounds.ascent import Ascent, ascend
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.slack import row_slack, slack
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import Method
from vertex_softmax.methods.sizing import batches
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.runs.run import AttentionHeads, OtherSlack, SlackMap
from vertex_softmax.sets import InputSet

METHOD = Method.JOINT
RULES = Rules(attention=RowRule.AFFINE, pieces=2)
MOST_SCORES = 1 << 16
"""of one attention, whose widths are told; more would only fill the page"""


@full_precision()
def slack_map(graph: Graph, input_set: InputSet, labels: Sequence[int], targets: Sequence[int], eps: float) -> SlackMap:
    """Means over the inputs, each with its label and the class its bound is worst to.

    The bound is the last pass of `joint`: the affine vertex rule over its boxes, its parameters optimised. (`joint`
    itself takes the best of this and of other passes, which may lose less.)
    """
    options = Options()
    region = input_set.region(graph.input.shape, graph.dtype, graph.device)
    parts: dict[Node, Tensor] = {}
    rows: dict[Node, Tensor] = {}
    widths: dict[Node, Tensor] = {}
    for chosen in batches(graph, METHOD, options, region):
        question = Question.over(graph, region.at(chosen), memory=options.memory)
        with torch.no_grad():
            boxes = tightened_boxes(question, options)
            margins = _margins(graph, [labels[i] for i in chosen.tolist()], [targets[i] for i in chosen.tolist()])
            objective = Objective.dense(graph.output, margins)
            best = ascend(question, boxes, objective, RULES, Ascent()).choice
            for node, left in slack(question, boxes, objective, RULES, best).parts.items():
                parts[node] = parts.get(node, torch.zeros(())) + left.sum()
            for node, left in row_slack(question, boxes, objective, RULES, best).items():
                rows[node] = rows.get(node, torch.zeros(())) + left.sum(0)
                box = boxes[node.inputs[0]]
                widths[node] = widths.get(node, torch.zeros(())) + (box.upper - box.lower).sum(0)
    return _means(eps, len(input_set), parts, rows, widths)


def _means(
    eps: float, count: int, parts: dict[Node, Tensor], rows: dict[Node, Tensor], widths: dict[Node, Tensor]
) -> SlackMap:
    shown = [at for at in rows if at.inputs[0].shape and widths[at].numel() <= MOST_SCORES]
    attentions = tuple(
        AttentionHeads(
            at.name,
            (rows[at] / count).reshape(-1, at.shape[-2]).tolist(),
            (widths[at] / count).reshape(-1, *at.inputs[0].shape[-2:]).tolist(),
        )
        for at in reversed(shown)
    )
    others = tuple(
        OtherSlack(at.name, type(at.op).__name__, float(parts[at]) / count) for at in reversed(parts) if at not in shown
    )
    return SlackMap(eps, str(METHOD), count, sum(float(x) for x in parts.values()) / count, attentions, others)


def _margins(graph: Graph, labels: Sequence[int], targets: Sequence[int]) -> Tensor:
    """logit[label] − logit[target] of every input: (batch, 1, *output shape)."""
    size = graph.output.shape[-1]
    rows = torch.zeros(len(labels), size, dtype=graph.dtype, device=graph.device)
    which = torch.arange(len(labels))
    rows[which, torch.tensor(labels)] = 1.0
    rows[which, torch.tensor(targets)] = -1.0
    return rows.reshape(len(labels), 1, *graph.output.shape)
