"""The mix of a conjunction's rows that promises most: λ ≥ 0 with the largest bound of λ·C y − λ·d.

Invariant: any λ ≥ 0 is sound: where λ·C y > λ·d, not all of the rows C y ≤ d can hold. The choice of λ only decides how
much is proved.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import lower_bound
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.search.branching import AFFINE

MIXING = 40
"""How many steps of ascent are made to find the mix of a conjunction's rows."""


def mix(question: Question, boxes: Boxes, C: Tensor, d: Tensor) -> Tensor:
    """Weights λ ≥ 0 for rows C (m, *output shape) with limits d (m,), found by ascent on the bound of λ·C y − λ·d.

    Σ λ = 1 after the rows are scaled to the norm 1.
    """
    sizes = C.abs().flatten(1).sum(-1)
    sizes = torch.where(sizes > 0, sizes, torch.ones_like(sizes))
    theta = torch.zeros_like(d, requires_grad=True)
    best, found = -math.inf, torch.full_like(d, 1 / len(d)) / sizes
    optimiser = torch.optim.Adam([theta], lr=0.3)
    for _ in range(MIXING):
        with torch.enable_grad():
            weights = theta.softmax(0) / sizes
            mixed = torch.tensordot(weights, C, 1).reshape(1, 1, *C.shape[1:])
            objective = Objective.dense(question.graph.output, mixed)
            bound = lower_bound(question, boxes, objective, AFFINE).sum() - weights @ d
        value = float(bound.detach())
        if value > best:
            best, found = value, weights.detach()
        if not bound.requires_grad or not bool(bound.isfinite()):
            break
        optimiser.zero_grad()
        (-bound).backward()
        optimiser.step()
    return found
