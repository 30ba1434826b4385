"""The open parts of a set in branch and bound, and the least bounds of its closed parts.

Invariant: for every objective the open parts and the closed parts together cover the set, and each part's bound holds
on that part. So the least bound over all parts is a lower bound over the whole set at any time.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterable, Sequence

from vertex_softmax.bounds.candidates import Candidate
from vertex_softmax.bounds.choice import Choice
from vertex_softmax.bounds.splits import Split


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A part of the set, the inputs that satisfy all its splits, with one objective and its lower bound there."""

    objective: int
    splits: tuple[Split, ...] = ()
    """the splits that lead from the whole set to this part"""
    bound: float = -math.inf
    candidates: tuple[Candidate, ...] = ()
    """the numbers that may be split next, the most promising first"""
    choice: Choice = dataclasses.field(default_factory=Choice)
    """the part's own free parameters and multipliers, (1, 1, ...) each"""
    target: float | None = None
    """the bound's coefficient on the number of the last split before that split; set until the split has a
    multiplier"""
    origin: int | None = None
    """where branch and bound works on given parts (subtrees.py): the index of the given part in which this one lies"""

    def children(self, candidate: Candidate) -> tuple[Part, Part]:
        """The two sides of a split by this candidate: the number is at least the point, or at most."""
        slope = candidate.slope
        size = abs(slope) if slope != 0 and math.isfinite(slope) else 1.0
        target = None if candidate.inner else slope
        above, below = (
            Split(candidate.node, candidate.place, candidate.point, at_least=side, size=size, inner=candidate.inner)
            for side in (True, False)
        )
        return (
            dataclasses.replace(self, splits=(*self.splits, above), target=target),
            dataclasses.replace(self, splits=(*self.splits, below), target=target),
        )


class Frontier:
    """The open parts in a heap, the one furthest below its goal first; of closed parts only the least bounds."""

    def __init__(self, goals: Sequence[float], known: Sequence[float], ended: list[Part] | None = None) -> None:
        """`known`: bounds of the objectives over the whole set. `ended` receives every part that is closed."""
        self.goals, self.ended = list(goals), ended
        self.closed = [bound if bound > goal else math.inf for bound, goal in zip(known, goals, strict=True)]
        """for each objective the least bound of its closed parts, +∞ if there are none"""
        self.exhausted: list[Part] = []
        """open parts without a number that can be split"""
        self._order = itertools.count()
        whole = [Part(k, bound=bound) for k, bound in enumerate(known) if not bound > goals[k]]
        self._heap = [(self.shortfall(part), next(self._order), part) for part in whole]

    def __len__(self) -> int:
        """The number of open parts that can still be split."""
        return len(self._heap)

    def is_closed(self, part: Part) -> bool:
        """Whether the part's bound is above its goal."""
        return part.bound > self.goals[part.objective]

    def shortfall(self, part: Part) -> float:
        """The part's bound minus its goal: negative or 0 while the part is open."""
        return part.bound - self.goals[part.objective]

    def gather(self, count: int) -> list[Part]:
        """The `count` worst open parts; they stay in the frontier until `replace` is called."""
        return [part for _, _, part in heapq.nsmallest(count, self._heap)]

    def replace(self, taken: Iterable[Part], made: Iterable[Part]) -> None:
        """Replace the parts `taken` by the parts `made`, which cover them."""
        gone = {id(part) for part in taken}
        self._heap = [entry for entry in self._heap if id(entry[2]) not in gone]
        self._push(made)

    def reopen(self, parts: Iterable[Part], goals: Sequence[float]) -> None:
        """Open closed parts again, because they now have to be above other goals; their bounds are set to −∞.

        The frontier then consists of these parts alone: open parts that could not be split any more are forgotten.
        """
        self.goals, self.exhausted = list(goals), []
        opened = [dataclasses.replace(part, bound=-math.inf) for part in parts]
        self._heap = [(self.shortfall(part), next(self._order), part) for part in opened]
        heapq.heapify(self._heap)

    def open_parts(self) -> list[Part]:
        """All open parts: those whose bounds are not above their goals."""
        return [part for _, _, part in self._heap] + self.exhausted

    @property
    def bytes(self) -> int:
        """How many bytes the parameters of the open parts take."""
        return sum(part.choice.bytes for part in self.open_parts())

    def _push(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if self.is_closed(part):
                self.closed[part.objective] = min(self.closed[part.objective], part.bound)
                if self.ended is not None:
                    self.ended.append(part)
            elif part.candidates:
                self._heap.append((self.shortfall(part), next(self._order), part))
            else:
                self.exhausted.append(part)
        heapq.heapify(self._heap)
