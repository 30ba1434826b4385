"""Where a bound loses: the slack of every op at the input where the bound is least.

Invariant: value − bound = Σ of the parts, and each part is ≥ 0, to rounding.

Let x* be the input of the set at which the linear bound is least. Every backward rule states that
Σ A·out ≥ Σ A_i·x_i + constant; the gaps of these inequalities at x*, added over all ops, are exactly the difference
between the objective at x* and the bound. The difference between that value and the true minimum belongs to no op. As a
by-product, x* is a strong adversarial input.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import DEFAULT, Choice
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.linear import LinearBound
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.contract import Step
from vertex_softmax.ops.rules import Rules

MOST_ROWS = 4096
"""The slack of single rows is not computed for an attention with more rows than this."""


@dataclasses.dataclass(frozen=True, eq=False)
class Slack:
    """The slack of every objective; tensors are (batch, S) unless stated otherwise."""

    bound: Tensor
    value: Tensor
    """the value of the objective at `point`"""
    parts: dict[Node, Tensor]
    """the gap of every op that is not affine"""
    point: Tensor
    """(S, batch, *input shape): for each objective the input at which its bound is least"""


class _AtMinimum:
    """The result of a backward pass, and the values of all nodes at the input where its bound is least."""

    def __init__(self, question: Question, boxes: Boxes, objective: Objective, rules: Rules, choice: Choice) -> None:
        self.linear: LinearBound = backward(question, boxes, objective, rules, choice, Wanted(steps=True))
        self.bound, start = self.linear.minimise(question.region)
        self.point = question.index.as_input(start).transpose(0, 1)
        values = question.graph.values(self.point)
        self.values = {node: value.transpose(0, 1) for node, value in values.items()}  # (batch, S, *shape)
        self.offset = (start - question.region.box.centre.unsqueeze(1)).flatten(2)

    def left(self, node: Node, A: Tensor, step: Step) -> Tensor:
        """Σ A·out minus the lower bound of it that a step gives, evaluated at the point, (batch, S)."""
        left = (A * self.values[node]).flatten(2).sum(-1)
        for i, coefficients in zip(node.inputs, step.coefficients, strict=True):
            if coefficients is not None:
                left = left - (coefficients * self.values[i]).flatten(2).sum(-1)
        if step.constant is not None:
            left = left - step.constant.flatten(1)
        if step.start is not None:
            left = left - (step.start * self.offset).sum(-1)
        return left


def slack(question: Question, boxes: Boxes, objective: Objective, rules: Rules, choice: Choice = DEFAULT) -> Slack:
    """The slack of a backward pass from dense objectives (batch, S, *shape), with the given choice."""
    found = _AtMinimum(question, boxes, objective, rules, choice)
    parts: dict[Node, Tensor] = {}
    for each in found.linear.steps:
        left = found.left(each.node, each.coefficients.A, each.step)
        parts[each.node] = parts[each.node] + left if each.node in parts else left
    value = (objective.coefficients.A * found.values[objective.node]).flatten(2).sum(-1)
    return Slack(bound=found.bound, value=value, parts=parts, point=found.point)


def row_slack(
    question: Question, boxes: Boxes, objective: Objective, rules: Rules, choice: Choice = DEFAULT
) -> Mapping[Node, Tensor]:
    """By attention, the slack of every row for one objective, (batch, *output shape without its last dimension).

    The objective is (batch, 1, *shape). Rows are bounded independently of each other, so each is evaluated alone, and
    they add up to the attention's own part. Attentions with more than MOST_ROWS rows are left out.
    """
    found = _AtMinimum(question, boxes, objective, rules, choice)
    rows: dict[Node, Tensor] = {}
    for each in found.linear.steps:
        node = each.node
        count = math.prod(node.shape[:-1])
        if not isinstance(node.op, Attention) or count > MOST_ROWS or each.coefficients.diagonal is not None:
            continue
        relaxation = question.relaxations.of(node, boxes, rules)
        values = choice.parameters.get(node)
        if values:
            relaxation = relaxation.with_parameters(values)
        every = torch.eye(count, dtype=question.dtype, device=question.device).reshape(count, *node.shape[:-1], 1)
        widest = max(math.prod(i.shape) for i in (node, *node.inputs))
        size = question.memory.chunk(question.batch * widest * question.dtype.itemsize, question.device)
        alone = [
            found.left(node, A, relaxation.backward(A))
            for A in (each.coefficients.A * some for some in every.split(size))
        ]
        own = torch.cat(alone, 1).reshape(question.batch, *node.shape[:-1])
        rows[node] = rows[node] + own if node in rows else own
    return rows


def attained(question: Question, boxes: Boxes, objective: Objective, rules: Rules) -> Tensor:
    """The values (batch, S) of dense objectives at the inputs where their linear bounds are least."""
    _, start = backward(question, boxes, objective, rules).minimise(question.region)
    values = question.graph.values(question.index.as_input(start).transpose(0, 1))
    value = values[objective.node].transpose(0, 1)
    return (objective.coefficients.A * value).flatten(2).sum(-1)
