"""Attack, crown, joint, branch and bound, in this order and within one budget of time: one answer to one property.

Invariant: `unsat` is said only when for every case and every conjunction a bound excludes it over the whole box, by
more than rounding is worth (GUARD); `sat` only with a counterexample that was confirmed by a replay. All else
is `unknown`, or `timeout` if it is the time that was short.

A conjunction C y ≤ d is excluded by one row, or by a mix λ ≥ 0 of rows, with λ·C y > λ·d everywhere.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Walk
from vertex_softmax.bounds.branch_and_bound import Outcome, branch_and_bound
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.foundation.errors import InvalidValueError, OutOfTimeError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bounding import METHODS, Options, lower_bounds, make_boxes
from vertex_softmax.ops.registry import Rules
from vertex_softmax.search.falsify import falsify
from vertex_softmax.search.replay import Counterexample
from vertex_softmax.search.visits import Confirm
from vertex_softmax.sets.rounding import outward
from vertex_softmax.specs.property import Floats, Property

GUARD = {torch.float64: 1e-12, torch.float32: 5e-4}
"""A bound excludes if it is above the limit by this share of all terms of its pass: what rounding may have taken."""
CASCADE = ("attack", "crown", "joint", "bab")
ROWS = 1000
"""Rows of a conjunction whose mix GUARD pays for; of more, as much more."""
MIXING = 40
"""Steps that look for the mix of a conjunction's rows."""


class Status(StrEnum):
    """The competition's words."""

    UNSAT = "unsat"
    SAT = "sat"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"


