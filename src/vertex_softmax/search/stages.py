"""Which stages of the cascade fit into the memory, before any of them begins.

Invariant: a stage that is left out has a sentence that says what it may need. What is left is in its order.
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
    """The stages in their order: `verify` goes as far as it is told."""

    ATTACK = "attack"
    CROWN = "crown"
    JOINT = "joint"
    BAB = "bab"


CASCADE = tuple(Stage)
AGAIN = "attack again"
"""The name under which the time of the second attack is reported."""
INSIDE = "attack inside"
"""The name under which the time of descents from parts of branch and bound is reported."""
THIRD_ORDER = "third order"
"""The name under which the time of zonotopes to third order is reported: they are a part of `bab`, before its tree."""
STILL_ROWS = "still rows"
"""What is said to have ended where there is no memory to find rows that cannot move: all are bounded then."""


def fitting_stages(
    question: Question, wanted: Sequence[str], options: Options, *, cheapest: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The stages, each named as its method, that fit; and by name of the others why they do not.

    Branch and bound is left out where joint is, with whose boxes it begins. `cheapest`: ibp takes the place of crown if
    that is left out.
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
    """Why branch and bound begins without zonotopes to third order, where these are meant; empty if it does not.

    proved: a certificate is wanted, and they have none. shared: the tree is others', who have its objectives in their
    journals: these must not depend on what ended in time.
    """
    if proved:
        return "zonotopes to third order are left out, as they have no certificate"
    if shared:
        return "zonotopes to third order are left out where workers share the tree"
    return third_order.refusal(question, seconds)
