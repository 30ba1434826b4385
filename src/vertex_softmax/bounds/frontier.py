"""The open parts of a set in branch and bound, and what is known of the closed ones.

Invariant: for every objective the open parts and the closed ones together cover the set, and a part's bound holds on
it. So the least bound over all parts is a lower bound over the whole set at any time.
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
    """A part of the set, and for one objective what was found there."""

    objective: int
    splits: tuple[Split, ...] = ()
    """on the way from the whole set to this part"""
    bound: float = -math.inf
    candidates: tuple[Candidate, ...] = ()
    """what to split next, most promising first"""
    choice: Choice = dataclasses.field(default_factory=Choice)
    """the part's own free parameters and multipliers, (1, 1, ...) each"""
    target: float | None = None
    """the coefficient on the last split's number before the split, until its multiplier is set"""
    origin: int | None = None
    """the number of the given part that it lies in, where branch and bound was given parts (subtrees.py)"""

    def children(self, candidate: Candidate) -> tuple[Part, Part]:
        """The two parts of a split: at least, and at most."""
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
    """Open parts, the worst first; of closed parts only the least bound of each objective is kept."""

    def __init__(self, goals: Sequence[float], known: Sequence[float], ended: list[Part] | None = None) -> None:
        """`known`: bounds over the whole set. `ended`: gets every part that is closed from now on."""
        self.goals, self.ended = list(goals), ended
        self.closed = [bound if bound > goal else math.inf for bound, goal in zip(known, goals, strict=True)]
        """the least bound of the parts that are above the goal, for each objective"""
        self.exhausted: list[Part] = []
        """open parts with nothing left to split"""
        self._order = itertools.count()
        whole = [Part(k, bound=bound) for k, bound in enumerate(known) if not bound > goals[k]]
        self._heap = [(self.shortfall(part), next(self._order), part) for part in whole]

    def __len__(self) -> int:
        """How many parts can still be split."""
        return len(self._heap)

    def is_closed(self, part: Part) -> bool:
        """Whether the part's bound is above its goal."""
        return part.bound > self.goals[part.objective]

    def shortfall(self, part: Part) -> float:
        """The part's bound less its goal."""
        return part.bound - self.goals[part.objective]

    def gather(self, count: int) -> list[Part]:
        """The worst open parts; they stay in the frontier until `replace` puts others in their place."""
        return [part for _, _, part in heapq.nsmallest(count, self._heap)]

    def replace(self, taken: Iterable[Part], made: Iterable[Part]) -> None:
        """Put parts that cover the taken ones in their place."""
        gone = {id(part) for part in taken}
        self._heap = [entry for entry in self._heap if id(entry[2]) not in gone]
        self._push(made)

    def reopen(self, parts: Iterable[Part], goals: Sequence[float]) -> None:
        """Open parts that were closed, because they have to be above other goals now; of their bounds nothing is known.

        The parts that nothing was left to split of are forgotten.
        """
        self.goals, self.exhausted = list(goals), []
        opened = [dataclasses.replace(part, bound=-math.inf) for part in parts]
        self._heap = [(self.shortfall(part), next(self._order), part) for part in opened]
        heapq.heapify(self._heap)

    def open_parts(self) -> list[Part]:
        """All parts that are not above their goals."""
        return [part for _, _, part in self._heap] + self.exhausted

    @property
    def bytes(self) -> int:
        """What the parameters of the open parts take."""
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
