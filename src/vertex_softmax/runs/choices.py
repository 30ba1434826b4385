"""The answer for one sentence and all combinations of its words, by branching on choices (search/choices.py).

Invariant: `falsified` only with a combination of ids that bounds over its embeddings alone put on the wrong side, by
more than rounding can have added, and that the user's own module misclassifies too, in its own precision, when it is
given these ids.
"""

from __future__ import annotations

import dataclasses
import time

import torch
from torch import Tensor

from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.centres import Centres
from vertex_softmax.runs.classes import Classes
from vertex_softmax.search.choices import Decision, Ending, decide
from vertex_softmax.sets.choice_region import ChoiceRegion
from vertex_softmax.sets.token_choices import TokenChoices

SHOWN = 8
"""At most how many replaced words a reason names."""


@dataclasses.dataclass(frozen=True, eq=False)
class Decided:
    """What branching on choices says of one sentence."""

    verdict: Verdict
    reason: str
    lower: Tensor
    """(S,): lower bounds of the objectives over all combinations; −inf where nothing is known"""
    counterexample: Tensor
    """a combination's embeddings, (tokens, d), if it is falsified; else NaN"""
    seconds: dict[str, float]
    effort: dict[str, float]
    """how many parts were bounded, and how many combinations evaluated"""


def decided_by_choices(
    graph: Graph, region: ChoiceRegion, objective: Objective, centres: Centres, classes: Classes
) -> Decided:
    """Decide margins (1, S) over the combinations of one sentence; `centres` are of its set."""
    begin, words = time.perf_counter(), centres.input_set
    if not isinstance(words, TokenChoices):
        raise InternalError("only a set of choices has a region of choices")

    def accept(point: Tensor) -> bool:
        alone = words.only(words.ids_of(_point(words, point)[None])[:, 0])
        at = dataclasses.replace(centres, input_set=alone)
        return bool(at.misclassified(classes, torch.ones_like(classes.labels, dtype=torch.bool)).all())

    found = decide(graph, region, objective.coefficients.A[0], centres.options.search, accept)
    seconds = {"choices": time.perf_counter() - begin}
    effort: dict[str, float] = {"parts": found.parts, "evaluated": found.evaluated}
    if found.witness is not None:
        point = _point(words, found.witness)
        margin = float((graph.evaluate(found.witness).flatten() @ objective.coefficients.A[0].flatten(1).mT).min())
        reason = f"{_replaced(words, point)} misclassified (margin {margin:.6g})"
        return Decided(Verdict.FALSIFIED, reason, found.lower, point[0], seconds, effort)
    verdict = Verdict.VERIFIED if found.stopped is Ending.DONE else Verdict.UNKNOWN
    none = torch.full_like(words.centre[0], torch.nan)
    return Decided(verdict, "" if verdict is Verdict.VERIFIED else _why(found), found.lower, none, seconds, effort)


def _point(words: TokenChoices, point: Tensor) -> Tensor:
    """A combination (*graph input shape) as (1, tokens, d)."""
    return point.reshape(words.shape).double().to(words.centre.device)


def _replaced(words: TokenChoices, point: Tensor) -> str:
    """Which words of the sentence a combination (1, tokens, d) replaces, for a reason."""
    ids, own = words.ids_of(point[None])[0, 0].tolist(), words.ids[0].tolist()
    changed = [f"{new} at position {t}" for t, (new, old) in enumerate(zip(ids, own, strict=True)) if new != old]
    if not changed:
        return "the sentence itself is"
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return f"the sentence with the ids {', '.join(changed[:SHOWN])}{more} is"


def _why(found: Decision) -> str:
    return f"{found.parts} parts were bounded and {found.evaluated} combinations evaluated: {found.stopped}"
