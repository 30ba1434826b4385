"""Narrow the input set to where an objective may still be as low as a level, and bound it there.

Invariant: at every input of the set that was cut off, the objective is above the level. So the least of the level and
of a bound over what is left is a bound over the whole set.

A linear bound says objective ≥ constant + Σ coefficients·x. Where the right side is above the level, nothing has to be
proved any more. The rest of the set is the box cut by a half-space (sets/cut_region.py), with a smaller box around it.
Boxes and bound are made anew over that. The closer the bound comes to the level, the less is left, and the loss of the
relaxations shrinks faster than the set. There is no tree. If a bound is so far below the level that almost nothing is
cut off, narrowing gains nothing and ends at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from vertex_softmax.bounds.ascent import Ascent, Beginning, Goal, ascend
from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import Choice
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.linear import LinearBound
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.foundation.tolerances import VERDICT
from vertex_softmax.ops.rules import Rules
from vertex_softmax.sets.cut_region import CutRegion
from vertex_softmax.sets.region import BoxRegion

USELESS = 0.9
"""A cut that leaves more than this share of the linear bound's range over the box is not worth making new boxes."""
ENOUGH = 0.1
"""Narrowing ends when a round closes less than this share of what the bound lacks to the level."""
ROUNDS = 40
"""The largest number of rounds."""
AGAIN = 3
"""An ascent that starts from the parameters of the last round has this many times fewer and smaller steps."""
ULPS = 16
"""A narrowed end is moved outward by this many rounding units of the numbers it was computed from."""

MakeBoxes = Callable[[Question, Sequence[Boxes]], Boxes]
"""Makes boxes for a question; the boxes in the sequence, if any, are known to hold for it too."""


@dataclasses.dataclass(frozen=True, eq=False)
class Narrowed:
    """What is left of the set of one objective, and the bound there."""

    bound: float
    """the bound over what is left; −inf if none could be computed"""
    question: Question
    """the question about what is left"""
    boxes: Boxes
    """the boxes over what is left"""
    rounds: int
    """how often boxes were made anew: once for each cut, and once more if the boxes given were rough and nothing could
    be cut off at first"""
    cuts: tuple[Choice, ...]
    """the parameters of the linear bounds by which the set was cut, in order"""
    choice: Choice
    """the parameters of the bound over what is left"""


def narrowed(
    question: Question,
    boxes: Boxes,
    objective: Objective,
    level: float,
    how: tuple[MakeBoxes, Rules, Ascent],
    *,
    rough: bool = False,
) -> Narrowed:
    """Narrow the set of a question with one input and one dense objective until the bound is above the level.

    It ends earlier if that does not pay, or when the question's deadline passes. how: what makes boxes for a narrower
    question, the rules of the passes, and the ascent on their free parameters. rough: `boxes` are not of the kind that
    is made there; then better ones are made in the first round even if nothing is cut off.
    """
    make, rules, ascent = how
    again = dataclasses.replace(ascent, steps=ascent.steps // AGAIN, step_size=ascent.step_size / AGAIN)
    best, choice = Narrowed(-math.inf, question, boxes, 0, (), Choice()), Choice()
    cuts: tuple[Choice, ...] = ()
    try:
        for count in range(ROUNDS + 1):
            linear, bound, choice = _linear(question, boxes, objective, rules, ascent, (level, choice))
            ascent = again
            found = Narrowed(bound, question, boxes, count, cuts, choice)
            gained = bound - best.bound
            best = found if gained > 0 else best
            missing = level - bound
            if not missing > 0 or not gained >= ENOUGH * (missing + gained):
                break
            smaller = left_over(question, linear, level) if count < ROUNDS else None
            if smaller is None and not (rough and count == 0):
                break
            if smaller is not None:
                question, cuts = question.about(smaller), (*cuts, choice)
            boxes = make(question, ())
            if boxes.problems:
                break
    except OutOfTimeError:
        pass
    return best


def _linear(
    question: Question, boxes: Boxes, objective: Objective, rules: Rules, ascent: Ascent, aim: tuple[float, Choice]
) -> tuple[LinearBound, float, Choice]:
    """An optimised linear bound of the objective, with its size; the best bound over the set; and the parameters.

    The bound is −inf if none could be computed. aim: the level, and the parameters to start with (empty at first).
    """
    level, known = aim
    begin = Beginning(choice=known or None, best=True)
    done = ascend(question, boxes, objective, rules, ascent, Goal(level), begin)
    free = dataclasses.replace(rules, free=True, sums=True)
    linear = backward(question, boxes, objective, free, done.choice, Wanted(size=True))
    bounds = [float(done.bound), float(linear.least(question.region))]
    return linear, max((bound for bound in bounds if not math.isnan(bound)), default=-math.inf), done.choice


def left_over(question: Question, linear: LinearBound, level: float) -> CutRegion | None:
    """The region in which a linear bound of one objective is at most the level; None if that is almost the whole box.

    linear: the bound with its size. The region is shaped like the graph's input. What the pass may have rounded is
    added to the level.
    """
    region = question.region
    if linear.coefficients is None or linear.size is None or not isinstance(region, BoxRegion):
        return None
    slope, (lower, upper) = linear.coefficients[0], region.box  # (1, *shape of the start) each
    room = level - float(linear.constant) + VERDICT[question.dtype] * float(linear.size)
    if not bool(slope.isfinite().all()) or not math.isfinite(room):
        return None
    least = float(torch.where(slope > 0, slope * lower, slope * upper).sum())
    way = float((slope.abs() * (upper - lower)).sum())
    budget = max(0.0, room - least)
    """how far Σ slope·x may exceed its least value over the box"""
    if not budget < USELESS * way:
        return None
    size = (slope.abs() * torch.maximum(lower.abs(), upper.abs())).sum()  # of which the sums above round a small share
    unit = ULPS * torch.finfo(question.dtype).eps
    budget += unit * slope.numel() * float(size)
    reach = budget / torch.where(slope != 0, slope.abs(), torch.ones_like(slope))
    reach = reach + unit * (reach + torch.maximum(lower.abs(), upper.abs()))
    above, below = torch.minimum(upper, lower + reach), torch.maximum(lower, upper - reach)
    cut = CutRegion(
        torch.where(slope < 0, below, lower),
        torch.where(slope > 0, above, upper),
        slope,
        slope.new_tensor([least + budget]),
    )
    if question.index.start is question.graph.input:
        return cut
    places = torch.argsort(question.index.start_numbers(slope.device).flatten())
    return cut.rearranged(places.reshape(question.graph.input.shape))
