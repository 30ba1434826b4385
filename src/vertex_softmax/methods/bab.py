"""`bab`: at least `joint`; where that does not decide, branch and bound over its boxes."""

from __future__ import annotations

import dataclasses

import torch

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import Aim, Outcome, Search, Watchers, branch_and_bound
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.subtrees import Subtrees
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.joint import joint
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule, Rules


def bab(question: Question, objective: Objective, options: Options) -> Bound:
    """The bounds of `joint`, and for what is not above the goal (0 if there is none) those of branch and bound."""
    goal = 0.0 if options.goal is None else options.goal
    by_joint = joint(question, objective, options)
    hopeless = by_joint.hopeless is not None and bool(by_joint.hopeless.any())
    if question.batch != 1 or by_joint.boxes.problems or hopeless or bool((by_joint.lower > goal).all()):
        return by_joint
    known = by_joint.lower[0]
    aim = Aim(objective.coefficients.A[0], goals=torch.full_like(known, goal), known=known)
    outcome = branch(question, by_joint, aim, options)
    return dataclasses.replace(by_joint, lower=outcome.bound.unsqueeze(0))


def branch(
    question: Question, root: Bound, aim: Aim, options: Options, watchers: Watchers | None = None,
    search: Search | None = None,
) -> Outcome:  # fmt: skip
    """Branch and bound over the boxes of a bound, by the affine vertex rule; `search` in place of the options' own."""
    return branch_and_bound(question, root.boxes, aim, rules_of(options), search or options.search, watchers)


def subtrees(question: Question, boxes: Boxes, aim: Aim, options: Options, watchers: Watchers) -> Subtrees:
    """The same on given parts of the set, for one of several workers."""
    return Subtrees(question, boxes, aim, rules_of(options), options.search, watchers)


def rules_of(options: Options) -> Rules:
    """The rules of branch and bound: the affine vertex rule."""
    return Rules(attention=RowRule.AFFINE, pieces=options.pieces, product=options.product)
