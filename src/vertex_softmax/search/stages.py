"""Which stages of the cascade fit into the memory, before any of them begins.

Invariant: a stage that is left out has a sentence that says what it may need. What is left is in its order.
"""

from __future__ import annotations

from collections.abc import Sequence

from vertex_softmax.bounds.question import Question
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import Method
from vertex_softmax.methods.sizing import refusal


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
