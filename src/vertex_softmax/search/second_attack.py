"""The second attack, on what bounds leave open, made in pieces between steps of branch and bound.

Invariant: when a share of the time from its construction to its `end` has passed, at most that share of its seconds has
been used, except for the end of a piece that is under way. So a search that ends soon spends little on the attack, and
one that takes all of its time spends all of the attack's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vertex_softmax.search.falsify import PausedSearch
from vertex_softmax.search.visits import Found

LEAST = 0.5
"""The least seconds of a piece: the batches of an attack need some time to find their size."""


class SecondAttack:
    """An attack made in pieces."""

    def __init__(self, make: Callable[[], PausedSearch], seconds: float, first: float, end: float) -> None:
        """`make` is called for the first piece. seconds: of all pieces together. first, end: on the clock of
        time.perf_counter.
        """
        self._make, self._left, self._seconds = make, seconds, seconds
        self._begin, self._first, self._end = time.perf_counter(), first, end
        self._attack: PausedSearch | None = None

    def due(self, *, last: bool = False) -> float:
        """The seconds of the next piece, 0 if none is due; the last piece takes all that is left."""
        now = time.perf_counter()
        if last or now >= self._end:
            return max(0.0, self._left)
        passed = (now - self._begin) / (self._end - self._begin)
        seconds = self._left - (1 - passed) * self._seconds
        return seconds if now > self._first and seconds >= min(LEAST, self._left) else 0.0

    def resume(self, seconds: float) -> Found:
        """Go on for some seconds; if memory runs out meanwhile, there are no more pieces."""
        begin, left = time.perf_counter(), self._left
        self._left = 0.0
        if self._attack is None:
            self._attack = self._make()
        found = self._attack.resume(begin + seconds)
        self._left = left - (time.perf_counter() - begin)
        return found
