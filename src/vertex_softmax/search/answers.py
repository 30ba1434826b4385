"""The time budget of a question, and the content of an answer."""

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
    """Seconds in all, and the shares of them that attacks may take; the rest is for bounds."""

    seconds: float = 100.0
    first: float = 0.02
    """the share of the attack before branch and bound; part of it comes before any bound"""
    second: float = 0.15
    """the share of the second attack, on what bounds leave open"""
    after: float = 0.1
    """when the second attack begins: after this share of the time of branch and bound, or when that has ended"""
    most: float = 10.0
    """the most seconds that one attack may take"""

    def __post_init__(self) -> None:
        if not self.seconds > 0 or math.isinf(self.seconds):
            raise InvalidValueError(f"the time budget is {self.seconds!r} seconds; it must be a number above 0")
        if not (all(0 <= share <= 1 for share in (self.first, self.second, self.after)) and self.most >= 0):
            raise InvalidValueError(f"{self}: shares are from 0 to 1")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is known of a property when the question is answered or the time is over."""

    verdict: Verdict
    reason: str
    """the reason, in words"""
    stage: str
    """the stage or method that decided; empty if none did"""
    counterexample: Counterexample | None
    bounds: tuple[tuple[float, ...], ...]
    """by case and conjunction: the best lower bound of λ·C y − λ·d; the conjunction is excluded if it exceeds the
    guard"""
    nearest: float
    """the least violation that an attack has observed; 0 or less would be a counterexample; inf if there was no
    attack"""
    domains: int
    seconds: dict[str, float]
    rates: dict[str, float] = dataclasses.field(default_factory=dict)
    """`parts_per_second` and `bounds_per_second` of branch and bound; empty if there was none. Bounds include trials of
    splits and steps of ascents; workers report only parts"""
    searched: tuple[CaseSearch, ...] = ()
    """the searches of branch and bound with the leaves of their trees, if they were asked for"""


@dataclasses.dataclass(frozen=True, eq=False)
class CaseSearch:
    """A search of branch and bound on one case, with the conjunctions that it has excluded and the leaves that prove
    it.
    """

    case: int
    excluded: Mapping[int, tuple[int, Tensor]]
    """by objective: the conjunction that it has excluded, counted within the case, and the weights (m,) of the mix of
    its rows that the objective is"""
    question: Question
    rules: Rules
    record: Record
