"""`crown`: linear bounds, softmax by its linear (LSE) bounds; `alpha-crown`: its last pass optimised."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotopes import are_too_wide, input_products
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.boxes import boxes_by_passes, has_intervals_alone, uses_zonotopes
from vertex_softmax.methods.last_pass import Passes, last_pass
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule

MOST_ATTENTIONS_BY_LSE = 1
"""Networks with more attentions have their boxes by zonotopes: on VNN-COMP's ViT with two blocks the bound of one
instance rises from −.19 to .53, in two thirds of the time (lab/benchmarks/vit.py)."""
FEW_NUMBERS = 1 << 20
"""How many numbers a node's blocks may have in the cheapest try, for each input."""


def crown(question: Question, objective: Objective, options: Options) -> Bound:
    """Boxes by zonotopes if there are several attentions, else by passes; and one pass from the objectives."""
    boxes = _boxes(question, options)
    # passes through boxes as wide as what norms allow give less than the output's box
    passes = Passes(plain=(RowRule.LSE,), by_box=has_intervals_alone(question, options))
    return last_pass(question, boxes, objective, passes, options)


def _boxes(question: Question, options: Options) -> Boxes:
    """By passes under the LSE rule; behind a first attention zonotopes are quicker, and mostly tighter."""
    if not are_too_wide(question):
        options = with_zonotopes_early(options)
    return boxes_by_passes(question, RowRule.LSE, options)


def with_zonotopes_early(options: Options) -> Options:
    """The options under which `crown` makes boxes: by zonotopes behind the first attention."""
    most = min(MOST_ATTENTIONS_BY_LSE, options.attentions_by_passes)
    return dataclasses.replace(options, attentions_by_passes=most)


def has_cheaper_boxes(question: Question, options: Options) -> bool:
    """Whether `crown` has boxes by zonotopes and `joint` by passes, which take several times as long."""
    early = uses_zonotopes(question, with_zonotopes_early(options))
    return early and not uses_zonotopes(question, options)


def alpha_crown(
    question: Question,
    objective: Objective,
    options: Options,
    boxes: Boxes | None = None,
    known: Tensor | None = None,
) -> Bound:
    """The same boxes (those of `crown`, if they are given), and the last pass optimised.

    With bounds (batch, S) that are known it is as good as those, and ends early where it does not come near them.
    """
    if boxes is None:
        boxes = _boxes(question, options)
    passes = Passes(plain=(RowRule.LSE,), optimised=(RowRule.LSE,))
    return last_pass(question, boxes, objective, passes, options, known)


def settled_cheaply(question: Question, objective: Objective, options: Options) -> Bound | None:
    """`crown` over cheaper zonotopes, if that is above the goal everywhere; None otherwise, and without a goal.

    First with few numbers: most unknowns stand in one row alone, which takes a tenth of the time where there are many
    rows. Then without products of the input's unknowns, where there are any (docs/norms.md): they take ten times the
    time of all else.
    """
    if options.goal is None or not uses_zonotopes(question, options):
        return None
    tries = [question.to_first_order(FEW_NUMBERS)]
    if input_products(question) is not None:
        tries.append(question.to_first_order())
    for cheaper in tries:
        found = crown(cheaper, objective, options)
        if bool((found.lower > options.goal).all()):
            return found
    return None
