"""Branch and bound after narrowing: each objective's set is narrowed first, and only what stays open is split.

Invariant: as of branch and bound, the bounds returned hold over the whole set of the question. What was narrowed away
of an objective is above its level there (narrowing.py), which is above its goal by more than rounding.
"""

from __future__ import annotations

import dataclasses
import math
import time

import torch

from vertex_softmax.bounds.aims import Aim, Outcome, Search, Watchers
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import branch_and_bound
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.guard import terms
from vertex_softmax.bounds.narrowing import MakeBoxes, Narrowed, narrowed
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import NarrowedTree, Record
from vertex_softmax.foundation.tolerances import VERDICT
from vertex_softmax.ops.rules import Rules

ABOVE = 4.0
"""How far a level is above its goal, in units of what rounding can have added to a bound."""


# Seven parameters: those of `branch_and_bound`, and what makes boxes over a narrower set.
def branch_narrowed(
    question: Question,
    boxes: Boxes,
    aim: Aim,
    rules: Rules,
    search: Search,
    watchers: Watchers,
    make: MakeBoxes,
) -> Outcome:
    """Bound objectives over the set of a question with one input, a box, whose boxes are made.

    A record is told which objectives were decided over a narrower set, and has no leaves of these itself.
    """
    begin = time.perf_counter()
    goals = torch.zeros_like(aim.objectives.flatten(1)[:, 0]) if aim.goals is None else aim.goals
    known = torch.full_like(goals, -torch.inf) if aim.known is None else aim.known.clone()
    levels = goals + ABOVE * _rounding(question, boxes, aim, rules)
    left: dict[int, Narrowed] = {}
    for k in (goals - known).argsort().tolist():
        if bool(known[k] > goals[k]) or not math.isfinite(levels[k]):
            continue
        end = _end(question, search, begin)
        if end is not None and time.perf_counter() >= end:
            break
        objective = Objective.dense(question.graph.output, aim.objectives[None, k : k + 1])
        with torch.no_grad():
            found = narrowed(question.until(end), boxes, objective, float(levels[k]), (make, rules, search.root))
        known[k] = torch.maximum(known[k], known.new_tensor(min(found.bound, float(levels[k]))))
        if not bool(known[k] > goals[k]):
            left[k] = found
        elif watchers.record is not None:
            watchers.record.narrowed[k] = None
    open_ = (~(known > goals)).nonzero().flatten().tolist()
    spent = time.perf_counter() - begin
    rest = search if search.seconds is None else dataclasses.replace(search, seconds=max(0.0, search.seconds - spent))
    if len(open_) != 1 or open_[0] not in left or left[open_[0]].rounds == 0:
        return branch_and_bound(question, boxes, Aim(aim.objectives, goals, known), rules, rest, watchers)
    (k,) = open_  # the tree of one objective grows over what is left of its set
    part = left[k]
    own = Aim(aim.objectives[k : k + 1], goals[k : k + 1], known[k : k + 1])
    over = part.question.until(question.clock.deadline)
    outcome = branch_and_bound(over, part.boxes, own, rules, rest, _renumbered(watchers, k, part.question))
    known[k] = torch.maximum(known[k], torch.minimum(outcome.bound[0], levels[k]))
    count = torch.zeros(len(goals), dtype=torch.int64, device=goals.device)
    count[k] = outcome.open[0]
    broken = None if outcome.broken is None else k
    return dataclasses.replace(outcome, bound=known, open=count, broken=broken)


def _renumbered(watchers: Watchers, k: int, over: Question) -> Watchers:
    """The watchers of a search over a narrower set, whose only objective they know as number k."""
    accept, attack = watchers.accept, watchers.attack
    if watchers.record is not None:
        record = Record()
        watchers.record.narrowed[k] = NarrowedTree(over, record)
        watchers = dataclasses.replace(watchers, record=record)
    if accept is not None:
        watchers = dataclasses.replace(watchers, accept=lambda point, _: accept(point, k))
    if attack is not None:
        watchers = dataclasses.replace(
            watchers, attack=lambda points, numbers, until: attack(points, [k] * len(numbers), until)
        )
    return watchers


def _end(question: Question, search: Search, begin: float) -> float | None:
    """When the narrowing has to end."""
    own = None if search.seconds is None else begin + search.narrowing * search.seconds
    return min((end for end in (own, question.clock.deadline) if end is not None), default=None)


def _rounding(question: Question, boxes: Boxes, aim: Aim, rules: Rules) -> torch.Tensor:
    """More than rounding can have added to a bound of any objective, (1,)."""
    objective = Objective.dense(question.graph.output, aim.objectives[None])
    whole = dataclasses.replace(rules, sums=True)
    return VERDICT[question.dtype] * terms(question, boxes, objective, whole).amax(1)
