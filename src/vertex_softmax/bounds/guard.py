"""The size of what a bound adds up: how far above its limit it has to be before anything is concluded from it."""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import DEFAULT
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.ops.rules import Rules


def terms(question: Question, boxes: Boxes, objective: Objective, rules: Rules | None) -> Tensor:
    """The sum of the absolute values of all terms that a bound of each objective adds up, (batch, S).

    Rounding can have raised the bound by a small share of that sum (foundation/tolerances.py). `rules` are those of the
    backward pass; None: the bound is the one by the box of the objective's node alone.
    """
    A = objective.coefficients.A
    with torch.no_grad():
        if rules is None:
            return (A.abs() * boxes[objective.node].magnitude.unsqueeze(1)).flatten(2).sum(-1)
        size = backward(question, boxes, objective, rules, DEFAULT, Wanted(size=True)).size
    return torch.zeros_like(A.flatten(2)[..., 0]) if size is None else size