@dataclasses.dataclass(frozen=True)
class Budget:
    """Seconds in all, and which shares of what is left the attacks may take; the rest is for bounds."""

    seconds: float = 100.0
    first: float = 0.02
    """of the attack before any bound"""
    second: float = 0.15
    """of the attack on what bounds leave open"""
    after: float = 0.1
    """when that begins: after this share was spent on branch and bound, or where that ended before"""
    most: float = 10.0
    """seconds of one attack, at most"""

    def __post_init__(self) -> None:
        if not self.seconds > 0 or math.isinf(self.seconds):
            raise InvalidValueError(f"the time budget is {self.seconds!r} seconds; it must be a number above 0")
        if not (all(0 <= share <= 1 for share in (self.first, self.second, self.after)) and self.most >= 0):
            raise InvalidValueError(f"{self}: shares are from 0 to 1")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is known when the time is over or the question answered."""

    status: Status
    reason: str
    """in words, why"""
    stage: str
    """which decided: attack, crown, joint, bab; empty if none did"""
    counterexample: Counterexample | None
    bounds: tuple[tuple[float, ...], ...]
    """per case and conjunction: the best lower bound of λ·C y − λ·d; excluded if it clears the guard"""
    nearest: float
    """the least violation an attack saw: 0 or less would be a counterexample; inf if there was none"""
    domains: int
    seconds: dict[str, float]


Report = Callable[[str, str], None]
"""A stage, and what is to be said of it."""


def verify(
    graph: Graph,
    prop: Property,
    confirm: Confirm,
    *,
    budget: Budget | None = None,
    method: str = "bab",
    options: Options | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> Answer:
    """Does the property hold of a network? `confirm` replays candidates, on the original model.

    method: how far the cascade goes; one of CASCADE, or a method of METHODS, which is then the only one beside the
    attack.
    """
    if method not in CASCADE and method not in METHODS:
        known = ", ".join(dict.fromkeys((*CASCADE, *METHODS)))
        raise InvalidValueError(f"method is {method!r}; choose one of {known}")
    prop.require(graph.input.shape, graph.output.shape)
    return _Cascade(graph, prop, confirm, budget or Budget(), method, options or Options(), seed, report).run()


class _Found(Exception):  # noqa: N818
    """A counterexample turned up on the way."""

    def __init__(self, counterexample: Counterexample, stage: str) -> None:
        super().__init__(stage)
        self.counterexample, self.stage = counterexample, stage


@dataclasses.dataclass
class _Target:
    """One conjunction of one case, and what is known of it."""

    case: int
    number: int
    C: Tensor
    """(m, *output shape)"""
    d: Tensor
    """(m,)"""
    rows: Tensor
    """(m,): lower bounds of C y − d"""
    best: float = -math.inf
    guard: float = 0.0

    @property
    def excluded(self) -> bool:
        return self.best > self.guard

    def learn(self, bounds: Tensor) -> None:
        """Lower bounds (m,) of C y."""
        known = torch.where(bounds.isfinite(), bounds - self.d, torch.full_like(bounds, -torch.inf))
        self.rows = torch.maximum(self.rows, known)
        self.best = max([self.best, *self.rows.tolist()])


class _Cascade:
    def __init__(
        self,
        graph: Graph,
        prop: Property,
        confirm: Confirm,
        budget: Budget,
        method: str,
        options: Options,
        seed: int,
        report: Report | None,
    ) -> None:
        self.graph, self.prop, self.confirm, self.budget = graph, prop, confirm, budget
        self.method, self.options, self.seed, self.say = method, options, seed, report or (lambda _stage, _text: None)
        self.begin = time.perf_counter()
        self.deadline = self.begin + budget.seconds
        self.dtype, self.device = graph.dtype, graph.device
        self.targets = [
            _Target(i, j, *self._matrix(conjunction.matrix(prop.outputs, self.dtype)))
            for i, case in enumerate(prop.cases)
            for j, conjunction in enumerate(case.conjunctions)
        ]
        self.seconds: dict[str, float] = {}
        self.nearest = math.inf
        self.domains = 0
        self.problem = ""

    def _matrix(self, rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        C, d = (x.to(self.device) for x in rows)
        return C.reshape(-1, *self.graph.output.shape), d, torch.full_like(d, -torch.inf)

    def run(self) -> Answer:
        """All stages, until one decides."""
        stage = ""
        try:
            self._attack("attack", self.budget.first, self.prop)
            for i in range(len(self.prop.cases)):
                stage = self._case(i) or stage
            if not self._open() and self.targets:
                return self._answer(Status.UNSAT, "every conjunction is excluded over its whole box", stage)
        except _Found as found:
            text = "the counterexample was replayed on the original model"
            return self._answer(Status.SAT, text, found.stage, found.counterexample)
        except OutOfTimeError:
            return self._answer(Status.TIMEOUT, self._left(), "")
        late = time.perf_counter() >= self.deadline
        return self._answer(Status.TIMEOUT if late else Status.UNKNOWN, self._left(), "")

    def _left(self) -> str:
        """What is open, in words."""
        open_ = self._open()
        worst = min((target.best for target in open_), default=math.nan)
        said = f"{len(open_)} of {len(self.targets)} conjunctions are open, the worst bound is {worst:.6g}"
        return f"{said}; {self.problem}" if self.problem else said

    def _open(self, case: int | None = None) -> list[_Target]:
        return [t for t in self.targets if not t.excluded and case in (None, t.case)]

    def _answer(self, status: Status, reason: str, stage: str, found: Counterexample | None = None) -> Answer:
        bounds = tuple(tuple(t.best for t in self.targets if t.case == i) for i in range(len(self.prop.cases)))
        seconds = {**self.seconds, "total": time.perf_counter() - self.begin}
        return Answer(status, reason, stage, found, bounds, self.nearest, self.domains, seconds)

    def _left_seconds(self) -> float:
        left = self.deadline - time.perf_counter()
        if left <= 0:
            raise OutOfTimeError("the time is spent")
        return left

    def _timed(self, stage: str, begin: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin

    def _attack(
        self, stage: str, share: float, prop: Property, starts: dict[tuple[int, int], Tensor] | None = None
    ) -> None:
        """Look for a counterexample; raises _Found."""
        left = self._left_seconds()
        begin = time.perf_counter()
        seconds = min(share * left, self.budget.most)
        found = falsify(self.graph, prop, self.confirm, seconds=seconds, seed=self.seed, starts=starts)
        self._timed(stage, begin)
        self.nearest = min([self.nearest, *(float(v) for v in found.violations)])
        self.say(stage, f"nearest violation {self.nearest:.4g}")
        if found.counterexample is not None:
            raise _Found(found.counterexample, stage)

    def _case(self, i: int) -> str:
        """Exclude the conjunctions of one case; the stage that excluded the last of them, if one did."""
        case, waiting = self.prop.cases[i], len(self.prop.cases) - i
        if any(len(target.d) == 0 for target in self._open(i)):  # true of every output: any input of the box will do
            return ""
        if self.method == "attack" or not self._open(i):
            return ""
        lower, upper = self._placed(case.lower, -torch.inf), self._placed(case.upper, torch.inf)
        until = time.perf_counter() + self._left_seconds() / waiting
        stages = CASCADE[1 : CASCADE.index(self.method) + 1] if self.method in CASCADE else (self.method,)
        walk: Walk | None = None
        for stage in stages:
            begin = time.perf_counter()
            if stage == "bab":
                self._bound_mixes(walk, i)
                if self._open(i) and walk is not None:
                    self._branch(walk, i, until)
            else:
                walk = Walk(self.graph, lower, upper, memory=self.options.memory)
                walk.deadline = self.deadline
                self._bound(walk, i, stage)
            self._timed(stage, begin)
            open_ = self._open(i)
            self.say(
                stage, f"case {i + 1}: {len(open_)} open, worst {min((t.best for t in open_), default=math.inf):.4g}"
            )
            if not open_:
                return stage
        return ""

    def _placed(self, x: Floats, way: float) -> Tensor:
        """One end of the case's box, (1, *input shape), rounded outward where it must be rounded."""
        moved = outward(torch.from_numpy(np.ascontiguousarray(x)), self.dtype, way)
        return moved.reshape(1, *self.graph.input.shape).to(self.device)

    def _only(self, i: int) -> Property:
        return dataclasses.replace(self.prop, cases=(self.prop.cases[i],))

    def _bound(self, walk: Walk, i: int, stage: str) -> None:
        """Bounds of every row of the case's open conjunctions by one method."""
        open_ = self._open(i)
        C = torch.cat([target.C for target in open_]).unsqueeze(0)
        with torch.no_grad():
            if stage == "joint" and self.method == "bab":  # its ascent is the root of branch and bound
                make_boxes(walk, METHODS["joint"].boxes, self.options, tightened=True)
                found = [
                    walk.bound(self.graph.output, Part(C), Rules(attention=rule, sums=True))
                    for rule in ("affine", "vertex")
                ]
                bounds = torch.maximum(*found)
            else:
                bounds = lower_bounds(walk, C, stage, self.options)
        if walk.problems:
            self.problem = f"{walk.problems[0].text} at {walk.problems[0].node.name!r}; a smaller set may help"
            return
        for target, rows in zip(open_, bounds[0].split([len(t.d) for t in open_]), strict=True):
            target.guard = max(target.guard, guard(walk, target.C, target.d))
            target.learn(rows)

    def _bound_mixes(self, walk: Walk | None, i: int) -> None:
        """For conjunctions of several rows, the mix that promises most becomes a row of its own."""
        if walk is None or walk.problems:
            return
        for target in self._open(i):
            if len(target.d) > 1:
                weights = mix(walk, target.C, target.d)
                lost = float(weights @ terms(walk, target.C, target.d))
                target.C = torch.cat([target.C, torch.tensordot(weights, target.C, 1).unsqueeze(0)])
                target.d = torch.cat([target.d, (weights @ target.d).unsqueeze(0)])
                target.rows = torch.cat([target.rows, torch.full_like(target.rows[:1], -torch.inf)])
                lost *= max(1.0, len(weights) / ROWS)
                mixed = GUARD[self.dtype] * lost if math.isfinite(lost) else math.inf
                target.guard = max(target.guard, mixed, guard(walk, target.C, target.d))
                with torch.no_grad():
                    target.learn(
                        walk.bound(self.graph.output, Part(target.C.unsqueeze(0)), Rules(attention="affine"))[0]
                    )

    def _branch(self, walk: Walk, i: int, until: float) -> None:
        """Branch and bound on the best row of every open conjunction."""
        open_ = self._open(i)
        if walk.problems or not open_:
            return
        rows = [int(target.rows.argmax()) for target in open_]
        C = torch.stack([target.C[row] for target, row in zip(open_, rows, strict=True)])
        d = torch.stack([target.d[row] for target, row in zip(open_, rows, strict=True)])
        guards = d.new_tensor([target.guard for target in open_])
        known = d + d.new_tensor([target.best for target in open_])
        seconds = max(0.0, min(until, self.deadline) - time.perf_counter())
        search = dataclasses.replace(self.options.search, seconds=seconds)

        def accept(point: Tensor, _objective: int) -> bool:
            found = self.confirm(point.detach().cpu().double().reshape(-1).numpy())
            if found is not None:
                raise _Found(found, "bab")
            return False

        share = self.budget.second / (len(self.prop.cases) - i)
        again = [time.perf_counter() + self.budget.after * seconds]  # once

        def progress(worst: float, count: int, bounded: int) -> None:
            self.say("bab", f"{bounded} domains, {count} open, worst {worst:.4g}")
            if again and count and time.perf_counter() > again[0]:
                again.clear()
                self._attack("attack again", share, self._only(i))

        rules = Rules(attention="affine", pieces=self.options.pieces)
        outcome: Outcome = branch_and_bound(
            walk, C, rules, search, known=known, goals=d + guards, accept=accept, progress=progress
        )
        self.domains += outcome.domains
        for target, bound, limit in zip(open_, outcome.bound.tolist(), d.tolist(), strict=True):
            target.best = max(target.best, bound - limit)
        if outcome.stopped not in ("done", "seconds"):
            self.problem = f"branch and bound ended: {outcome.stopped}"
        if again and self._open(i):
            self._attack("attack again", share, self._only(i))


