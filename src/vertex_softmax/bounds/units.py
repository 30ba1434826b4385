"""Unit objectives, one for each entry of a node whose range is to be bounded, in chunks that fit the memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Node


class Units(NamedTuple):
    """A chunk of S unit objectives on a node; objective s has the coefficient 1 at the entries numbered rows[s]."""

    rows: Tensor
    """(S,): flat indices over all dimensions except the diagonal one"""
    A: Tensor
    """(batch, S, *shape): coefficients, diagonal along the dimension that was asked for"""


def undecided(question: Question, boxes: Boxes, node: Node) -> Tensor:
    """The entries of a node for which some user wants a tighter box, (*shape) bool, for the whole batch."""
    box = boxes[node]
    wanted = torch.zeros(node.shape, dtype=torch.bool, device=question.device)
    for user in question.index.users(node):
        for i in user.op.reads:
            if user.inputs[i] is node:
                mask = user.op.undecided(i, box)
                wanted |= torch.ones_like(wanted) if mask is None else mask.any(0)
    return wanted


def unit_objectives(
    question: Question, node: Node, diagonal: int | None, wanted: Tensor, signs: int = 2
) -> Iterator[Units]:
    """Chunks of unit objectives for the wanted entries (*shape) of a node, diagonal along a dimension if one is given.

    `signs`: 2 if the caller bounds each objective together with its negative, else 1; it affects only the chunk's size.
    """
    shape = list(node.shape)
    n = 1 if diagonal is None else shape[diagonal]
    if diagonal is not None:
        shape[diagonal] = 1
        wanted = wanted.any(diagonal, keepdim=True)
    rows = wanted.reshape(-1).nonzero().squeeze(-1)
    index = question.index
    widest = max(math.prod(other.shape) for other in index.nodes[: index.position[node] + 1])
    per_objective = signs * question.batch * n * widest * question.dtype.itemsize
    for part in rows.split(question.memory.chunk(per_objective, question.device)):
        A = torch.zeros(1, len(part), math.prod(shape), dtype=question.dtype, device=question.device)
        A[0, torch.arange(len(part), device=question.device), part] = 1
        yield Units(part, A.reshape(1, len(part), *shape).expand(question.batch, -1, *node.shape))
