"""Evaluation of points in a property's boxes: the lowest violations so far, and when to ask for a confirmation.

Invariant: every point lies in its case's box; recorded violations only decrease, and each was observed at the input
that is recorded with it.

The violation of a conjunction at a point is its largest Σ c·y − d; at a counterexample it is at most 0. A target is one
conjunction of one case, and its slot is the conjunction's index. Points go through the network as (rows, points,
inputs): a row belongs to a case, or to one of its targets, and every point counts for all conjunctions of its case.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.bounds.memory import Memory
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, NotEnoughMemoryError
from vertex_softmax.foundation.tolerances import VIOLATION
from vertex_softmax.graph.ir import Graph
from vertex_softmax.search.replay import Counterexample, rounded_down
from vertex_softmax.specs.property import Property

Confirm: TypeAlias = Callable[[NDArray[np.floating]], Counterexample | None]

BATCH_SECONDS = 0.1
"""The duration of a batch that `Pace` aims at."""
POINTS = 1024
"""The points of a batch if its size is fixed."""
MOST = 4096
"""The most points of a batch."""
NUMBERS = 2**27
"""The most numbers of a batch: its inputs and the values of all nodes."""
ALIVE = 6
"""How many numbers are in memory for each number of a batch: values, gradients, and what the gradient needs."""
ASKS = 4
"""The most calls of `confirm` after one batch."""


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """The result of a search: violations[t] is the lowest observed violation of targets[t] = (case, conjunction).

    It was observed at inputs[t], which lies in the case's box; inf if the target was not visited, or was always NaN.
    """

    counterexample: Counterexample | None
    targets: tuple[tuple[int, int], ...]
    violations: NDArray[np.floating]
    """(targets,)"""
    inputs: NDArray[np.floating]
    """(targets, inputs)"""
    visited: int
    """How many points went through the network."""


def boxes(prop: Property, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """The ends (cases, inputs) of each case's box, rounded inward to the search's precision.

    dtype None: float32, or float64 if an interval contains no float32.
    """
    if dtype not in (None, torch.float32, torch.float64):
        raise InvalidTypeError(f"dtype is {dtype}; the search is in torch.float32 or torch.float64")
    shape = (len(prop.cases), prop.inputs)
    outer = [np.array([getattr(c, end) for c in prop.cases]).reshape(shape) for end in ("lower", "upper")]
    inner = [np.array([getattr(c, f"inner_{end}") for c in prop.cases]).reshape(shape) for end in ("lower", "upper")]
    if not all(np.isfinite(ends).all() for ends in outer):
        raise InvalidValueError("a box of the property is unbounded; every input needs finite ends")
    nonempty = inner[0] <= inner[1]  # where the file's interval has no float64, those just around it are taken
    lower, upper = np.where(nonempty, inner[0], outer[0]), np.where(nonempty, inner[1], outer[1])
    if dtype != torch.float64:
        single = np.dtype(np.float32)
        low, high = -rounded_down(-lower, single), rounded_down(upper, single)
        if (low <= high).all():
            return torch.from_numpy(low), torch.from_numpy(high)
        if dtype == torch.float32:
            raise InvalidValueError("a box has an interval without float32 in it; search in float64")
    return torch.from_numpy(lower), torch.from_numpy(upper)


@dataclasses.dataclass(frozen=True, eq=False)
class Goals:
    """The conjunctions of a property as tensors: inequalities Σ weight·y[index] ≤ limit.

    Padding never matters: a conjunction that does not exist is never true, an inequality that does not exist always.
    """

    index: Tensor
    """(cases, slots, inequalities, terms): the outputs"""
    weight: Tensor
    """(cases, slots, inequalities, terms)"""
    limit: Tensor
    """(cases, slots, inequalities)"""
    real: Tensor
    """(cases, slots): which slots have a conjunction"""

    @staticmethod
    def of(prop: Property, dtype: torch.dtype) -> Goals:
        """The property's conjunctions in floats, each inequality scaled (`Inequality.scaled`)."""
        every = [c for case in prop.cases for c in case.conjunctions]
        slots = max((len(case.conjunctions) for case in prop.cases), default=1)
        rows = max((len(c.inequalities) for c in every), default=1)
        terms = max((len(i.coefficients) for c in every for i in c.inequalities), default=1)
        shape = (len(prop.cases), max(slots, 1), max(rows, 1), max(terms, 1))
        index, weight = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        limit = np.full(shape[:3], -np.inf)  # padding: a conjunction that is never true
        for i, case in enumerate(prop.cases):
            for j, conjunction in enumerate(case.conjunctions):
                limit[i, j] = np.inf  # padding: inequalities that are always true
                for k, inequality in enumerate(conjunction.inequalities):
                    row = inequality.scaled(dtype)
                    limit[i, j, k] = row.limit
                    for m, (output, a) in enumerate(row.coefficients.items()):
                        index[i, j, k, m], weight[i, j, k, m] = output, a
        counts = np.array([len(case.conjunctions) for case in prop.cases], dtype=np.int64)
        real = torch.from_numpy(np.arange(shape[1]) < counts[:, None])
        weights, limits = (torch.from_numpy(a).to(dtype) for a in (weight, limit))
        return Goals(index=torch.from_numpy(index), weight=weights, limit=limits, real=real)

    def terms(self, y: Tensor, case: Tensor) -> Tensor:
        """The terms weight·y: outputs y (rows, points, outputs) → (rows, points, slots, inequalities, terms)."""
        index, weight = self.index[case], self.weight[case]
        flat = index.flatten(1)[:, None].expand(-1, y.shape[1], -1)
        return y.gather(2, flat).reshape(*y.shape[:2], *index.shape[1:]) * weight[:, None]


