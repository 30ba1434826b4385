"""When branch and bound attacks, and from where: from the inputs where the worst open parts' bounds are least.

Invariant: attacks take at most their share of the time that the search itself has taken, except for the end of an
attack that is under way; no input starts two descents for one objective; and no bound depends on an attack.
"""

from __future__ import annotations

import collections
import hashlib
import heapq
from collections.abc import Iterable

from torch import Tensor

from vertex_softmax.bounds.frontier import Frontier, Part

LEAST = 0.02
"""Seconds that an attack needs at least; none starts before they have been saved up."""
LOOKED_AT = 32
"""How many of the worst parts contribute the minimiser of their bound; many parts have the same one."""
STARTS = 8
"""How many inputs one attack starts from, at most."""


class TreeAttack:
    """The time budget of attacks, and the inputs they have started from."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.worked = 0.0
        """seconds spent by the search itself"""
        self.spent = 0.0
        """seconds spent by attacks"""
        self._last = 0.0
        """seconds spent by the latest attack"""
        self._turns: collections.Counter[int] = collections.Counter()
        """how often each objective has been attacked"""
        self._tried: set[bytes] = set()

    @property
    def allowance(self) -> float:
        """Seconds that attacks may take now."""
        return self.share * self.worked - self.spent

    def is_due(self, *, last: bool = False) -> bool:
        """Whether there is time for another attack; the last one may use whatever is left."""
        return self.allowance > 0 and (last or self.allowance >= max(LEAST, self._last))

    def worst(self, frontier: Frontier) -> list[Part]:
        """The worst open parts of the objective that was attacked least often, including parts that cannot be split."""
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
        """The indices of the inputs (n, *shape) to start from: the first few that were not yet tried for their
        objectives.
        """
        chosen: list[int] = []
        for k, (point, objective) in enumerate(zip(points.detach().cpu(), objectives, strict=True)):
            raw = point.contiguous().numpy().tobytes()
            key = hashlib.blake2b(raw, digest_size=16, salt=objective.to_bytes(8, "little")).digest()
            if len(chosen) < STARTS and key not in self._tried:
                self._tried.add(key)
                chosen.append(k)
        return chosen

    def note_work(self, seconds: float) -> None:
        """Add to the time that the search itself has taken."""
        self.worked += seconds

    def note(self, seconds: float) -> None:
        """Add to the time that attacks have taken."""
        self._last = seconds
        self.spent += seconds
