"""The methods `crown`, linear bounds with LSE bounds of softmax, and `alpha-crown`, whose last pass is optimised."""

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
"""Networks with more attentions than this get boxes by zonotopes. On VNN-COMP's ViT with two blocks that raises the
bound of one instance from −.19 to .53, in two thirds of the time (lab/benchmarks/vit.py)."""
FEW_NUMBERS = 1 << 20
"""How many numbers a node's blocks may have for each input in the cheapest attempt (`settled_cheaply`)."""


def crown(question: Question, objective: Objective, options: Options) -> Bound:
    """Bound the objectives by one pass over boxes made by zonotopes if there are several attentions, else by passes."""
    boxes = _boxes(question, options)
    # passes through boxes that only norms limit are looser than the output's box
    passes = Passes(plain=(RowRule.LSE,), by_box=has_intervals_alone(question, options))
    return last_pass(question, boxes, objective, passes, options)


def _boxes(question: Question, options: Options) -> Boxes:
    """Boxes by passes under the LSE rule, or by zonotopes, which are quicker and mostly tighter behind a first
    attention.
    """
    if not are_too_wide(question):
        options = with_zonotopes_early(options)
    return boxes_by_passes(question, RowRule.LSE, options)


def with_zonotopes_early(options: Options) -> Options:
    """The options under which `crown` makes boxes: by zonotopes if there is more than one attention."""
    most = min(MOST_ATTENTIONS_BY_LSE, options.attentions_by_passes)
    return dataclasses.replace(options, attentions_by_passes=most)


def has_cheaper_boxes(question: Question, options: Options) -> bool:
    """Whether `crown` makes its boxes by zonotopes but `joint` by passes, which take several times as long."""
    early = uses_zonotopes(question, with_zonotopes_early(options))
    return early and not uses_zonotopes(question, options)


def alpha_crown(
    question: Question,
    objective: Objective,
    options: Options,
    boxes: Boxes | None = None,
    known: Tensor | None = None,
) -> Bound:
    """`alpha-crown`: the boxes of `crown` (which may be given), and an optimised last pass.

    `known`: bounds (batch, S) that are known already. The result is at least these, and the ascent ends early if it
    does not come near them.
    """
    if boxes is None:
        boxes = _boxes(question, options)
    passes = Passes(plain=(RowRule.LSE,), optimised=(RowRule.LSE,))
    return last_pass(question, boxes, objective, passes, options, known)


def settled_cheaply(question: Question, objective: Objective, options: Options) -> Bound | None:
    """The bound of `crown` over cheaper zonotopes, if it is above the goal everywhere; else None. None without a goal.

    The first attempt limits the numbers of each node: then most unknowns stay local to a row, which takes a tenth of
    the time if there are many rows. The second has no products of the input's unknowns (docs/norms.md), which take ten
    times the time of everything else.
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
