"""Bound margins behind the last norm of a network without relaxing the norm: multiply them by σ first.

Invariant: each value returned is at most the objective at every input of the set, to rounding.

Many networks end in a norm followed by affine ops, so that an objective is η·y/σ(y) + κ, where y is a row of numbers
with a known zonotope, y = c + y' with the zonotope's centre c, and σ² = |y|²/d + eps. For every number t,
  η·y/σ + κ = t + (η·y + (κ − t) σ)/σ,
so that only the numerator, in which nothing is divided by σ, has to be bounded from below, as in fractional
programming. If it is at least ℓ, the objective is at least t + ℓ/σ_u for ℓ ≥ 0 and t + ℓ/σ_l for ℓ < 0, where
σ_l ≤ σ ≤ σ_u. The best t is the one with ℓ = 0. Put μ = κ − t. Since σ is convex,
- for μ ≥ 0, σ ≥ (c·y/d + eps)/σ(c), the plane that touches σ at the centre c;
- for μ < 0, σ ≤ (σ²/s + s)/2 for every s > 0, and σ² = (|c|² + 2c·y' + |y'|²)/d + eps, where only |y'|² is not linear.
In both cases the numerator is at least one linear functional of y, which the zonotope bounds as a whole.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.index import last_norm
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotopes import lowest
from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.graph.ir import Constant, Graph, Input, Node
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rules import Rules
from vertex_softmax.ops.zonotope import Zonotope
from vertex_softmax.sets.region import BoxRegion

STEPS = 8
"""How many values of t are tried for each objective."""


def behind_last_norm(question: Question, boxes: Boxes, objective: Objective) -> Tensor | None:
    """Lower bounds (batch, S) of dense objectives on the output; None if the output is not a function of one normalised
    row.
    """
    norm = last_norm(question.graph)
    if norm is None or objective.node is not question.graph.output or norm.inputs[0] not in boxes.zonotopes:
        return None
    op = norm.op
    if not isinstance(op, Normalize):
        return None
    eta, kappa = _through_affine_ops(question, norm, objective)
    eta = eta.flatten(eta.dim() - op.count)
    eta = eta.flatten(2, -2) if eta.dim() > 3 else eta.unsqueeze(2)  # (batch, S, rows, d)
    used = eta.abs().amax((0, 1, 3)).nonzero().flatten().tolist()
    if len(used) != 1:
        return None
    return _lowest(_row(boxes.zonotopes[norm.inputs[0]], op.count, used[0]), op.eps, eta[:, :, used[0]], kappa)


def _through_affine_ops(question: Question, norm: Node, objective: Objective) -> tuple[Tensor, Tensor]:
    """η (batch, S, *shape of the norm) and κ (batch, S): the objectives as affine functions of the norm's output."""
    start = Node(norm.name, Input(), (), norm.shape)
    new: dict[Node, Node] = {norm: start}
    for node in question.index.nodes:
        if node is not norm and (isinstance(node.op, Constant) or (node.inputs and all(i in new for i in node.inputs))):
            new[node] = dataclasses.replace(node, inputs=tuple(new[i] for i in node.inputs))
    A = objective.coefficients.A
    zero = torch.zeros(A.shape[0], *norm.shape, dtype=A.dtype, device=A.device)
    tail = Question.over(Graph(start, new[question.graph.output]), BoxRegion(zero, zero))
    bound = backward(tail, tail.input_boxes(), Objective.dense(tail.graph.output, A), Rules())
    if bound.coefficients is None:
        return zero.unsqueeze(1).expand(*A.shape[:2], *norm.shape), bound.constant
    return tail.index.as_input(bound.coefficients), bound.constant


def _row(zonotope: Zonotope, count: int, which: int) -> Zonotope:
    """The zonotope of one row of a norm's input, (batch, d)."""
    shape = zonotope.centre.shape[1:]
    d = math.prod(shape[len(shape) - count :])

    def picked(x: Tensor) -> Tensor:
        lead = x.shape[: x.dim() - len(shape)]
        return x.reshape(*lead, math.prod(shape) // d, d)[..., which, :]

    zonotope = zonotope.spread
    blocks = {unknowns: picked(columns) for unknowns, columns in zonotope.blocks.items()}
    own = None if zonotope.own is None else picked(zonotope.own)
    return Zonotope(picked(zonotope.centre), blocks, own, picked(zonotope.slack))


def _lowest(y: Zonotope, eps: float, eta: Tensor, kappa: Tensor) -> Tensor:
    """Lower bounds of η·y/σ(y) + κ over a zonotope y (batch, d): η (batch, S, d), κ (batch, S) → (batch, S)."""
    c, d = y.centre, y.centre.shape[-1]
    square = c.square().mean(-1, keepdim=True)  # (batch, 1) as all below
    middle = (square + eps).sqrt()
    far = torch.minimum(y.row_shape.farthest(), y.radius.square().sum(-1)).unsqueeze(-1)
    most = square + eps + far / d  # σ² ≤ most + 2c·y'/d
    s = most.sqrt()
    along = y.reach(c).unsqueeze(-1) / d
    share = OUTWARD.get(c.dtype, 0.0)
    sigma_low = (square + eps - along - share * (square + eps + along)) / middle  # of what may cancel
    sigma_high = (most + 2 * along).sqrt() * (1 + share)
    touching = (c / (d * middle), eps / middle)  # σ ≥ first·y + second
    above = (c / (d * s), (most - 2 * square) / (2 * s) + s / 2)  # σ ≤ first·y + second
    t = (eta * c.unsqueeze(1)).sum(-1) / middle + kappa
    best = kappa - eta.norm(dim=-1) * d**0.5 * (1 + 8 * d * torch.finfo(c.dtype).eps) - share * kappa.abs()
    for _ in range(STEPS):
        mu = kappa - t
        convex = mu >= 0
        slope = torch.where(convex.unsqueeze(-1), touching[0].unsqueeze(1), above[0].unsqueeze(1))
        constant = torch.where(convex, touching[1], above[1])
        least = lowest(y, eta + mu.unsqueeze(-1) * slope) + mu * constant
        least = least - share * mu.abs() * (constant.abs() + s + middle)
        found = t + torch.where(least >= 0, least / sigma_high, least / sigma_low)
        found = found - share * (found.abs() + t.abs() + kappa.abs())
        usable = found.isfinite() & ((least >= 0) | (sigma_low > 0)) & (sigma_high > 0)
        best = torch.maximum(best, torch.where(usable, found, best))
        t = torch.where(usable, t + least / middle, (t + best) / 2)
    result: Tensor = best
    return result
