"""The methods by name: every command and function that takes a name runs the same recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import StrEnum

from vertex_softmax.bounds.branch_and_bound import Watchers
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.methods.bab import BranchedBound, bab, searched
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.crown import alpha_crown, crown, settled_cheaply
from vertex_softmax.methods.hybrid import hybrid
from vertex_softmax.methods.ibp import ibp
from vertex_softmax.methods.joint import joint
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.vertex import vertex
from vertex_softmax.ops.rules import RowRule


class Method(StrEnum):
    """The ways to bound a network, from the quickest to the tightest."""

    IBP = "ibp"
    CROWN = "crown"
    ALPHA_CROWN = "alpha-crown"
    VERTEX = "vertex"
    HYBRID = "hybrid"
    JOINT = "joint"
    BAB = "bab"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A method, with what is needed to estimate its memory and to judge its bounds."""

    run: Callable[[Question, Objective, Options], Bound]
    """lower bounds of dense objectives (batch, S, *output shape) on the output"""
    rule: RowRule | None
    """the row rule of its last pass, whose terms give the allowance for rounding; None: no pass, only the output's
    box"""
    box_sets: int = 1
    """how many sets of boxes are alive at once"""
    tables: bool = True
    """whether it makes tables of rows × keys² numbers"""
    tightened: bool = False
    """whether it makes generators"""
    branches: bool = False
    """whether it may run branch and bound, which takes one input at a time"""


METHODS: dict[Method, Recipe] = {
    Method.IBP: Recipe(ibp, None, box_sets=0, tables=False),
    Method.CROWN: Recipe(crown, RowRule.LSE),
    Method.ALPHA_CROWN: Recipe(alpha_crown, RowRule.LSE),
    Method.VERTEX: Recipe(vertex, RowRule.VERTEX, tables=False),
    Method.HYBRID: Recipe(hybrid, RowRule.LSE, box_sets=3),
    Method.JOINT: Recipe(joint, RowRule.AFFINE, box_sets=4, tightened=True),
    Method.BAB: Recipe(bab, RowRule.AFFINE, box_sets=4, tightened=True, branches=True),
}


def method_named(name: object) -> Method:
    """The method of that name."""
    if not isinstance(name, str) or name not in METHODS:
        raise InvalidValueError(f"method is {name!r}; choose one of {', '.join(METHODS)}")
    return Method(name)


@full_precision()
def lower_bounds(question: Question, objective: Objective, method: Method, options: Options) -> Bound:
    """Lower bounds of dense objectives on the output by one method, or with a goal by cheaper bounds that reach it."""
    recipe = METHODS[method]
    if recipe.rule is not None and (quick := settled_cheaply(question, objective, options)) is not None:
        return quick
    return recipe.run(question, objective, options)


@full_precision()
def searched_bounds(question: Question, objective: Objective, options: Options, watchers: Watchers) -> BranchedBound:
    """The bounds of `bab` for one input, with the watchers of branch and bound and its outcome."""
    quick = settled_cheaply(question, objective, options)
    return searched(question, objective, options, watchers) if quick is None else BranchedBound(quick, None)
