"""Optimise the free parameters of a backward pass by projected gradient ascent.

Invariant: the result is never below the bound at the starting parameters, and as sound: every value of a parameter is.

Adam on each parameter, with the step sizes that its op states, clamped to the useful range after every step. Objectives
that are above a goal, or cannot get there because an input is known at which they are not, are let go on the way: the
others of the same input move up. There is no randomness.
"""

from __future__ import annotations

import dataclasses
import time
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Walk
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.errors import InvalidValueError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.registry import Interval, Range, Rules

MOMENTS = (0.9, 0.999)
"""Of Adam: how slowly its means of the gradient and of its square forget."""
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}
"""A gradient this much smaller than the largest of the same parameter and objective is rounding, and moves nothing."""
TINY = 1e-30
"""Keeps the step of a parameter without a gradient a number."""
LET_GO = 5
"""Every so many steps the objectives that are settled are let go."""


@dataclasses.dataclass(frozen=True)
class Ascent:
    """How far to go. The step shrinks by `decay` each time; the best bound seen is kept."""

    steps: int = 60
    step_size: float = 0.2
    decay: float = 0.97
    seconds: float | None = None
    """stop after these, if the steps have not ended before"""

    def __post_init__(self) -> None:
        if self.steps < 0 or not self.step_size > 0 or not 0 < self.decay <= 1:
            raise InvalidValueError(f"{self}: steps ≥ 0, step_size > 0 and 0 < decay ≤ 1 are needed")
        if self.seconds is not None and not self.seconds >= 0:
            raise InvalidValueError(f"{self}: seconds must not be negative; None is no limit")


@dataclasses.dataclass
class Parameter:
    """One free parameter of one node with Adam's state, each (batch, S, ...)."""

    node: Node
    name: str
    value: Tensor
    mean: Tensor
    square: Tensor

    @property
    def range(self) -> Range:
        """Where it is looked for."""
        return self.node.op.ranges[self.name]

    def step(self, size: float, count: int) -> None:
        """One step up along the gradient, then back into the range; a gradient that is no number is 0."""
        gradient = self.value.grad
        if gradient is None:
            return
        gradient = torch.where(gradient.isfinite(), gradient, torch.zeros_like(gradient))
        size_of = gradient.abs()
        largest = size_of.reshape(*size_of.shape[:2], -1).amax(-1)
        least = ROUNDING[gradient.dtype] * largest.reshape(*size_of.shape[:2], *[1] * (size_of.dim() - 2))
        gradient = torch.where(size_of > least, gradient, torch.zeros_like(gradient))
        for state, new, keep in ((self.mean, gradient, MOMENTS[0]), (self.square, gradient.square(), MOMENTS[1])):
            state.mul_(keep).add_(new, alpha=1 - keep)
        mean = self.mean / (1 - MOMENTS[0] ** count)
        root = (self.square / (1 - MOMENTS[1] ** count)).sqrt()
        move = size * self.range.rate * mean / (root + TINY)
        with torch.no_grad():
            self.value.add_(move).clamp_(self.range.low, self.range.high)
        self.value.grad = None

    def take(self, index: Tensor) -> Parameter:
        """For some of the objectives only: index (batch, fewer)."""
        parts = (_take(x.detach(), index) for x in (self.value, self.mean, self.square))
        value, mean, square = parts
        return Parameter(self.node, self.name, value.requires_grad_(), mean, square)


def parameters(walk: Walk, node: Node, count: int, rules: Rules) -> list[Parameter]:
    """The free parameters of all ops above a node, for `count` objectives, at their defaults."""
    found = []
    for at in walk.above(node):
        if at.op.affine or not at.op.ranges:
            continue
        for name, start in at.op.parameters(walk.relaxed(at, rules)).items():
            value = start.detach().expand(walk.batch, count, *start.shape[2:]).clone().requires_grad_()
            found.append(Parameter(at, name, value, torch.zeros_like(value), torch.zeros_like(value)))
    return found


class Optimised(NamedTuple):
    """Where an ascent ended."""

    bound: Tensor
    """(batch, S): the best bound of every objective"""
    chosen: dict[Node, dict[str, Tensor]]
    """the parameters after the last step, of the objectives that were not let go"""


def optimized_bound(
    walk: Walk,
    node: Node,
    objectives: Tensor,
    rules: Rules,
    ascent: Ascent,
    *,
    known: Tensor | None = None,
    goal: float | None = None,
    ceiling: Tensor | None = None,
) -> Tensor:
    """The best bound of objectives (batch, S, *shape) on a node over the ascent, (batch, S); see `optimise`."""
    return optimise(walk, node, objectives, rules, ascent, known=known, goal=goal, ceiling=ceiling).bound


