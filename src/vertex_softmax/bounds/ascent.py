"""Optimise the free parameters of a backward pass by projected gradient ascent.

Invariant: the result is never below the bound at the starting parameters. It is a sound bound, because every value of
every free parameter gives one.

Each parameter is moved by Adam, with a step size that its relaxation states, and clamped to its useful range after
every step. An objective is settled once its bound is above a goal, or once an input is known at which the objective is
not above the goal. Settled objectives are removed from the batch during the ascent. There is no randomness.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Wanted, backward, lower_bound
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import Choice, Multipliers
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.units import undecided, unit_objectives
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.tolerances import GRADIENT, OUTWARD
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.contract import Range
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules

MOMENTS = (0.9, 0.999)
"""Adam's decay rates of the means of the gradient and of its square."""
TINY = 1e-30
"""Added to the root of Adam's mean square, so that the step of a parameter without a gradient is 0 and not 0/0. No
bound is divided by it, and every step leads to a sound bound."""
MULTIPLIER = Range(0.0, float("inf"), 10.0)
"""The range and step size of a box's multipliers; the steps are scaled by `Beginning.cuts`, the size of the
coefficients at that node."""
DROP_EVERY = 5
"""Settled objectives are removed from the batch every so many steps."""
HOPE = 4.0
"""An objective is given up by `Ascent.trend` if even this many times the gain that its last steps promise would not be
enough."""
AT_LEAST, AT_MOST = "at_least", "at_most"
"""The names of the multipliers of a box's lower and upper side among the `Parameter`s."""


@dataclasses.dataclass(frozen=True)
class Ascent:
    """The length of an ascent: its number of steps, and their size, which is multiplied by `decay` after every step."""

    steps: int = 60
    step_size: float = 0.2
    decay: float = 0.97
    seconds: float | None = None
    """time limit; None: none"""
    sums: bool = True
    """whether the last bound uses `Rules.sums`, which is too expensive for every step"""
    trend: bool = False
    """stop once, by the trend of the last steps, no objective's bound will exceed its goal and the bound known before.
    For use where only the verdict or the best bound matters, not the parameters that an ascent ends with."""
    patience: float = 0.5
    """the share of the steps before `trend` may stop the ascent: the first steps are so long that a bound may fall
    before it rises"""

    def __post_init__(self) -> None:
        if self.steps < 0 or not self.step_size > 0 or not 0 < self.decay <= 1:
            raise InvalidValueError(f"{self}: steps ≥ 0, step_size > 0 and 0 < decay ≤ 1 are needed")
        if self.seconds is not None and not self.seconds >= 0:
            raise InvalidValueError(f"{self}: seconds must not be negative; None is no limit")
        if not 0 <= self.patience <= 1:
            raise InvalidValueError(f"{self}: patience is a share of the steps, from 0 to 1")


@dataclasses.dataclass
class Parameter:
    """One free parameter of a node's relaxation, or one multiplier of its box, with Adam's state.

    All tensors are (batch, S, ...) for S objectives.
    """

    node: Node
    name: str
    range: Range
    """the values to which it is clamped, and its step size"""
    value: Tensor
    mean: Tensor
    """Adam's running mean of the gradient"""
    square: Tensor
    """Adam's running mean of the gradient's square"""
    scale: Tensor | None = None
    """of a multiplier: the factor of its steps, shaped like the value, 0 where it does not move. None: this is a
    relaxation's parameter, and the factor is 1"""
    best: Tensor | None = None
    """the value at which the best bound was seen"""

    def step(self, size: float, count: int) -> None:
        """Take step number `count` of Adam along the gradient and clamp the value to the range.

        Gradients that are NaN or infinite, or tiny beside the largest one of the same objective (tolerances.GRADIENT),
        count as 0. Works in place, also on the gradient, which has no other user, because memory traffic dominates the
        cost.
        """
        gradient = self.value.grad
        if gradient is None:
            return
        gradient.nan_to_num_(0.0, 0.0, 0.0)
        size_of = gradient.abs()
        largest = size_of.reshape(*size_of.shape[:2], -1).amax(-1)
        least = GRADIENT[gradient.dtype] * largest.reshape(*size_of.shape[:2], *[1] * (size_of.dim() - 2))
        gradient.mul_(size_of > least)
        self.mean.mul_(MOMENTS[0]).add_(gradient, alpha=1 - MOMENTS[0])
        self.square.mul_(MOMENTS[1]).add_(gradient.square_(), alpha=1 - MOMENTS[1])
        root = (self.square / (1 - MOMENTS[1] ** count)).sqrt_().add_(TINY)
        move = (self.mean / (1 - MOMENTS[0] ** count)).mul_(size * self.range.rate).div_(root)
        if self.scale is not None:
            move.mul_(self.scale)
        with torch.no_grad():
            self.value.add_(move).clamp_(self.range.low, self.range.high)
        self.value.grad = None

    def take(self, index: Tensor) -> Parameter:
        """The parameter of the objectives at `index`, (batch, fewer), alone."""
        value, mean, square = (_take(x.detach(), index) for x in (self.value, self.mean, self.square))
        scale = None if self.scale is None else _take(self.scale, index)
        best = None if self.best is None else _take(self.best, index)
        return dataclasses.replace(self, value=value.requires_grad_(), mean=mean, square=square, scale=scale, best=best)

    def remember(self, better: Tensor) -> None:
        """Store the present values as `best` where `better` (batch, S) is True; the first call stores all of them."""
        now = self.value.detach()
        which = better.reshape(*better.shape, *[1] * (now.dim() - 2))
        self.best = now.clone() if self.best is None else torch.where(which, now, self.best)


