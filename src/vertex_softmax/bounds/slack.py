"""Where a bound loses: the slack of every op at the input where the bound is least.

Invariant: value − bound = Σ of the parts, and each part is ≥ 0, to rounding.

At x*, the corner at which the linear bound is least, every backward rule says Σ A·out ≥ Σ A_i·x_i + constant; by how
much, added over the ops, is exactly what lies between the objective at x* and the bound. What lies between that value
and the true minimum belongs to no op. (x* is also a strong attack, for nothing.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Walk
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.registry import Rules, Step

MOST_ROWS = 4096
"""Of one attention, whose slack is told row by row."""


class Slack(NamedTuple):
    """Of every objective, (batch, S)."""

    bound: Tensor
    value: Tensor
    """the objective at the point"""
    parts: dict[Node, Tensor]
    """of every op that is not affine"""
    point: Tensor
    """(S, batch, *input shape)"""


def slack(
    walk: Walk,
    node: Node,
    objectives: Tensor,
    rules: Rules,
    chosen: Mapping[Node, dict[str, Tensor]] | None = None,
) -> Slack:
    """The slack of a backward pass from a node: objectives (batch, S, *shape), with free parameters as chosen."""
    box = walk.boxes[walk.start]
    bound, corner = walk.back(node, Part(objectives), rules, chosen).least(box)
    centre = box.centre.unsqueeze(1)
    point = input_of(walk, corner).transpose(0, 1)
    values = {at: x.transpose(0, 1) for at, x in walk.graph.values(point).items()}  # (batch, S, *shape)
    parts: dict[Node, Tensor] = {}

    def watch(at: Node, piece: Part, step: Step) -> None:
        left = _left(at, piece.A, step, values, (corner - centre).flatten(2))
        parts[at] = parts[at] + left if at in parts else left

    walk.back(node, Part(objectives), rules, chosen, watch=watch)
    value = (objectives * values[node]).flatten(2).sum(-1)
    return Slack(bound, value, parts, point)


def row_slack(
    walk: Walk,
    node: Node,
    objectives: Tensor,
    rules: Rules,
    chosen: Mapping[Node, dict[str, Tensor]] | None = None,
) -> dict[Node, Tensor]:
    """The slack of every attention row, (batch, *shape of the output but for its last dimension), of one objective.

    Rows are bounded one by one, so that they add up to the attention's own part: each is asked for alone. An attention
    with more than MOST_ROWS of them is left out. objectives: (batch, 1, *shape).
    """
    box = walk.boxes[walk.start]
    _, corner = walk.back(node, Part(objectives), rules, chosen).least(box)
    offset = (corner - box.centre.unsqueeze(1)).flatten(2)
    point = input_of(walk, corner).transpose(0, 1)
    values = {at: x.transpose(0, 1) for at, x in walk.graph.values(point).items()}
    found: dict[Node, Tensor] = {}

    def watch(at: Node, piece: Part, _step: Step) -> None:
        count = math.prod(at.shape[:-1])
        if not at.op.stage or count > MOST_ROWS or piece.keep is not None:
            return
        relaxed = walk.relaxed(at, rules)
        if chosen is not None and at in chosen:
            relaxed = at.op.with_parameters(relaxed, chosen[at])
        every = torch.eye(count, dtype=walk.dtype, device=walk.device).reshape(count, *at.shape[:-1], 1)
        widest = max(math.prod(i.shape) for i in (at, *at.inputs))
        size = walk.memory.chunk(walk.batch * widest * walk.dtype.itemsize, walk.device)
        alone = [
            _left(at, A, at.op.backward(A, relaxed), values, offset)
            for A in (piece.A * rows for rows in every.split(size))
        ]
        rows = torch.cat(alone, 1).reshape(walk.batch, *at.shape[:-1])
        found[at] = found[at] + rows if at in found else rows

    walk.back(node, Part(objectives), rules, chosen, watch=watch)
    return found


def _left(at: Node, A: Tensor, step: Step, values: Mapping[Node, Tensor], offset: Tensor) -> Tensor:
    """Σ A·out less the bound of a step, at the point of the values, (batch, S); offset: the point less the centre."""
    left = (A * values[at]).flatten(2).sum(-1)
    for i, coefficients in zip(at.inputs, step.coefficients, strict=True):
        if coefficients is not None:
            left = left - (coefficients * values[i]).flatten(2).sum(-1)
    if step.constant is not None:
        left = left - step.constant.flatten(1)
    if step.start is not None:
        left = left - (step.start * offset).sum(-1)
    return left


def attained(walk: Walk, node: Node, objectives: Tensor, rules: Rules) -> Tensor:
    """The objectives (batch, S, *shape) at the corners where their linear bounds are least, (batch, S)."""
    _, corner = walk.back(node, Part(objectives), rules).least(walk.boxes[walk.start])
    value = walk.graph.values(input_of(walk, corner).transpose(0, 1))[node].transpose(0, 1)
    return (objectives * value).flatten(2).sum(-1)


def input_of(walk: Walk, start: Tensor) -> Tensor:
    """The input of which the walk's start, (batch, S, *shape), is a rearrangement."""
    shape = walk.graph.input.shape
    numbers = torch.arange(start.flatten(2).shape[-1], dtype=walk.dtype, device=start.device)
    place = walk.graph.values(numbers.reshape(1, *shape))[walk.start].flatten().long()
    whole = torch.empty_like(start.flatten(2))
    whole[..., place] = start.flatten(2)
    return whole.reshape(*start.shape[:2], *shape)
