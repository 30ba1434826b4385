"""The attack on what bounds leave open, in step with branch and bound: how much of it is due.

Invariant: until the end it has taken no more than the share of its seconds that has passed of the time between the two,
but for the end of a piece that is under way. So a search that is soon done pays for little of it, and one that takes
all of its time for all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vertex_softmax.search.falsify import PausedSearch
from vertex_softmax.search.visits import Found

LEAST = 0.5
"""Seconds of a piece, at least: the batches of an attack need some to find their size."""


class SecondAttack:
    """An attack that is made in pieces."""

    def __init__(self, make: Callable[[], PausedSearch], seconds: float, first: float, end: float) -> None:
        """`make`: called for the first piece. seconds: of all pieces. From `first` to `end`, of `time.perf_counter`."""
        self._make, self._left, self._seconds = make, seconds, seconds
        self._begin, self._first, self._end = time.perf_counter(), first, end
        self._attack: PausedSearch | None = None

    def due(self, *, last: bool = False) -> float:
        """The seconds of the next piece, 0 if it is not due; the last one takes all that is left."""
        now = time.perf_counter()
        if last or now >= self._end:
            return max(0.0, self._left)
        passed = (now - self._begin) / (self._end - self._begin)
        seconds = self._left - (1 - passed) * self._seconds
        return seconds if now > self._first and seconds >= min(LEAST, self._left) else 0.0

    def resume(self, seconds: float) -> Found:
        """Go on for some seconds; where memory is exhausted on the way there is no other piece."""
        begin, left = time.perf_counter(), self._left
        self._left = 0.0
        if self._attack is None:
            self._attack = self._make()
        found = self._attack.resume(begin + seconds)
        self._left = left - (time.perf_counter() - begin)
        return found