def guard(walk: Walk, C: Tensor, d: Tensor) -> float:
    """How far above its limit a bound has to be, for rows C (m, *shape) and limits d (m,).

    GUARD of the terms of a row, Σ |C_k|·|y_k| + |d| and those further back, pays for what a pass rounds, and for what
    was rounded before it: a coefficient is off by 2^-53 of itself (2^-24 in float32), so C y by 2^-53·Σ |C_k|·|y_k|,
    a ten-thousandth of GUARD's share; limits are rounded up and need nothing (`Inequality.scaled`). A mix λ·C, λ·d of
    m rows is off by (m + 1)·2^-53·Σ λ_i·(Σ_k |C_ik|·|y_k| + |d_i|), which may be far more than its own terms where the
    rows cancel: whoever mixes pays GUARD of the rows' terms, mixed (`_bound_mixes`).
    """
    largest = float(terms(walk, C, d).max())
    return GUARD[C.dtype] * largest if math.isfinite(largest) else math.inf


def terms(walk: Walk, C: Tensor, d: Tensor) -> Tensor:
    """The sum of the absolute values of all terms of a pass, for rows C (m, *shape) with limits d (m,): (m,)."""
    with torch.no_grad():
        size = walk.back(walk.graph.output, Part(C.unsqueeze(0)), Rules(attention="affine"), sizes=True).size
    return d.abs() if size is None else size[0] + d.abs()


def mix(walk: Walk, C: Tensor, d: Tensor) -> Tensor:
    """Weights λ ≥ 0, Σ λ = 1 over normed rows (m,), by ascent on the bound of λ·C y − λ·d."""
    sizes = C.abs().flatten(1).sum(-1)
    sizes = torch.where(sizes > 0, sizes, torch.ones_like(sizes))
    theta = torch.zeros_like(d, requires_grad=True)
    best, found = -math.inf, torch.full_like(d, 1 / len(d)) / sizes
    optimiser = torch.optim.Adam([theta], lr=0.3)
    for _ in range(MIXING):
        with torch.enable_grad():
            weights = theta.softmax(0) / sizes
            objective = torch.tensordot(weights, C, 1).reshape(1, 1, *C.shape[1:])
            bound = walk.bound(walk.graph.output, Part(objective), Rules(attention="affine")).sum() - weights @ d
        value = float(bound.detach())
        if value > best:
            best, found = value, weights.detach()
        if not bound.requires_grad or not bool(bound.isfinite()):
            break
        optimiser.zero_grad()
        (-bound).backward()
        optimiser.step()
    return found