def free_parameters(
    question: Question,
    boxes: Boxes,
    objective: Objective,
    rules: Rules,
    beginning: Beginning,
) -> list[Parameter]:
    """The free parameters of the relaxations of all ancestors of the objective's node, without `beginning.fixed`.

    They start at the values of `beginning.choice`, and at their defaults where it has none. The boxes in
    `beginning.cuts` add their multipliers, which start at 0 where `beginning.choice` has none.
    """
    first, cuts, fixed = beginning.choice or Choice(), beginning.cuts, beginning.fixed.parameters
    count = objective.coefficients.A.shape[1]
    found: list[Parameter] = []

    def add(node: Node, name: str, span: Range, value: Tensor, scale: Tensor | None = None) -> None:
        value = value.detach().expand(boxes.batch, count, *value.shape[2:]).clone().requires_grad_()
        found.append(Parameter(node, name, span, value, torch.zeros_like(value), torch.zeros_like(value), scale))

    for node in question.index.ancestors(objective.node):
        if node in cuts:
            known = first.multipliers.get(node, cuts[node].map(torch.zeros_like))
            for name, value, scale in zip((AT_LEAST, AT_MOST), known, cuts[node], strict=True):
                add(node, name, MULTIPLIER, value, scale)
        if node.inputs and not node.op.affine:
            relaxation = question.relaxations.of(node, boxes, rules)
            for name, default in relaxation.parameters().items():
                if name in fixed.get(node, {}):
                    continue
                add(node, name, relaxation.ranges[name], first.parameters.get(node, {}).get(name, default))
    return found


class Optimised(NamedTuple):
    """The result of an ascent."""

    bound: Tensor
    """(batch, S): the best bound of every objective"""
    choice: Choice
    """the parameters and multipliers of the objectives that were not dropped: the last values, or with `Beginning.best`
    those of the best bound"""
    passes: int
    """how many bounds of an objective were computed on the way"""


@dataclasses.dataclass(frozen=True, eq=False)
class Goal:
    """When an objective is settled, so that the ascent need not go on with it."""

    above: float | Tensor
    """an objective is settled once its bound is above this: a number, or (batch, S)"""
    ceiling: Tensor | None = None
    """(batch, S): values that the objectives take at known inputs of the set; an objective whose ceiling is not above
    the goal is hopeless, and settled from the start"""


@dataclasses.dataclass(frozen=True, eq=False)
class Beginning:
    """Where an ascent starts."""

    known: Tensor | None = None
    """(batch, S): lower bounds that are known already"""
    choice: Choice | None = None
    """the parameters and multipliers to start from; None: the defaults"""
    cuts: Mapping[Node, Multipliers] = dataclasses.field(default_factory=dict)
    """the nodes whose boxes get multipliers; for each side not the multiplier itself but the scale of its steps, 0
    where it does not move"""
    best: bool = False
    """return the parameters of the best bound instead of the last ones"""
    fixed: Choice = dataclasses.field(default_factory=Choice)
    """parameters that are not optimised, with their values (batch or 1, S or 1, ...); the choice that is returned does
    not contain them"""