class Pace:
    """The number of points of a batch: adapted so that a batch takes BATCH_SECONDS, or fixed."""

    def __init__(self, adapt: bool, most: int) -> None:
        self.adapt, self.most = adapt, max(1, most)
        self.size = min(4 if adapt else POINTS, self.most)

    def note(self, points: int, seconds: float) -> None:
        """Record the duration of a batch."""
        if self.adapt and (seconds > BATCH_SECONDS or 2 * points >= self.size):  # small batches measure only overhead
            fit = int(points * BATCH_SECONDS / max(seconds, 1e-9))
            self.size = max(1, min(fit, 4 * self.size, self.most))


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """The evaluation of a batch of points."""

    x: Tensor
    """(rows, points, inputs): the points, clamped to their boxes"""
    value: Tensor
    """(rows, points): the violation of each point's own target"""
    gradient: Tensor
    """(rows, points, inputs): the gradient of `value`; 0 if it was not requested"""
    y: Tensor
    """(rows, points, outputs)"""


class Visits:
    """The lowest violations so far, and the points at which they were observed; every point goes through `visit`."""

    def __init__(
        self, graph: Graph, prop: Property, confirm: Confirm, box: tuple[Tensor, Tensor], seed: int, *, adapt: bool
    ) -> None:
        self.lower, self.upper = box
        self.graph, self.confirm = graph.to(self.lower.dtype), confirm
        self.width = self.upper - self.lower
        self.centre = torch.minimum(self.lower + self.width / 2, self.upper)
        self.goals = Goals.of(prop, self.lower.dtype)
        cases, self.any = self.goals.real.shape  # slot `any` stands for the conjunction with the lowest violation
        self.best = torch.full((cases, self.any), torch.inf, dtype=self.lower.dtype)
        self.where = self.centre[:, None].repeat(1, self.any, 1)
        self.near, self.ask_below = torch.zeros_like(self.best), self.best.clone()
        self.asked: dict[tuple[int, int], int] = {}
        self.generator = torch.Generator().manual_seed(seed)
        values = sum(math.prod(node.shape) for node in graph.nodes()) + 16 * prop.inputs
        self.numbers, self.adapt = values + 4 * math.prod(self.goals.index.shape[1:]), adapt
        self.pace = {gradient: Pace(adapt, min(MOST, NUMBERS // self.numbers)) for gradient in (False, True)}
        self.visited = 0
        self.counterexample: Counterexample | None = None

    def limit(self, memory: Memory) -> None:
        """Let no batch have more points than fit into the memory; raises NotEnoughMemoryError if none does."""
        if memory.total is None:
            return
        need = ALIVE * self.numbers * self.lower.element_size()
        if text := memory.refusal("an attack on one point", need):
            raise NotEnoughMemoryError(text)
        most = min(MOST, NUMBERS // self.numbers, memory.total // need)
        self.pace = {gradient: Pace(self.adapt, most) for gradient in (False, True)}

    def result(self) -> Found:
        """The result so far."""
        case, slot = self.goals.real.nonzero(as_tuple=True)
        targets = tuple(zip(case.tolist(), slot.tolist(), strict=True))
        inputs, violations = self.where[case, slot], self.best[case, slot]
        return Found(
            counterexample=self.counterexample,
            targets=targets,
            violations=violations.numpy(),
            inputs=inputs.numpy(),
            visited=self.visited,
        )

    def visit(self, case: Tensor, x: Tensor, own: Tensor, *, blend: Tensor | None = None) -> Seen:
        """Record the violations at x (rows, points, inputs), clamped to the boxes of `case` (rows,).

        own (rows, points): the slot whose violation is a point's value; `any` means the lowest. With blend (points,)
        gradients are computed: where it is true, of the sum of all positive terms Σ c·y − d, else of the largest.
        """
        begin = time.perf_counter()
        rows, points = x.shape[:2]
        x = self.inside(case, x).detach()
        x.requires_grad_(blend is not None)
        with torch.set_grad_enabled(blend is not None):
            y = self.graph.evaluate(x.reshape(rows * points, *self.graph.input.shape)).reshape(rows, points, -1)
            parts = self.goals.terms(y, case).sum(-1) - self.goals.limit[case][:, None]
            worst = parts.amax(-1).nan_to_num(torch.inf, torch.inf, -torch.inf)
            slot = torch.where(own == self.any, worst.argmin(-1), own)[..., None]
            value = worst.gather(2, slot)[..., 0]
            gradient = torch.zeros_like(x)
            if blend is not None:
                mine = parts.gather(2, slot[..., None].expand(-1, -1, 1, parts.shape[3]))[:, :, 0]
                total = torch.where(blend & (value > 0), mine.clamp(min=0).sum(-1), mine.amax(-1))
                found = torch.autograd.grad(total.sum(), x, allow_unused=True)[0] if total.requires_grad else None
                gradient = gradient if found is None else found.nan_to_num(0.0, 0.0, 0.0)
        x, worst = x.detach(), worst.detach()
        self._record(case, x, worst)
        self.visited += rows * points
        self.pace[blend is not None].note(rows * points, time.perf_counter() - begin)
        self.ask()
        return Seen(x=x, value=value.detach(), gradient=gradient, y=y.detach())

    def _record(self, case: Tensor, x: Tensor, worst: Tensor) -> None:
        """Lower `best` to worst (rows, points, slots) where that is lower; several rows may have the same case."""
        lowest, point = worst.min(1)
        before = self.best[case]
        self.best.scatter_reduce_(0, case[:, None].expand_as(lowest), lowest, "amin")
        row, slot = ((lowest < before) & (lowest == self.best[case])).nonzero(as_tuple=True)
        self.where[case[row], slot] = x[row, point[row, slot]]

    def measure_rounding(self, case: Tensor, y: Tensor) -> None:
        """Set the violation that may be rounding for the targets of `case` (rows,), from outputs (rows, 1, outputs)."""
        size = self.goals.terms(y, case).abs().sum(-1)[:, 0] + self.goals.limit[case].abs()
        self.near[case] = VIOLATION * size.nan_to_num(0.0, 0.0, 0.0).amax(-1)

    def pending(self) -> list[tuple[int, int]]:
        """The targets whose lowest violation may be a counterexample that `confirm` has not judged yet."""
        found = ((self.best <= self.near) & (self.best < self.ask_below)).nonzero().tolist()
        return [(i, j) for i, j in found]

    def ask(self) -> None:
        """Call `confirm` for pending targets, those with the fewest calls first, then those with the lowest violation.

        A target is asked about again only when its violation has become clearly lower.
        """
        if self.counterexample is not None:
            return
        for target in heapq.nsmallest(ASKS, self.pending(), lambda t: (self.asked.get(t, 0), float(self.best[t]))):
            lowest = float(self.best[target])
            self.asked[target] = self.asked.get(target, 0) + 1
            self.ask_below[target] = lowest if lowest <= 0 else lowest / 2
            self.counterexample = self.confirm(self.where[target].numpy().copy())
            if self.counterexample is not None:
                return

    def inside(self, case: Tensor, x: Tensor) -> Tensor:
        """x (rows, points, inputs) clamped to the boxes of `case` (rows,)."""
        return torch.minimum(torch.maximum(x, self.lower[case][:, None]), self.upper[case][:, None])

    def rand(self, *shape: int) -> Tensor:
        """Uniform random numbers in [0, 1) of this shape, from the search's own generator."""
        return torch.rand(shape, generator=self.generator, dtype=self.lower.dtype)
