"""Linear bound propagation backward (CROWN): objectives on a node become linear bounds in the input.

Invariant: for every input x of the set, Σ A·node(x) ≥ constant + Σ coefficients·x, to rounding.

`backward` is a pure function of boxes, objectives, rules and choice. It uses of an op only what ops/contract.py
promises, and of the input set only its middle, to which `Step.start` refers. `lower_bound` then asks the set for the
least value of the linear bound (`Region.support`).
"""

from __future__ import annotations

import dataclasses
import math
import time

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes, NodeReach
from vertex_softmax.bounds.choice import DEFAULT, Choice, Multipliers
from vertex_softmax.bounds.coefficients import Coefficients, Objective, fitting, hand_on, total
from vertex_softmax.bounds.linear import LinearBound, PassStep
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.contract import Step
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules
from vertex_softmax.ops.tensors import sum_to

ROWS = "softmax rows"
"""The name of the stage to which the time spent in attention ops is added."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a pass shall return besides the linear bounds."""

    columns: int = 0
    """under parallel rules: the largest number of unknowns of single ops that are returned apart; all others are added
    to the error"""
    size: bool = False
    """whether to compute `LinearBound.size`"""
    steps: bool = False
    """whether to return `LinearBound.steps`"""


BOUND_ALONE = Wanted()


class _Sums:
    """The sums that a pass accumulates; together they make its `LinearBound`."""

    def __init__(self, like: Tensor, objectives: int, columns: int) -> None:
        self.constant = torch.zeros(like.shape[0], objectives, dtype=like.dtype, device=like.device)
        self.coefficients: Tensor | None = None
        self.error: Tensor | None = None
        self.noise: list[Tensor] = []
        self.size: Tensor | None = None
        self.numbers = 0
        self.reached: Tensor | None = None
        self.columns = columns

    def add_constant(self, constant: Tensor) -> None:
        self.constant = self.constant + constant.flatten(1)

    def add_coefficients(self, coefficients: Tensor) -> None:
        self.coefficients = coefficients if self.coefficients is None else self.coefficients + coefficients

    def add_error(self, error: Tensor) -> None:
        self.error = error.flatten(1) if self.error is None else self.error + error.flatten(1)

    def add_noise(self, noise: Tensor) -> None:
        """Add the noise of one op, (batch, S, columns): apart while at most `columns` are apart in all, else to the
        error.
        """
        if sum(part.shape[-1] for part in self.noise) + noise.shape[-1] <= self.columns:
            self.noise.append(noise)
        else:
            self.add_error(noise.abs().sum(-1))

    def add_size(self, parts: list[Coefficients], reach: NodeReach) -> None:
        """Add Σ |coefficients|·|box| of one node to the size, and note what underflow may take from its coefficients.

        A coefficient is a sum of at most as many products as the network has numbers, and each may lose the least
        normal number. That times the box is how far the bound may be off, whatever the coefficients are.
        """
        largest = reach.each.unsqueeze(1)
        for part in parts:
            terms = sum_to(part.A.abs() * largest, part.diagonal).flatten(1)
            self.size = terms if self.size is None else self.size + terms
        self.numbers += math.prod(reach.each.shape[1:])
        self.reached = reach.total if self.reached is None else self.reached + reach.total

    def whole_size(self) -> Tensor | None:
        """The size, with what underflow may have taken from the coefficients of all nodes; (batch, S).

        It is divided by the precision, so that the shares of the size that cover rounding cover it too.
        """
        if self.size is None or self.reached is None:
            return None
        info = torch.finfo(self.constant.dtype)
        return self.size + (self.numbers * (info.tiny / info.eps) * self.reached).unsqueeze(1)

    def add_step(self, step: Step, given: Coefficients, question: Question) -> None:
        """Add what one op's step contributes besides the coefficients on the op's inputs."""
        if step.constant is not None:
            self.add_constant(step.constant)
        if step.error is not None:
            self.add_error(step.error)
        if step.noise is not None:
            self.add_noise(Coefficients(step.noise, given.diagonal).dense().flatten(2))
        if step.start is not None:  # Step.start multiplies start − centre of the set
            centre = question.region.middle.flatten(1).unsqueeze(-1)
            self.add_constant(-(step.start @ centre).squeeze(-1))
            self.add_coefficients(step.start.reshape(*step.start.shape[:2], *question.index.start.shape))


