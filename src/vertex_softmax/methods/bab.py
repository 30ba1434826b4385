"""`bab`: at least `joint`; where that does not decide, branch and bound over its boxes."""

from __future__ import annotations

import dataclasses

import torch

from vertex_softmax.bounds.branch_and_bound import Aim, Outcome, Search, Watchers, branch_and_bound
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.joint import joint
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule, Rules


def bab(question: Question, objective: Objective, options: Options) -> Bound:
    """The bounds of `joint`, and for what is not above the goal (0 if there is none) those of branch and bound."""
    goal = 0.0 if options.goal is None else options.goal
    start = joint(question, objective, options)
    hopeless = start.hopeless is not None and bool(start.hopeless.any())
    if question.batch != 1 or start.boxes.problems or hopeless or bool((start.lower > goal).all()):
        return start
    known = start.lower[0]
    aim = Aim(objective.coefficients.A[0], goals=torch.full_like(known, goal), known=known)
    outcome = branch(question, start, aim, options)
    return dataclasses.replace(start, lower=outcome.bound.unsqueeze(0))


def branch(
    question: Question, start: Bound, aim: Aim, options: Options, watchers: Watchers | None = None,
    search: Search | None = None,
) -> Outcome:  # fmt: skip
    """Branch and bound over the boxes of a bound, by the affine vertex rule; `search` in place of the options' own."""
    rules = Rules(attention=RowRule.AFFINE, pieces=options.pieces, product=options.product)
    return branch_and_bound(question, start.boxes, aim, rules, search or options.search, watchers)
