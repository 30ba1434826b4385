"""`crown`: linear bounds, softmax by its linear (LSE) bounds; `alpha-crown`: its last pass optimised."""

from __future__ import annotations

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotopes import has_products
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.boxes import boxes_by_passes, has_intervals_alone, uses_zonotopes
from vertex_softmax.methods.last_pass import Passes, last_pass
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule


def crown(question: Question, objective: Objective, options: Options) -> Bound:
    """Boxes by passes under the LSE rule, and one pass from the objectives."""
    boxes = boxes_by_passes(question, RowRule.LSE, options)
    # passes through boxes as wide as what norms allow give less than the output's box
    passes = Passes(plain=(RowRule.LSE,), by_box=has_intervals_alone(question, options))
    return last_pass(question, boxes, objective, passes, options)


def alpha_crown(question: Question, objective: Objective, options: Options, boxes: Boxes | None = None) -> Bound:
    """The same boxes (those of `crown`, if they are given), and the last pass optimised."""
    if boxes is None:
        boxes = boxes_by_passes(question, RowRule.LSE, options)
    passes = Passes(plain=(RowRule.LSE,), optimised=(RowRule.LSE,))
    return last_pass(question, boxes, objective, passes, options)


def settled_to_first_order(question: Question, objective: Objective, options: Options) -> Bound | None:
    """`crown` without products of the input's unknowns, if that is above the goal everywhere; None otherwise.

    Where norms have such products (docs/norms.md) they take some ten times the time of all else. Nothing is tried
    without a goal, and where there are no products.
    """
    goal = options.goal
    if goal is None or not uses_zonotopes(question, options) or not has_products(question):
        return None
    found = crown(question.to_first_order(), objective, options)
    return found if bool((found.lower > goal).all()) else None
