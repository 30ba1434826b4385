"""Which stages of the cascade fit into the memory, decided before any of them begins.

Invariant: every stage that is left out has a sentence that says what it may need. The other stages keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from vertex_softmax.bounds.question import Question
from vertex_softmax.methods import third_order
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import Method
from vertex_softmax.methods.sizing import refusal


class Stage(StrEnum):
    """The stages in their order; `verify` goes as far as the method says."""

    ATTACK = "attack"
    CROWN = "crown"
    JOINT = "joint"
    BAB = "bab"


CASCADE = tuple(Stage)
AGAIN = "attack again"
"""The name of the stage to which the time of the second attack is added."""
INSIDE = "attack inside"
"""The name of the stage to which the time of descents from parts of branch and bound is added."""
THIRD_ORDER = "third order"
"""The name of the stage to which the time of zonotopes to third order is added; they belong to `bab`, before its
tree."""
STILL_ROWS = "still rows"
"""The name of the search for rows that cannot move, in messages: if memory runs out there, all rows are bounded."""


def fitting_stages(
    question: Question, wanted: Sequence[str], options: Options, *, cheapest: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The stages that fit, each named as its method, and by name of every other stage the reason why it does not.

    Branch and bound is left out if joint is, because it starts with joint's boxes. `cheapest`: if crown is left out,
    ibp takes its place.
    """
    reasons = {stage: refusal(question, Method(stage), options) for stage in wanted}
    refused = {stage: text for stage, text in reasons.items() if text}
    found = [stage for stage in wanted if stage not in refused]
    if Method.JOINT in refused:
        found = [stage for stage in found if stage != Method.BAB]
    if cheapest and Method.CROWN in refused and not refusal(question, Method.IBP, options):
        found.insert(0, Method.IBP)
    return tuple(found), refused


def third_order_refusal(question: Question, seconds: float, *, proved: bool, shared: bool) -> str:
    """Why branch and bound starts without zonotopes to third order where these would be made; empty if it does not.

    proved: a certificate is wanted, which cannot contain them. shared: other processes grow the tree, and have its
    objectives in their journals; these must not depend on what ended in time.
    """
    if proved:
        return "zonotopes to third order are left out, as they have no certificate"
    if shared:
        return "zonotopes to third order are left out where workers share the tree"
    return third_order.refusal(question, seconds)
