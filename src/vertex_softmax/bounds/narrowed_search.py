"""Branch and bound after narrowing: each objective's set is narrowed first, and what stays open is split.

Invariant: as in branch and bound, the bounds returned hold over the whole set of the question. On everything that was
cut off for an objective it is above its level (narrowing.py), and the level is above the goal by more than rounding.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vertex_softmax.bounds.aims import Aim, Outcome, Search, Stop, Watchers
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import branch_and_bound
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.guard import terms
from vertex_softmax.bounds.narrowed_parts import NarrowedParts, Rest
from vertex_softmax.bounds.narrowing import MakeBoxes, Narrowed, narrowed
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import NarrowedTree, Record, RestRecord
from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.foundation.tolerances import VERDICT
from vertex_softmax.ops.rules import Rules

ABOVE = 4.0
"""How far a level is above its goal, in units of the most that rounding can have added to a bound."""

BOXES = 40
"""Parts are narrowed as well if there is time to make boxes at least this often."""


# Seven parameters: those of `branch_and_bound`, and what makes boxes over a narrower set.
def branch_narrowed(
    question: Question,
    boxes: Boxes,
    aim: Aim,
    rules: Rules,
    search: Search,
    watchers: Watchers,
    make: MakeBoxes,
    *,
    rough: bool = False,
) -> Outcome:
    """Bound objectives over the set of a question, which is the box of a single input, whose boxes are given.

    `make` makes boxes over a narrower set. rough: `boxes` were made in another, rougher way. A record is told which
    objectives were decided over a narrower set, and contains no leaves of these itself.
    """
    begin = time.perf_counter()
    goals = torch.zeros_like(aim.objectives.flatten(1)[:, 0]) if aim.goals is None else aim.goals
    known = torch.full_like(goals, -torch.inf) if aim.known is None else aim.known.clone()
    levels = goals + ABOVE * _rounding(question, boxes, aim, rules)
    left: dict[int, Narrowed] = {}
    timed = _Timed(make)
    for k in (goals - known).argsort().tolist():
        if bool(known[k] > goals[k]) or not math.isfinite(levels[k]):
            continue
        end = _end(question, search, begin)
        if end is not None and time.perf_counter() >= end:
            break
        objective = Objective.dense(question.graph.output, aim.objectives[None, k : k + 1])
        with torch.no_grad():
            how = (timed, rules, search.root)
            found = narrowed(question.until(end), boxes, objective, float(levels[k]), how, rough=rough)
        known[k] = torch.maximum(known[k], known.new_tensor(min(found.bound, float(levels[k]))))
        if not bool(known[k] > goals[k]):
            left[k] = found
        elif watchers.record is not None:
            watchers.record.narrowed[k] = _noted(found)
    open_ = (~(known > goals)).nonzero().flatten().tolist()
    spent = time.perf_counter() - begin
    rest = search if search.seconds is None else dataclasses.replace(search, seconds=max(0.0, search.seconds - spent))
    aim = Aim(aim.objectives, goals, known)
    later = (rules, rest, watchers, timed)
    if open_ and all(k in left for k in open_) and timed.allows(rest):
        return _branch_parts(question, left, aim, levels, later)
    return _branch_trees(question, boxes, left, aim, levels, later)


def _noted(found: Narrowed) -> RestRecord:
    """How a set was narrowed, as a record."""
    noted = RestRecord()
    for choice in found.cuts:
        noted.cut(choice)
    noted.bound(found.choice)
    return noted


How = tuple[Rules, Search, Watchers, "_Timed"]
"""The rules, the limits, the callbacks, and what makes boxes over a narrower set."""


def _branch_trees(
    question: Question, boxes: Boxes, left: Mapping[int, Narrowed], aim: Aim, levels: Tensor, how: How
) -> Outcome:
    """One search over the boxes of the whole set; or, if a single objective is open, over what is left of its set."""
    rules, rest, watchers, _ = how
    goals, known = _given(aim.goals), _given(aim.known).clone()
    open_ = (~(known > goals)).nonzero().flatten().tolist()
    if len(open_) != 1 or open_[0] not in left or left[open_[0]].rounds == 0:
        return branch_and_bound(question, boxes, aim, rules, rest, watchers)
    (k,) = open_
    part = left[k]
    own = Aim(aim.objectives[k : k + 1], goals[k : k + 1], known[k : k + 1])
    over = part.question.until(question.clock.deadline)
    outcome = branch_and_bound(over, part.boxes, own, rules, rest, _renumbered(watchers, k, part))
    known[k] = torch.maximum(known[k], torch.minimum(outcome.bound[0], levels[k]))
    count = torch.zeros(len(goals), dtype=torch.int64, device=goals.device)
    count[k] = outcome.open[0]
    broken = None if outcome.broken is None else k
    return dataclasses.replace(outcome, bound=known, open=count, broken=broken)


def _branch_parts(question: Question, left: Mapping[int, Narrowed], aim: Aim, levels: Tensor, how: How) -> Outcome:
    """Search for each open objective over what is left of its own set, narrowing parts too; those nearest their goals
    first.
    """
    rules, search, watchers, timed = how
    end = question.clock.deadline
    if search.seconds is not None:
        end = min(time.perf_counter() + search.seconds, math.inf if end is None else end)
    goals, known = _given(aim.goals), _given(aim.known).clone()
    domains, passes, seconds, stopped = 0, 0, 0.0, Stop.DONE
    open_ = (~(known > goals)).to(torch.int64)
    witness, broken = None, None
    for k in sorted(left, key=lambda k: float(goals[k] - known[k])):
        own = Aim(aim.objectives[k : k + 1], goals[k : k + 1], known[k : k + 1])
        few = dataclasses.replace(search, domains=max(1, search.domains - domains))
        found = NarrowedParts(own, float(levels[k]), rules, few, _renumbered(watchers, k, None), timed.make)
        noted = None if watchers.record is None else _noted(left[k])
        whole = Part(0, bound=float(known[k]))
        rest = Rest(left[k].question.until(end), left[k].boxes, whole, noted, timed.seconds or 0.0)
        outcome = found.run(rest)
        domains, passes = domains + outcome.domains, passes + (outcome.passes or 0)
        seconds += outcome.seconds
        known[k] = torch.maximum(known[k], outcome.bound[0])
        open_[k] = outcome.open[0]
        if outcome.stopped is Stop.DONE and watchers.record is not None and noted is not None:
            watchers.record.narrowed[k] = noted
        if outcome.stopped is not Stop.DONE:
            stopped = outcome.stopped
        if outcome.witness is not None:
            witness, broken = outcome.witness, k
        if outcome.stopped in (Stop.WITNESS, Stop.SECONDS, Stop.DOMAINS):
            break
    return Outcome(known, open_, domains, stopped, witness, broken, passes, seconds)


def _given(numbers: Tensor | None) -> Tensor:
    if numbers is None:
        raise InternalError("the goals and what is known were not filled in")
    return numbers


class _Timed:
    """A function that makes boxes, with the time that it takes."""

    def __init__(self, make: MakeBoxes) -> None:
        self.make = make
        self.seconds: float | None = None
        """the longest time that making boxes took; None: none have been made"""

    def __call__(self, question: Question, known: Sequence[Boxes]) -> Boxes:
        begin = time.perf_counter()
        made = self.make(question, known)
        self.seconds = max(self.seconds or 0.0, time.perf_counter() - begin)
        return made

    def allows(self, search: Search) -> bool:
        """Whether there is time to make boxes often enough for parts to be narrowed."""
        if self.seconds is None:
            return False
        return search.seconds is None or search.seconds >= BOXES * self.seconds


def _renumbered(watchers: Watchers, k: int, over: Narrowed | None) -> Watchers:
    """Watchers for a search over a narrower set, whose only objective, of index 0, is number k of `watchers`.

    `over`: the narrower set, if the search is a single tree over it; the tree is then recorded.
    """
    accept, attack = watchers.accept, watchers.attack
    if watchers.record is not None and over is not None:
        record = Record()
        watchers.record.narrowed[k] = NarrowedTree(over.question, record, tuple(_noted(over).cuts))
        watchers = dataclasses.replace(watchers, record=record)
    if accept is not None:
        watchers = dataclasses.replace(watchers, accept=lambda point, _: accept(point, k))
    if attack is not None:
        watchers = dataclasses.replace(
            watchers, attack=lambda points, numbers, until: attack(points, [k] * len(numbers), until)
        )
    return watchers


def _end(question: Question, search: Search, begin: float) -> float | None:
    """The time at which narrowing has to end, on the clock of `time.perf_counter`; None: no limit."""
    own = None if search.seconds is None else begin + search.narrowing * search.seconds
    return min((end for end in (own, question.clock.deadline) if end is not None), default=None)


def _rounding(question: Question, boxes: Boxes, aim: Aim, rules: Rules) -> torch.Tensor:
    """More than rounding can have added to the bound of any objective, (1,)."""
    objective = Objective.dense(question.graph.output, aim.objectives[None])
    whole = dataclasses.replace(rules, sums=True)
    return VERDICT[question.dtype] * terms(question, boxes, objective, whole).amax(1)