def ascend(
    question: Question,
    boxes: Boxes,
    objective: Objective,
    rules: Rules,
    ascent: Ascent,
    goal: Goal | None = None,
    beginning: Beginning | None = None,
) -> Optimised:  # seven parameters: five as of a pass, then length, goal and start
    """Optimise the bounds of dense objectives (batch, S, *shape) on a node.

    The bounds returned are the best ones seen, and not less than `beginning.known`.
    """
    begin = time.perf_counter()
    beginning = beginning or Beginning()
    rules = dataclasses.replace(rules, free=True)
    free = free_parameters(question, boxes, objective, rules, beginning)
    objectives = objective.coefficients.A

    def bounded(which: Tensor, used: Rules, choice: Choice) -> Tensor:
        choice = choice.beside(beginning.fixed)
        return lower_bound(question, boxes, Objective.dense(objective.node, _take(objectives, which)), used, choice)

    with torch.no_grad():
        first = Choice() if beginning.choice is None else _choice(free)
        best = lower_bound(question, boxes, objective, rules, first.beside(beginning.fixed))
    if beginning.known is not None:
        best = torch.maximum(best, beginning.known)
    hopeless = torch.zeros_like(best, dtype=torch.bool)
    if goal is not None and goal.ceiling is not None:
        hopeless = goal.ceiling <= goal.above
    active = torch.arange(best.shape[1], device=best.device).expand_as(best)  # the objective at each position
    trend = _Trend(best, -torch.inf if goal is None else goal.above) if ascent.trend else None
    settled, passes = False, best.numel()
    for count in range(ascent.steps if free and active.shape[1] else 0):
        if count % DROP_EVERY == 0:
            if goal is not None:
                settled = not bool(_open(best, active, hopeless, goal.above).any())
                if settled:  # the last objectives are not dropped, so that their parameters are returned
                    break
                active, free = _unsettled(best, active, free, hopeless, goal.above)
            if trend is not None and bool(trend.without_future(ascent, count).gather(1, active).all()):
                break
        if ascent.seconds is not None and time.perf_counter() - begin > ascent.seconds:
            break
        question.clock.tell("ascent", count, ascent.steps)
        with torch.enable_grad():
            found = bounded(active, rules, _choice(free))
            passes += found.numel()
            if not found.requires_grad:  # the bound depends on no free parameter
                break
            torch.where(found.isfinite(), found, torch.zeros_like(found)).sum().backward()
        if beginning.best:
            _remember(free, found.detach() > best.gather(1, active))
        best = _better(best, found.detach(), active)
        if trend is not None:
            trend.note(found.detach(), active)
        for parameter in free:
            parameter.step(ascent.step_size * ascent.decay**count, count + 1)
    if free and active.shape[1] and not settled:
        with torch.no_grad():
            found = bounded(active, dataclasses.replace(rules, sums=ascent.sums), _choice(free))
            passes += found.numel()
            if beginning.best:
                _remember(free, found > best.gather(1, active))
            best = _better(best, found, active)
    return Optimised(best, _choice(free, best=beginning.best).map(torch.Tensor.detach), passes)


class _Trend:
    """How the bounds of an ascent rise from step to step, apart from any bound known before it."""

    def __init__(self, known: Tensor, above: float | Tensor) -> None:
        self.wanted = torch.maximum(known, torch.as_tensor(above, dtype=known.dtype, device=known.device))
        """(batch, S): the value that a bound has to exceed to be useful: the goal, or the bound known before if that is
        larger"""
        self.own = torch.full_like(known, -torch.inf)
        """(batch, S): the best bounds of the ascent itself so far"""
        self.before = self.own
        """`own` as it was DROP_EVERY steps ago"""

    def note(self, found: Tensor, active: Tensor) -> None:
        """Take in the bounds of one step for the objectives at `active`, (batch, fewer)."""
        self.own = _better(self.own, found, active)

    def without_future(self, ascent: Ascent, count: int) -> Tensor:
        """(batch, S) bool: objectives whose bounds, by their trend, would not exceed `wanted` even with HOPE times the
        gain.

        The gain of the last DROP_EVERY steps is assumed to shrink as the steps do, by `decay` each. To be called every
        DROP_EVERY steps; before the share `patience` of the steps is over, all entries are False.
        """
        gain, self.before = self.own - self.before, self.own
        if count < ascent.patience * ascent.steps:
            return torch.zeros_like(self.own, dtype=torch.bool)
        left = ascent.steps - count
        shrink = ascent.decay
        weight = float(left) if shrink == 1 else (1 - shrink**left) / (1 - shrink)
        return self.own + HOPE * gain * weight / DROP_EVERY < self.wanted


