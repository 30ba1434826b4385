"""When branch and bound attacks, and from where: the minimisers of the worst open parts' bounds start descents.

Invariant: attacks take no more than their share of the time that the search itself has taken, but for the end of one
that is under way; no input starts two descents for one objective; and no bound ever depends on an attack.
"""

from __future__ import annotations

import collections
import hashlib
import heapq
from collections.abc import Iterable

from torch import Tensor

from vertex_softmax.bounds.frontier import Frontier, Part

LEAST = 0.02
"""Seconds that an attack needs at least: before these are saved up there is none."""
LOOKED_AT = 32
"""The minimisers of so many of the worst parts are looked at; many parts have the same one."""
STARTS = 8
"""From so many inputs an attack descends at most."""


class TreeAttack:
    """The time that attacks have left, and what they have tried."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.worked = 0.0
        """seconds of the search itself"""
        self.spent = 0.0
        """seconds of attacks"""
        self._last = 0.0
        """seconds of the latest attack"""
        self._turns: collections.Counter[int] = collections.Counter()
        """how often each objective was attacked"""
        self._tried: set[bytes] = set()

    @property
    def allowance(self) -> float:
        """Seconds that attacks may take now."""
        return self.share * self.worked - self.spent

    def is_due(self, *, last: bool = False) -> bool:
        """Whether there is time for another attack; the last one takes what is left."""
        return self.allowance > 0 and (last or self.allowance >= max(LEAST, self._last))

    def worst(self, frontier: Frontier) -> list[Part]:
        """The worst open parts of the objective that was attacked least often, those with nothing left to split too."""
        open_ = frontier.open_parts()
        lowest: dict[int, float] = {}
        for part in open_:
            lowest[part.objective] = min(lowest.get(part.objective, 0.0), frontier.shortfall(part))
        if not lowest:
            return []
        chosen = min(lowest, key=lambda objective: (self._turns[objective], lowest[objective]))
        self._turns[chosen] += 1
        return heapq.nsmallest(LOOKED_AT, (part for part in open_ if part.objective == chosen), key=frontier.shortfall)

    def fresh(self, points: Tensor, objectives: Iterable[int]) -> list[int]:
        """Which of the inputs (n, *shape) start a descent: the first few that were not tried for their objectives."""
        chosen: list[int] = []
        for k, (point, objective) in enumerate(zip(points.detach().cpu(), objectives, strict=True)):
            raw = point.contiguous().numpy().tobytes()
            key = hashlib.blake2b(raw, digest_size=16, salt=objective.to_bytes(8, "little")).digest()
            if len(chosen) < STARTS and key not in self._tried:
                self._tried.add(key)
                chosen.append(k)
        return chosen

    def note_work(self, seconds: float) -> None:
        """The search itself has taken so long again."""
        self.worked += seconds

    def note(self, seconds: float) -> None:
        """An attack has taken so long."""
        self._last = seconds
        self.spent += seconds
