"""Optimise the free parameters of a backward pass by projected gradient ascent.

Invariant: the result is never below the bound at the starting parameters, and as sound: every value is.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Walk
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.errors import InvalidValueError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.registry import Rules


@dataclasses.dataclass(frozen=True)
class Ascent:
    """How far to go: Adam on every parameter, the step shrinking by `decay`; the best bound seen is kept."""

    steps: int = 20
    step_size: float = 0.1
    decay: float = 0.95

    def __post_init__(self) -> None:
        if self.steps < 0 or self.step_size <= 0 or not 0 < self.decay <= 1:
            raise InvalidValueError(f"{self}: steps ≥ 0, step_size > 0 and 0 < decay ≤ 1 are needed")


def optimized_bound(walk: Walk, node: Node, objectives: Tensor, rules: Rules, ascent: Ascent) -> Tensor:
    """The best bound of objectives (batch, S, *shape) on a node over the ascent, (batch, S)."""
    with torch.no_grad():
        best = walk.bound(node, Part(objectives), rules)
    free: dict[Node, dict[str, Tensor]] = {}
    groups = []
    for at in walk.nodes[: walk.position[node] + 1]:
        if at.op.affine or not at.op.ranges:
            continue
        batch, count = objectives.shape[:2]
        for name, start in at.op.parameters(walk.relaxed(at, rules)).items():
            value = start.expand(batch, count, *start.shape[2:]).clone().requires_grad_()
            free.setdefault(at, {})[name] = value
            groups.append({"params": [value], "lr": ascent.step_size * at.op.ranges[name].rate})
    if not groups:
        return best
    optimizer = torch.optim.Adam(groups, maximize=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, ascent.decay)
    for _ in range(ascent.steps):
        with torch.enable_grad():
            found = walk.bound(node, Part(objectives), rules, free)
            optimizer.zero_grad()
            found.sum().backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            best = _better(best, found)
            for at, values in free.items():
                for name, value in values.items():
                    value.clamp_(at.op.ranges[name].low, at.op.ranges[name].high)
    with torch.no_grad():
        return _better(best, walk.bound(node, Part(objectives), rules, free))


def _better(best: Tensor, found: Tensor) -> Tensor:
    """The larger bound; a step that ended in NaN gives none, and a start at NaN stays NaN."""
    return torch.where(found.isnan(), best, torch.maximum(best, found))
