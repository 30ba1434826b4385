"""Branch and bound on the input: the box of the question is cut into halves, and each is bounded anew.

Invariant: at any time the open boxes and those that were closed cover the box of the question, for every objective.
Bounds of a half are never below those of the box it is a half of. So the least of an objective's bounds over all of
these boxes is a bound over the whole set.

What linear relaxations lose shrinks with the square of a box's edges, in every layer. A split inside of the network
(branch_and_bound.py) leaves all boxes in front of it as they were, and may gain nothing behind norms and attentions; a
half has narrower boxes everywhere. So where few numbers of the input vary, every question whose answer is not within
rounding of its goal ends, given time. With n numbers that vary it takes up to 2^n boxes to halve all edges once, so
that beyond some dozens of numbers it hardly ever ends.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.aims import Aim, Outcome, Stop, Watchers
from vertex_softmax.bounds.backward import backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import DEFAULT
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.promising import promises
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.ops.rules import Rules
from vertex_softmax.sets.region import BoxRegion

LONGEST = 8
"""No edge is halved that is so many times shorter than the longest, each as a share of its first length: then all edges
shrink, however small the slopes along them are."""
FIRST = 256
"""After bounding so many boxes it is asked for the first time what the halving promises."""
AT_ONCE = 16
"""Boxes are halved again before they are bounded, as long as there are no more than so many: together they take hardly
longer than one."""
SHOWN = 3
"""At most how many points of a batch of boxes are shown to `Watchers.accept`."""


class BoundBoxes(NamedTuple):
    """Bounds of objectives over a batch of input boxes, and the boxes of all nodes that they were computed over."""

    lower: Tensor
    """(batch, S): paid for rounding; −inf where there is no bound"""
    boxes: Boxes


MakeBounds = Callable[[Question, Objective], BoundBoxes]
"""Bounds dense objectives (batch, S, *output shape) over all input boxes of a question."""


@dataclasses.dataclass(frozen=True)
class Halves:
    """How far the halving goes."""

    width: int
    """how many boxes are bounded together"""
    patient: bool
    """whether it goes on although its bounds do not promise that it ends within the limits"""
    domains: int
    """how many boxes are bounded at most"""
    bytes: int
    """how much memory the open boxes may take"""


@dataclasses.dataclass(frozen=True, order=True)
class _Half:
    """An open box, in the order in which boxes are taken up: the one that lacks most first."""

    shortfall: float
    """the least of bound − goal over the objectives that are open in it"""
    number: int
    ends: Tensor = dataclasses.field(compare=False)
    """(2, inputs): lower and upper end of each number"""
    lower: Tensor = dataclasses.field(compare=False)
    """(S,): the bounds of all objectives over it"""
    slope: Tensor = dataclasses.field(compare=False)
    """(inputs,): the coefficients of the linear bound of the objective that lacks most"""
    above: float = dataclasses.field(default=math.inf, compare=False)
    """how far that objective is above its goal at the points of the box that were looked at"""


class ClosedBox(NamedTuple):
    """A box in which some objectives were shown to be above their goals, which they were not in the box around it."""

    lower: Tensor
    """(*input shape)"""
    upper: Tensor
    objectives: tuple[int, ...]


class InputHalving:
    """The halving under way, of a question whose set is one box."""

    def __init__(
        self, question: Question, aim: Aim, rules: Rules, make: MakeBounds, limits: Halves, watchers: Watchers
    ) -> None:
        self.question, self.aim, self.rules, self.make = question, aim, rules, make
        self.limits, self.watchers = limits, watchers
        count, like = len(aim.objectives), aim.objectives
        self.goals = like.new_zeros(count) if aim.goals is None else aim.goals
        known = like.new_full((count,), -math.inf) if aim.known is None else aim.known
        self.known = torch.where(known.isnan(), -math.inf, known)
        self.closed = torch.where(self.known > self.goals, self.known, math.inf)
        """by objective: the least bound over the boxes in which it was closed"""
        self.noted: list[ClosedBox] = []
        """what was closed, if somebody wants to know"""
        self.stuck: list[_Half] = []
        """open boxes whose edges have no numbers between their ends"""
        self.waiting: list[_Half] = []
        self.nearest: _Half | None = None
        """an open box that is not among those that wait: of those that were bounded last, the one with the point that
        is nearest to a witness"""
        self.rounds = 0
        self.numbers = itertools.count()
        self.bounded = 0
        self.asked, self.before = FIRST // 2, -math.inf
        self.witness: Tensor | None = None
        self.broken: int | None = None
        whole = torch.stack([end[0].flatten() for end in question.given.box])
        self.first = whole[1] - whole[0]
        """(inputs,): the lengths of the edges of the whole box"""
        if not bool((self.known > self.goals).all()):
            shortfall = float((self.known - self.goals).amin())
            self.waiting = [_Half(shortfall, next(self.numbers), whole, self.known, torch.zeros_like(self.first))]

    def run(self, seconds: float | None) -> Outcome:
        """Halve boxes, the worst first, until none is open or a limit is reached."""
        begin = time.perf_counter()
        ends = [self.question.clock.deadline, None if seconds is None else begin + seconds]
        self.question = self.question.until(min((end for end in ends if end is not None), default=None))
        stopped: Stop | None = None
        try:
            with torch.no_grad():
                while (stopped := self._stopped()) is None:
                    self._advance()
                    self._tell()
        except OutOfTimeError:
            stopped = Stop.SECONDS
        return self._outcome(stopped, time.perf_counter() - begin)

    def _stopped(self) -> Stop | None:
        """Why the halving is to end now; None: it goes on."""
        if self.witness is not None:
            return Stop.WITNESS
        open_ = self._open()
        if not open_:
            return Stop.EXHAUSTED if self.stuck else Stop.DONE
        if self.bounded >= self.limits.domains:
            return Stop.DOMAINS
        half = min(open_[0], open_[-1])  # the worst that waits, and the nearest
        if len(open_) * (half.ends.numel() * 1.5 + half.lower.numel()) * half.ends.itemsize > self.limits.bytes:
            return Stop.MEMORY
        if self.bounded >= self.asked:
            now = half.shortfall
            doublings = math.log2(max(1.0, self.limits.domains / self.asked))
            if not self.limits.patient and self.asked >= FIRST and not promises(self.before, now, doublings):
                return Stop.UNPROMISING
            self.before, self.asked = now, 2 * self.asked
        self.question.clock.check()
        return None

    def _advance(self) -> None:
        """Bound both halves of the worst boxes, which stay what they are if that does not come to its end.

        One of them is the box with the nearest point, and of its halves again that with the nearest, and so on: where a
        margin is hardly below its goal, or is at it, the worst boxes alone lie all along where it is.
        """
        self.rounds += 1
        most = min(self.limits.width, self.limits.domains - self.bounded)
        count = min(len(self.waiting) + (self.nearest is not None), max(1, most // 2))
        taken: list[_Half] = []
        if self.nearest is not None and (count > 1 or not self.waiting or self.rounds % 2):
            taken, self.nearest = [self.nearest], None
        taken += [heapq.heappop(self.waiting) for _ in range(min(len(self.waiting), count - len(taken)))]
        try:
            halves, stuck = self._halved(taken)
            smaller = halves
            while smaller and 2 * len(halves) <= min(AT_ONCE, most):
                smaller, points = self._halved(halves)
                halves = smaller + points  # a box without halves is bounded itself, once
            if halves:
                self._take_in(halves)
        except BaseException:
            for half in taken:
                heapq.heappush(self.waiting, half)
            raise
        self.stuck += stuck

    def _halved(self, boxes: list[_Half]) -> tuple[list[_Half], list[_Half]]:
        """Both halves of each box, one after the other, with what is known of it; and the boxes that have none."""
        ends = torch.stack([box.ends for box in boxes])
        slope = torch.stack([box.slope for box in boxes]).abs().nan_to_num(0.0, 0.0)  # NaN, infinite: not known
        length = ends[:, 1] - ends[:, 0]
        middle = ends[:, 0] + length / 2
        inside = (ends[:, 0] < middle) & (middle < ends[:, 1])
        share = torch.where(inside, length / torch.where(self.first > 0, self.first, torch.ones_like(length)), 0.0)
        long = inside & (share >= share.amax(1, keepdim=True) / LONGEST)
        reach = slope * length
        reach = torch.where(reach.amax(1, keepdim=True) > 0, reach, share)  # without slopes the longest edge
        edges = torch.where(long, reach, -torch.ones_like(reach)).argmax(1).tolist()
        halves: list[_Half] = []
        stuck: list[_Half] = []
        for k, (box, edge, possible) in enumerate(zip(boxes, edges, inside.any(1).tolist(), strict=True)):
            if not possible:
                stuck.append(box)
                continue
            for end in (1, 0):
                cut = box.ends.clone()
                cut[end, edge] = middle[k, edge]
                halves.append(dataclasses.replace(box, ends=cut))
        return halves, stuck

    def _take_in(self, boxes: list[_Half]) -> None:
        """Bound boxes, of which the bounds of what is around them are known, and put down what is open of them."""
        ends, known = torch.stack([box.ends for box in boxes]), torch.stack([box.lower for box in boxes])
        shape = self.question.graph.input.shape
        lower, upper = (end.reshape(len(ends), *shape) for end in (ends[:, 0], ends[:, 1]))
        question = self.question.about(BoxRegion(lower, upper))
        A = self.aim.objectives
        objective = Objective.dense(question.graph.output, A.unsqueeze(0).expand(len(ends), *A.shape))
        made = self.make(question, objective)
        found = torch.maximum(known, torch.where(made.lower.isfinite(), made.lower, -math.inf))
        before, after = ~(known > self.goals), ~(found > self.goals)
        rest = after.any(1).nonzero().flatten()
        short = torch.where(after, found - self.goals, math.inf)[rest]
        open_: list[_Half] = []
        if len(rest):
            worst = short.argmin(1)
            slope = self._slopes(question, made.boxes, A[worst], rest)
            above = self._look_for_witness(lower[rest], upper[rest], slope, worst).tolist()
            for k, (row, lacks) in enumerate(zip(rest.tolist(), short.amin(1).tolist(), strict=True)):
                along = slope[k].flatten()
                open_.append(_Half(lacks, next(self.numbers), ends[row], found[row], along, above[k]))
        self.bounded += len(ends)  # from here on nothing is interrupted
        self._close(lower, upper, found, before & ~after)
        if self.nearest is None and open_:
            self.nearest = open_.pop(min(range(len(open_)), key=lambda k: open_[k].above))
        for half in open_:
            heapq.heappush(self.waiting, half)

    def _slopes(self, question: Question, boxes: Boxes, A: Tensor, rest: Tensor) -> Tensor:
        """The coefficients (n, *input shape) of linear bounds of one objective A (n, *output shape) in each box.

        n boxes of the batch are left, `rest`. They only choose what is halved.
        """
        whole = A.new_zeros(question.batch, *A.shape[1:])
        whole[rest] = A
        objective = Objective.dense(question.graph.output, whole.unsqueeze(1))
        linear = backward(question, boxes, objective, self.rules, DEFAULT)
        if linear.coefficients is None:
            return A.new_zeros(len(rest), *question.graph.input.shape)
        return question.index.as_input(linear.coefficients).squeeze(1)[rest]

    def _close(self, lower: Tensor, upper: Tensor, found: Tensor, now: Tensor) -> None:
        """Note the objectives (n, S) bool that were closed in boxes (n, *input shape), with their bounds."""
        self.closed = torch.minimum(self.closed, torch.where(now, found, math.inf).amin(0))
        if self.watchers.record is None:
            return
        for k in now.any(1).nonzero().flatten().tolist():
            which = tuple(now[k].nonzero().flatten().tolist())
            self.noted.append(ClosedBox(lower[k].cpu(), upper[k].cpu(), which))

    def _look_for_witness(self, lower: Tensor, upper: Tensor, slope: Tensor, worst: Tensor) -> Tensor:
        """Whether an objective is not above its goal at a corner where its linear bound is least, or at a centre.

        Returns how far the worst objective of each box is above its goal at these, (boxes,); infinite: not known.
        """
        centre = lower + (upper - lower) / 2
        corner = torch.where(slope > 0, lower, torch.where(slope < 0, upper, centre))
        points = torch.cat([corner, centre])
        A = self.aim.objectives[worst].repeat(2, *[1] * (self.aim.objectives.dim() - 1))
        value = (A * self.question.graph.evaluate(points)).flatten(1).sum(-1) - self.goals[worst].repeat(2)
        value = value.nan_to_num(math.inf)
        for k in value.argsort().tolist()[:SHOWN]:
            if self.witness is not None or not float(value[k]) <= 0:
                break
            objective = int(worst[k % len(worst)])
            if self.watchers.accept is None or self.watchers.accept(points[k], objective):
                self.witness, self.broken = points[k], objective
        return value.reshape(2, -1).amin(0)

    def _open(self) -> list[_Half]:
        """The boxes that can be halved: the worst of those that wait is the first, the nearest the last."""
        return self.waiting if self.nearest is None else [*self.waiting, self.nearest]

    def _left(self) -> list[_Half]:
        """The boxes that are open."""
        return [*self._open(), *self.stuck]

    def _tell(self) -> None:
        if self.watchers.progress is not None:
            worst = min((half.shortfall for half in self._left()), default=math.inf)
            self.watchers.progress(worst, len(self._left()), self.bounded)

    def _outcome(self, stopped: Stop, seconds: float) -> Outcome:
        left = [half.lower for half in self._left()]
        bound = torch.stack([self.closed, *left]).amin(0)
        count = (~(torch.stack(left) > self.goals)).sum(0) if left else torch.zeros_like(self.goals, dtype=torch.int64)
        passes = self.bounded * len(self.goals)
        return Outcome(bound, count, self.bounded, stopped, self.witness, self.broken, passes, seconds)
