"""Optimise the free parameters of a backward pass by projected gradient ascent.

Invariant: the result is never below the bound at the starting parameters, and as sound: every value of a parameter is.

Adam on each parameter, with the step sizes that its op states, clamped to the useful range after every step. Objectives
that are above a goal, or cannot get there because an input is known at which they are not, are let go on the way: the
others of the same input move up. There is no randomness.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import HELD, Walk
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.registry import Interval, Range, Rules

MOMENTS = (0.9, 0.999)
"""Of Adam: how slowly its means of the gradient and of its square forget."""
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}
"""A gradient this much smaller than the largest of the same parameter and objective is rounding, and moves nothing."""
TINY = 1e-30
"""Keeps the step of a parameter without a gradient a number."""
HOLDING = Range(0.0, float("inf"), 10.0)
"""Of the multipliers of a box's sides; steps are relative to the coefficients there (`Held`)."""
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
    sums: bool = True
    """after the last step, `Rules.sums`: too long for every step"""

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
    scale: Tensor | None = None
    """of its steps, like the value; 0 where it stays as it is. None: 1"""
    best: Tensor | None = None
    """the value that was kept"""

    @property
    def range(self) -> Range:
        """Where it is looked for."""
        return HOLDING if self.name in HELD else self.node.op.ranges[self.name]

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
        if self.scale is not None:
            move = move * self.scale
        with torch.no_grad():
            self.value.add_(move).clamp_(self.range.low, self.range.high)
        self.value.grad = None

    def take(self, index: Tensor) -> Parameter:
        """For some of the objectives only: index (batch, fewer)."""
        parts = (_take(x.detach(), index) for x in (self.value, self.mean, self.square))
        value, mean, square = parts
        scale = None if self.scale is None else _take(self.scale, index)
        best = None if self.best is None else _take(self.best, index)
        return Parameter(self.node, self.name, value.requires_grad_(), mean, square, scale, best)


Chosen: TypeAlias = "Mapping[Node, Mapping[str, Tensor]]"
"""Values of free parameters: node, name, (batch, S, ...)."""


class Held(NamedTuple):
    """Where the two sides of a node's box have multipliers, and how large their steps are: (batch, S, *shape) each."""

    at_least: Tensor
    at_most: Tensor


def parameters(
    walk: Walk,
    node: Node,
    count: int,
    rules: Rules,
    start: Chosen | None = None,
    held: Mapping[Node, Held] | None = None,
) -> list[Parameter]:
    """The free parameters of all ops above a node, for `count` objectives: as `start` has them, else at their defaults.

    And the multipliers of the boxes that are `held`, from 0 on.
    """
    found = []
    start = start or {}
    for at in walk.above(node):
        scales = dict(zip(HELD, (held or {}).get(at, ()), strict=False))
        values = {name: torch.zeros_like(scale) for name, scale in scales.items()}
        if not at.op.affine and at.op.ranges:
            values.update(at.op.parameters(walk.relaxed(at, rules)))
        for name, default in values.items():
            given = start.get(at, {}).get(name, default).detach()
            value = given.expand(walk.batch, count, *default.shape[2:]).clone().requires_grad_()
            parameter = Parameter(at, name, value, torch.zeros_like(value), torch.zeros_like(value), scales.get(name))
            found.append(parameter)
    return found


class Optimised(NamedTuple):
    """Where an ascent ended."""

    bound: Tensor
    """(batch, S): the best bound of every objective"""
    chosen: dict[Node, dict[str, Tensor]]
    """the parameters after the last step, or with `keep` at the best, of the objectives that were not let go"""


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
    goal: float | Tensor | None = None,
    ceiling: Tensor | None = None,
    start: Chosen | None = None,
    held: Mapping[Node, Held] | None = None,
    keep: bool = False,
) -> Optimised:
    """The best bounds of objectives (batch, S, *shape) on a node over the ascent, at least what is `known` (batch, S).

    With a goal, an objective is let go once its bound is above it, or if `ceiling` (batch, S), a value that it takes
    somewhere in the set, is not. `start` and `held`: see `parameters`.
    """
    begin = time.perf_counter()
    rules = dataclasses.replace(rules, free=True)
    free = parameters(walk, node, objectives.shape[1], rules, start, held)
    with torch.no_grad():
        best = walk.bound(node, Part(objectives), rules, None if start is None else _chosen(free))
    if known is not None:
        best = torch.maximum(best, known)
    hopeless = torch.zeros_like(best, dtype=torch.bool)
    if goal is not None and ceiling is not None:
        hopeless = ceiling <= goal
    here = torch.arange(best.shape[1], device=best.device).expand_as(best)  # which objective stands at each place
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
        if keep:
            _keep(free, found.detach() > best.gather(1, here))
        best = _better(best, found.detach(), here)
        for parameter in free:
            parameter.step(ascent.step_size * ascent.decay**count, count + 1)
    if free and here.shape[1]:
        with torch.no_grad():
            final = dataclasses.replace(rules, sums=ascent.sums)
            found = walk.bound(node, Part(_take(objectives, here)), final, _chosen(free))
            if keep:
                _keep(free, found > best.gather(1, here))
            best = _better(best, found, here)
    return Optimised(best, {at: {k: v.detach() for k, v in of.items()} for at, of in _chosen(free, keep).items()})


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
    best: Tensor, here: Tensor, free: list[Parameter], hopeless: Tensor, goal: float | Tensor
) -> tuple[Tensor, list[Parameter]]:
    """Only the objectives that are still open, as many for every input as the input with most of them has."""
    open_ = ((best <= goal) & ~hopeless).gather(1, here)
    most = int(open_.sum(1).max())
    if most == here.shape[1]:
        return here, free
    index = open_.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    return here.gather(1, index), [parameter.take(index) for parameter in free]


def _chosen(free: list[Parameter], kept: bool = False) -> dict[Node, dict[str, Tensor]]:
    """The values, as they are now or as they were kept."""
    chosen: dict[Node, dict[str, Tensor]] = {}
    for parameter in free:
        value = parameter.value if not kept or parameter.best is None else parameter.best
        chosen.setdefault(parameter.node, {})[parameter.name] = value
    return chosen


def _keep(free: list[Parameter], better: Tensor) -> None:
    """Keep the values of the objectives (batch, S) that are better now; the first ones anyway."""
    for parameter in free:
        now = parameter.value.detach()
        which = better.reshape(*better.shape, *[1] * (now.dim() - 2))
        parameter.best = now.clone() if parameter.best is None else torch.where(which, now, parameter.best)


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
