"""`bab`: at least `joint`; where that does not decide, branch and bound over its boxes."""

from __future__ import annotations

import dataclasses

import torch

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import Accept, Aim, Outcome, Search, Watchers, branch_and_bound
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.narrowed_search import branch_narrowed
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.subtrees import Subtrees
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.joint import joint
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.region import BoxRegion


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
    """Branch and bound over the boxes of a bound, by the affine vertex rule; `search` in place of the options' own.

    Before that the set is narrowed for each objective, where that is possible.
    """
    watchers, search, rules = watchers or Watchers(), search or options.search, rules_of(options)
    possible = question.batch == 1 and isinstance(question.given, BoxRegion) and not root.boxes.problems
    if possible and search.narrowing > 0:

        def make(narrower: Question) -> Boxes:
            return tightened_boxes(narrower, options)

        return branch_narrowed(question, root.boxes, aim, rules, search, watchers, make)
    return branch_and_bound(question, root.boxes, aim, rules, search, watchers)


def subtrees(question: Question, boxes: Boxes, aim: Aim, options: Options, accept: Accept | None = None) -> Subtrees:
    """The same on given parts of the set, for one of several workers."""
    return Subtrees(question, boxes, aim, rules_of(options), options.search, accept)


def rules_of(options: Options) -> Rules:
    """The rules of branch and bound: the affine vertex rule."""
    return Rules(attention=RowRule.AFFINE, pieces=options.pieces, product=options.product)