class AscendedEntries:
    """The parameters with which the entries of a node's box were bounded (`ascended_box`)."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.parts: list[tuple[Tensor, Choice]] = []
        """pairs of the flat indices (E,) of some entries, and the choice for them, (batch, 2 E, ...): first for the
        lower ends, then for the upper ends"""


def ascended_box(
    question: Question,
    boxes: Boxes,
    node: Node,
    rules: Rules,
    ascent: Ascent,
    kept: AscendedEntries | None = None,
) -> Interval:
    """The box of a node with an ascent for each entry that some op wants tighter, rounded outward.

    `kept` receives the parameters.
    """
    lower, upper = (end.expand(question.batch, *node.shape).flatten(1).clone() for end in boxes[node])
    for rows, A in unit_objectives(question, node, None, undecided(question, boxes, node)):
        objective = Objective.dense(node, torch.cat([A, -A], 1))
        done = ascend(question, boxes, objective, rules, ascent, None, Beginning(best=kept is not None))
        if kept is not None:
            kept.parts.append((rows, done.choice))
        found = done.bound - _rounding(question, boxes, objective, rules, done.choice)
        low, high = found[:, : len(rows)], -found[:, len(rows) :]
        lower[:, rows] = torch.maximum(lower[:, rows], low)
        upper[:, rows] = torch.minimum(upper[:, rows], high)
    return Interval(lower.reshape(question.batch, *node.shape), upper.reshape(question.batch, *node.shape))


def _rounding(question: Question, boxes: Boxes, objective: Objective, rules: Rules, choice: Choice) -> Tensor | float:
    """By how much a box that comes from this pass is widened to allow for rounding (tolerances.OUTWARD), (batch, S)."""
    share = OUTWARD[question.dtype]
    if share == 0:
        return 0.0
    free = dataclasses.replace(rules, free=True)
    with torch.no_grad():
        size = backward(question, boxes, objective, free, choice, Wanted(size=True)).size
    return 0.0 if size is None else share * size


def _open(best: Tensor, active: Tensor, hopeless: Tensor, goal: float | Tensor) -> Tensor:
    """Which of the objectives at `active`, (batch, fewer), are not settled."""
    return ((best <= goal) & ~hopeless).gather(1, active)


def _unsettled(
    best: Tensor, active: Tensor, free: list[Parameter], hopeless: Tensor, goal: float | Tensor
) -> tuple[Tensor, list[Parameter]]:
    """The indices and parameters of the objectives that are not settled.

    Every input keeps as many objectives as the input with most unsettled ones has, so that the batch stays rectangular.
    """
    still = _open(best, active, hopeless, goal)
    most = int(still.sum(1).max())
    if most == active.shape[1]:
        return active, free
    index = still.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    return active.gather(1, index), [parameter.take(index) for parameter in free]


def _choice(free: list[Parameter], best: bool = False) -> Choice:
    """The parameters' present values, or with `best` those of the best bound."""
    parameters: dict[Node, dict[str, Tensor]] = {}
    sides: dict[Node, dict[str, Tensor]] = {}
    for parameter in free:
        value = parameter.value if not best or parameter.best is None else parameter.best
        home = parameters if parameter.scale is None else sides
        home.setdefault(parameter.node, {})[parameter.name] = value
    multipliers = {node: Multipliers(values[AT_LEAST], values[AT_MOST]) for node, values in sides.items()}
    return Choice(parameters, multipliers)


def _remember(free: list[Parameter], better: Tensor) -> None:
    for parameter in free:
        parameter.remember(better)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """The entries of x (batch, S, ...) at index (batch, fewer) of its second dimension."""
    rest = x.shape[2:]
    spread = index.reshape(*index.shape, *[1] * len(rest)).expand(*index.shape, *rest)
    return x.expand(index.shape[0], *x.shape[1:]).gather(1, spread)


def _better(best: Tensor, found: Tensor, active: Tensor) -> Tensor:
    """The best bounds with those of one step, `found` (batch, fewer), taken in at `active`.

    A NaN in `found` changes nothing; an objective whose bound was NaN at the start keeps NaN.
    """
    old = best.gather(1, active)
    new = torch.where(found.isnan(), old, torch.maximum(old, found))
    return best.scatter(1, active, new)