def optimise(
    walk: Walk,
    node: Node,
    objectives: Tensor,
    rules: Rules,
    ascent: Ascent,
    *,
    known: Tensor | None = None,
    goal: float | None = None,
    ceiling: Tensor | None = None,
) -> Optimised:
    """The best bounds of objectives (batch, S, *shape) on a node over the ascent, at least what is `known` (batch, S).

    With a goal, an objective is let go once its bound is above it, or if `ceiling` (batch, S), a value that it takes
    somewhere in the set, is not.
    """
    begin = time.perf_counter()
    rules = dataclasses.replace(rules, free=True)
    with torch.no_grad():
        best = walk.bound(node, Part(objectives), rules)
    if known is not None:
        best = torch.maximum(best, known)
    hopeless = torch.zeros_like(best, dtype=torch.bool)
    if goal is not None and ceiling is not None:
        hopeless = ceiling <= goal
    here = torch.arange(best.shape[1], device=best.device).expand_as(best)  # which objective stands at each place
    free = parameters(walk, node, best.shape[1], rules)
    for count in range(ascent.steps if free and here.shape[1] else 0):
        if goal is not None and count % LET_GO == 0:
            here, free = _let_go(best, here, free, hopeless, goal)
            if here.shape[1] == 0:
                break
        if ascent.seconds is not None and time.perf_counter() - begin > ascent.seconds:
            break
        with torch.enable_grad():
            found = walk.bound(node, Part(_take(objectives, here)), rules, _chosen(free))
            if not found.requires_grad:  # no parameter enters: the rule stops before them
                break
            torch.where(found.isfinite(), found, torch.zeros_like(found)).sum().backward()
        best = _better(best, found.detach(), here)
        for parameter in free:
            parameter.step(ascent.step_size * ascent.decay**count, count + 1)
    if free and here.shape[1]:
        with torch.no_grad():
            final = dataclasses.replace(rules, sums=True)  # too long for every step
            found = walk.bound(node, Part(_take(objectives, here)), final, _chosen(free))
            best = _better(best, found, here)
    return Optimised(best, {at: {k: v.detach() for k, v in of.items()} for at, of in _chosen(free).items()})


def ascended_box(walk: Walk, node: Node, rules: Rules, ascent: Ascent) -> Interval:
    """The box of a node with every entry that some op wants tighter optimised on its own."""
    lower, upper = (x.expand(walk.batch, *node.shape).flatten(1).clone() for x in walk.boxes[node])
    for places, A in walk.units(node):
        found = optimized_bound(walk, node, torch.cat([A, -A], 1), rules, ascent)
        low, high = found[:, : len(places)], -found[:, len(places) :]
        lower[:, places] = torch.maximum(lower[:, places], low)
        upper[:, places] = torch.minimum(upper[:, places], high)
    return Interval(lower.reshape(walk.batch, *node.shape), upper.reshape(walk.batch, *node.shape))


def _let_go(
    best: Tensor, here: Tensor, free: list[Parameter], hopeless: Tensor, goal: float
) -> tuple[Tensor, list[Parameter]]:
    """Only the objectives that are still open, as many for every input as the input with most of them has."""
    open_ = ((best <= goal) & ~hopeless).gather(1, here)
    most = int(open_.sum(1).max())
    if most == here.shape[1]:
        return here, free
    index = open_.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    return here.gather(1, index), [parameter.take(index) for parameter in free]


def _chosen(free: list[Parameter]) -> dict[Node, dict[str, Tensor]]:
    chosen: dict[Node, dict[str, Tensor]] = {}
    for parameter in free:
        chosen.setdefault(parameter.node, {})[parameter.name] = parameter.value
    return chosen


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x (batch, S, ...) at index (batch, fewer)."""
    rest = x.shape[2:]
    spread = index.reshape(*index.shape, *[1] * len(rest)).expand(*index.shape, *rest)
    return x.expand(index.shape[0], *x.shape[1:]).gather(1, spread)


def _better(best: Tensor, found: Tensor, here: Tensor) -> Tensor:
    """The larger bound; a step that ended in NaN gives none, and a start at NaN stays NaN."""
    old = best.gather(1, here)
    new = torch.where(found.isnan(), old, torch.maximum(old, found))
    return best.scatter(1, here, new)