def backward(
    question: Question,
    boxes: Boxes,
    objective: Objective,
    rules: Rules,
    choice: Choice = DEFAULT,
    wanted: Wanted = BOUND_ALONE,
) -> LinearBound:
    """Linear functions of the input that bound the objectives on a node from below, with the given choice."""
    index, coefficients = question.index, objective.coefficients
    waiting: dict[Node, list[Coefficients]] = {objective.node: [coefficients]}
    sums = _Sums(coefficients.A, coefficients.objectives, wanted.columns)
    used: dict[Node, Multipliers] = {}
    steps: list[PassStep] = []
    for node in reversed(index.nodes[: index.position[objective.node] + 1]):
        parts = waiting.pop(node, None)
        if parts is None:
            continue
        question.clock.check()
        if node in choice.multipliers:
            used[node] = _apply_multipliers(choice, node, parts, boxes[node], sums)
        if wanted.size:
            sums.add_size(parts, _reach(question, boxes, node))
        if node is index.start:
            sums.add_coefficients(total(parts).dense())
        elif isinstance(node.op, Constant):
            sums.add_constant((total(parts).dense() * node.op.value).flatten(2).sum(-1))
        else:
            for given in fitting(node, parts):
                step = _step(question, boxes, node, given, rules, choice)
                hand_on(step, node, given, waiting)
                sums.add_step(step, given, question)
                if wanted.steps and not node.op.affine:
                    steps.append(PassStep(node, given, step))
    return LinearBound(
        constant=sums.constant,
        coefficients=sums.coefficients,
        error=sums.error,
        noise=tuple(sums.noise),
        size=sums.whole_size(),
        multipliers=used,
        steps=tuple(steps),
    )


def lower_bound(
    question: Question,
    boxes: Boxes,
    objective: Objective,
    rules: Rules,
    choice: Choice = DEFAULT,
    *,
    outward: bool = False,
) -> Tensor:
    """A lower bound of each objective over the input set, (batch, S) or with diagonal coefficients (batch, S · n).

    `outward`: subtract what the pass may have rounded (tolerances.OUTWARD).
    """
    share = OUTWARD[question.dtype]
    outward = outward and share > 0
    bound = backward(question, boxes, objective, rules, choice, Wanted(size=outward))
    if outward and bound.size is not None:
        bound = dataclasses.replace(bound, constant=bound.constant - share * bound.size)
    return bound.least(question.region)


def _reach(question: Question, boxes: Boxes, node: Node) -> NodeReach:
    """How large the numbers of a node are, and the terms that its relaxation adds up beside the pass."""
    reach, terms = boxes.reach(node), question.relaxations.terms(node, boxes)
    return reach if terms is None else NodeReach(torch.maximum(reach.each, terms), reach.total)


def _step(question: Question, boxes: Boxes, node: Node, given: Coefficients, rules: Rules, choice: Choice) -> Step:
    """What the node's op makes of the coefficients `given` on its output."""
    begin = time.perf_counter()
    relaxation = question.relaxations.of(node, boxes, rules)
    values = choice.parameters.get(node)
    if values:
        relaxation = relaxation.with_parameters(values)
    step = relaxation.backward(given.A, given.diagonal)
    if isinstance(node.op, Attention):
        question.clock.add(ROWS, begin)
    return step


def _apply_multipliers(
    choice: Choice, node: Node, parts: list[Coefficients], box: Interval, sums: _Sums
) -> Multipliers:
    """Add the terms of a box's multipliers to its node's coefficients and to the constant; return the multipliers."""
    arrived = total(parts).dense() if node in choice.targets else None
    sides = choice.multipliers_at(node, arrived)
    least, most = sides
    parts.append(Coefficients(most - least))
    constant = least * box.lower.unsqueeze(1) - most * box.upper.unsqueeze(1)
    sums.add_constant(constant.flatten(2).sum(-1))
    return sides
