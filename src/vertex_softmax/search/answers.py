"""How much time a question may take, and what an answer has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from torch import Tensor

from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import Record
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops.rules import Rules
from vertex_softmax.search.replay import Counterexample


@dataclasses.dataclass(frozen=True)
class Budget:
    """Seconds in all, and which shares of what is left the attacks may take; the rest is for bounds."""

    seconds: float = 100.0
    first: float = 0.02
    """of the attack before branch and bound; a part of it comes before any bound"""
    second: float = 0.15
    """of the attack on what bounds leave open"""
    after: float = 0.1
    """when that begins: after this share was spent on branch and bound, or where that ended before"""
    most: float = 10.0
    """seconds of one attack, at most"""

    def __post_init__(self) -> None:
        if not self.seconds > 0 or math.isinf(self.seconds):
            raise InvalidValueError(f"the time budget is {self.seconds!r} seconds; it must be a number above 0")
        if not (all(0 <= share <= 1 for share in (self.first, self.second, self.after)) and self.most >= 0):
            raise InvalidValueError(f"{self}: shares are from 0 to 1")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is known of a property when the time is over or the question answered."""

    verdict: Verdict
    reason: str
    """in words, why"""
    stage: str
    """the stage or method that decided; empty if none did"""
    counterexample: Counterexample | None
    bounds: tuple[tuple[float, ...], ...]
    """per case and conjunction: the best lower bound of λ·C y − λ·d; excluded if it clears the guard"""
    nearest: float
    """the least violation an attack saw: 0 or less would be a counterexample; inf if there was none"""
    domains: int
    seconds: dict[str, float]
    rates: dict[str, float] = dataclasses.field(default_factory=dict)
    """`parts_per_second` and `bounds_per_second` in the trees of branch and bound; empty if there was none. Trials of
    splits and steps of ascents count as bounds; workers tell of parts alone"""
    searched: tuple[CaseSearch, ...] = ()
    """if they were asked for, the searches of branch and bound, with the leaves of their trees"""


@dataclasses.dataclass(frozen=True, eq=False)
class CaseSearch:
    """A search of branch and bound, the conjunctions of one case that it has excluded, and the leaves of these."""

    case: int
    excluded: Mapping[int, tuple[int, Tensor]]
    """by objective: the conjunction that it has excluded, counted within the case, and the mix of its rows that the
    objective is, (m,)"""
    question: Question
    rules: Rules
    record: Record
