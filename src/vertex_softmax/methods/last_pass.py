"""The last step of a method: bound the objectives over boxes that are made."""

from __future__ import annotations

import dataclasses
import itertools
import time

import torch
from torch import Tensor

from vertex_softmax.bounds.ascent import Beginning, Goal, ascend
from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import DEFAULT
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.last_norm import behind_last_norm
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.slack import attained
from vertex_softmax.bounds.zonotopes import lowest
from vertex_softmax.methods.bound import Bound, larger
from vertex_softmax.methods.options import Options, Suffix
from vertex_softmax.ops.rules import ReluSlope, RowRule, Rules

OUTDONE_PATIENCE = 1 / 6
"""If better bounds are known from elsewhere (from zonotopes, or in `joint` from its own ascent), an ascent that will
not reach them may end after this share of its steps. On digits with LayerNorm, at three ε, no ascent improved on
zonotopes; on a ViT with a class token all of its steps gained 2e-5 for one of nine targets."""
OBJECTIVE = "objective"
"""The name of the stage to which the time of the last passes is added."""


@dataclasses.dataclass(frozen=True)
class Passes:
    """Which passes bound the objectives; each objective gets the best of their bounds."""

    plain: tuple[RowRule, ...]
    """row rules with their parameters at the defaults"""
    optimised: tuple[RowRule, ...] = ()
    """row rules whose free parameters are optimised"""
    by_box: bool = False
    """whether to bound the objectives over the output's box too, which is tighter than a linear pass in a saturated
    network"""


def last_pass(
    question: Question,
    boxes: Boxes,
    objective: Objective,
    passes: Passes,
    options: Options,
    known: Tensor | None = None,
) -> Bound:
    """The best bounds (batch, S) of dense objectives by all passes, and not less than `known`.

    An ascent that will not reach what is known ends early.
    """
    begin = time.perf_counter()
    meets_attention = question.index.has_attention(objective.node)  # without an attention all row rules are the same
    slopes = tuple(ReluSlope) if options.suffix is Suffix.BEST else (ReluSlope.ADAPTIVE,)
    # over a large ball the ball rule may be worse than the others
    balls = (True,) if question.region.unit.cube or not meets_attention else (True, False)
    asked = Rules(product=options.product, sums=True)
    terms: dict[Rules, Tensor] = {}
    bounds = []
    for rule, relu, by_ball in itertools.product(passes.plain if meets_attention else passes.plain[:1], slopes, balls):
        rules = dataclasses.replace(asked, attention=rule, relu=relu, balls=by_ball)
        bound = backward(question, boxes, objective, rules, DEFAULT, Wanted(size=True))
        bounds.append(bound.least(question.region))
        terms[rules] = torch.zeros_like(bounds[-1]) if bound.size is None else bound.size
    if passes.by_box:
        found = by_box(boxes, objective)
        bounds.append(found.where(found.isfinite(), -torch.inf))
    if objective.node in boxes.zonotopes:  # it includes the limit of norms, |y/σ| ≤ √d
        found = lowest(boxes.zonotopes[objective.node], objective.coefficients.A)
        bounds.append(found.where(found.isfinite(), -torch.inf))
    behind = behind_last_norm(question, boxes, objective)
    if behind is not None:
        bounds.append(behind.where(behind.isfinite(), -torch.inf))
    if known is not None:
        bounds.append(known)
    best = Bound(larger(*bounds), boxes, terms=terms)
    ascended = passes.plain if options.suffix is Suffix.OPTIMISED else passes.optimised
    for rule in ascended if meets_attention else ascended[:1]:
        best = _ascended(question, objective, rule, options, best, outdone=known is not None)
    question.clock.add(OBJECTIVE, begin)
    return best


def by_box(boxes: Boxes, objective: Objective) -> Tensor:
    """Lower bounds of dense objectives over the box of their node, (batch, S)."""
    A = objective.coefficients.A
    lower, upper = (end.unsqueeze(1) for end in boxes[objective.node])
    return torch.where(A >= 0, A * lower, A * upper).flatten(2).sum(-1)


def _ascended(
    question: Question, objective: Objective, rule: RowRule, options: Options, known: Bound, *, outdone: bool
) -> Bound:
    """The bound after an ascent under one row rule; unchanged if every objective is above the goal already.

    `outdone`: the ascent mostly cannot reach the known bounds, which shows early.
    """
    if options.ascent is None:
        return known
    above, rules = options.goal, Rules(attention=rule, pieces=options.pieces, product=options.product)
    goal, hopeless = None, known.hopeless
    if above is not None:
        if bool((known.lower > above).all()):
            return known
        ceiling = attained(question, known.boxes, objective, rules)
        goal = Goal(above, ceiling)
        lost = (ceiling <= above).any(1)
        hopeless = lost if hopeless is None else hopeless | lost
    ascent = options.ascent
    if outdone or objective.node in known.boxes.zonotopes:
        ascent = dataclasses.replace(ascent, patience=min(ascent.patience, OUTDONE_PATIENCE))
    done = ascend(question, known.boxes, objective, rules, ascent, goal, Beginning(known=known.lower))
    choice = done.choice or DEFAULT
    return Bound(larger(known.lower, done.bound), known.boxes, choice, known.terms, hopeless)
