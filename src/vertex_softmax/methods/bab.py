"""The method `bab`: `joint`, and branch and bound for the objectives that `joint` does not decide.

Invariant: branch and bound starts the same way for every caller: with the boxes of `joint` under `root_options`, the
rules of `rules_of`, and goals that include an allowance for rounding. Only `verify` may start with the boxes of
`crown`. Other bounds of `joint`, and those of zonotopes to third order (third_order.py), which are made before any
split, can close an objective or be the larger bound in the end, but they do not change the tree of an objective that
stays open.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import SMALL, Aim, Outcome, Search, Watchers, branch_and_bound
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.guard import terms
from vertex_softmax.bounds.narrowed_search import branch_narrowed
from vertex_softmax.bounds.promising import branch_while_promising
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.subtrees import Subtrees
from vertex_softmax.foundation.tolerances import VERDICT
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.halving import by_halving, is_meant
from vertex_softmax.methods.joint import joint
from vertex_softmax.methods.options import JointParts, Options
from vertex_softmax.methods.third_order import to_third_order
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.region import BoxRegion

BRIEF, BRIEF_SHARE = 64, 0.1
"""Before the input is halved, at most so many parts are bounded inside of the network, in so much of the time."""


class BranchedBound(NamedTuple):
    """Bounds, and the outcome of branch and bound; None if there was no branch and bound."""

    bound: Bound
    outcome: Outcome | None


def bab(question: Question, objective: Objective, options: Options) -> Bound:
    """The bounds of `joint`, improved by branch and bound for objectives that are not above the goal (None counts as
    0).
    """
    return searched(question, objective, options).bound


def searched(
    question: Question, objective: Objective, options: Options, watchers: Watchers | None = None
) -> BranchedBound:
    """The bounds of `bab` with the outcome of branch and bound, which is only done for a single input.

    Without `Watchers.accept`, branch and bound ends at any input at which an objective is not above its goal, and is
    not started if `joint` knows such an input already.
    """
    by_joint = joint(question, objective, options)
    unheard = watchers is None or watchers.accept is None
    hopeless = by_joint.hopeless is not None and bool(by_joint.hopeless.any()) and unheard
    if question.batch != 1 or by_joint.boxes.problems or hopeless:
        return BranchedBound(by_joint, None)
    lower = by_joint.lower[0]
    goals = _goals(question, by_joint, objective, options)
    if bool((lower > goals).all()):
        return BranchedBound(by_joint, None)
    begin, seconds = time.perf_counter(), options.search.seconds
    if (third := to_third_order(question, objective, options, seconds)) is not None:
        lower = torch.maximum(lower, third[0])
        by_joint = dataclasses.replace(by_joint, lower=lower.unsqueeze(0))
        if bool((lower > goals).all()):
            return BranchedBound(by_joint, None)
    if seconds is not None:
        seconds = max(0.0, seconds - (time.perf_counter() - begin))
        options = dataclasses.replace(options, search=dataclasses.replace(options.search, seconds=seconds))
    root = joint(question, objective, root_options(options))
    if root.boxes.problems:
        return BranchedBound(by_joint, None)
    known = torch.where(lower > goals, lower, root.lower[0])
    outcome = branch(question, root, Aim(objective.coefficients.A[0], goals, known), options, watchers)
    best = torch.where(lower.isnan(), outcome.bound, torch.maximum(lower, outcome.bound))
    return BranchedBound(dataclasses.replace(by_joint, lower=best.unsqueeze(0)), outcome)


def _goals(question: Question, bound: Bound, objective: Objective, options: Options) -> Tensor:
    """The goal for each objective of one input, (S,): the goal asked for plus an allowance for rounding."""
    rules = Rules(attention=RowRule.AFFINE, product=options.product, sums=True)
    size = VERDICT[question.dtype] * terms(question, bound.boxes, objective, rules).amax(1)
    guard = torch.where(size.isfinite(), size, torch.zeros_like(size))  # otherwise nothing will be concluded
    return (guard + (0.0 if options.goal is None else options.goal)).expand(bound.lower.shape[1]).clone()


def root_options(options: Options) -> Options:
    """The options of `joint` when its boxes are the root of branch and bound: no other methods, and no ascent."""
    return dataclasses.replace(options, parts=JointParts.OWN, ascent=None)


def branch(
    question: Question, root: Bound, aim: Aim, options: Options, watchers: Watchers | None = None,
    search: Search | None = None, *, rough: bool = False,
) -> Outcome:  # fmt: skip
    """Branch and bound over the boxes of a bound, under the affine vertex rule; `search` replaces the options' limits.

    If the set is a box, it is narrowed for each objective before anything is split inside of the network. If few
    numbers of it vary and a few splits inside of the network are not enough, it is first cut into halves (halving.py).
    rough: the boxes are not those of `joint`; then these are made for each objective, over what is left of the set.
    """
    watchers, search = watchers or Watchers(), search or options.search
    options = dataclasses.replace(options, search=search)
    if root.boxes.problems or not is_meant(question, options):
        return _branch_inside(question, root, aim, options, watchers, rough=rough)
    before = _branch_briefly(question, root, aim, options, watchers, rough=rough)
    if _is_over(before):
        return before
    aim, options = _going_on(aim, options, before, known=watchers.record is None)
    halved = by_halving(question, aim, options, watchers, options.search.seconds)
    if halved is None:
        return _branch_inside(question, root, aim, options, watchers, rough=rough).after(before)
    if _is_over(halved):
        return halved.after(before)
    aim, options = _going_on(aim, options, halved, known=True)
    return _branch_inside(question, root, aim, options, watchers, rough=rough).after(halved).after(before)


def _is_over(outcome: Outcome) -> bool:
    return outcome.witness is not None or not int(outcome.open.sum())


def _going_on(aim: Aim, options: Options, before: Outcome, *, known: bool) -> tuple[Aim, Options]:
    """What is left to do after another search, in what time. known: whether what it has closed stays closed."""
    if options.search.seconds is not None:
        left = max(0.0, options.search.seconds - before.seconds)
        options = dataclasses.replace(options, search=dataclasses.replace(options.search, seconds=left))
    if known:
        aim = dataclasses.replace(aim, known=before.bound if aim.known is None else torch.fmax(aim.known, before.bound))
    return aim, options


def _branch_briefly(
    question: Question, root: Bound, aim: Aim, options: Options, watchers: Watchers, *, rough: bool
) -> Outcome:
    """A search inside of the network that bounds few parts. Its record is kept only if it decides all objectives."""
    search = options.search
    seconds = None if search.seconds is None else BRIEF_SHARE * search.seconds
    brief = dataclasses.replace(search, seconds=seconds, domains=min(BRIEF, search.domains))
    outcome = _branch_inside(question, root, aim, dataclasses.replace(options, search=brief), watchers, rough=rough)
    if watchers.record is not None and not _is_over(outcome):
        watchers.record.clear()
    return outcome


def _branch_inside(
    question: Question, root: Bound, aim: Aim, options: Options, watchers: Watchers, *, rough: bool
) -> Outcome:
    """`branch` without halves of the input: by narrowing the set, and by splits inside of the network."""
    search, rules = options.search, rules_of(options)
    possible = question.batch == 1 and isinstance(question.given, BoxRegion) and not root.boxes.problems
    if possible and search.narrowing > 0:

        def make(narrower: Question, known: Sequence[Boxes]) -> Boxes:
            again = sum(math.prod(node.shape) for node in narrower.index.nodes) <= SMALL
            return tightened_boxes(narrower, options, known, again=again)

        return branch_narrowed(question, root.boxes, aim, rules, search, watchers, make, rough=rough)
    return branch_and_bound(question, root.boxes, aim, rules, search, watchers)


def branch_early(
    question: Question, root: Bound, aim: Aim, options: Options, watchers: Watchers, search: Search
) -> Outcome:
    """Branch and bound over the boxes of `crown`, as long as that promises to end, before those of `joint` are made."""
    return branch_while_promising(question, root.boxes, aim, rules_of(options), search, watchers)


def subtrees(question: Question, boxes: Boxes, aim: Aim, options: Options, watchers: Watchers) -> Subtrees:
    """Branch and bound on given parts of the set, for one of several workers."""
    return Subtrees(question, boxes, aim, rules_of(options), options.search, watchers)


def rules_of(options: Options) -> Rules:
    """The rules of all passes in branch and bound: the affine vertex rule."""
    return Rules(attention=RowRule.AFFINE, pieces=options.pieces, product=options.product)
