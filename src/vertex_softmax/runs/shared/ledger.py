"""The parts of a shared search: which are open, and the least bound of those that are closed.

Invariant: for every objective the open parts and the closed ones cover the set, at any time. A part leaves only when a
whole tree of splits takes its place (bounds/split_trees.py), whose leaves cover it whatever their bounds are; a leaf is
closed only if its bound is finite and above the objective's goal. So nothing is proved before every part is closed.

Parts are numbered in the order in which they appear, closed ones too: the same trees in the same order give the same
numbers, whatever the goals are. That is how a journal names them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from vertex_softmax.bounds.split_trees import PlacedLeaf, SplitTree, leaves_of
from vertex_softmax.bounds.subtrees import GivenPart
from vertex_softmax.foundation.errors import InvalidValueError


@dataclasses.dataclass(frozen=True, eq=False)
class OpenPart:
    """A part whose bound is not above its goal."""

    part: GivenPart
    exhausted: bool = False
    """whether a worker found nothing left to split in it"""
    home: str = ""
    """the worker that made it, which knows more of it than others"""


@dataclasses.dataclass(frozen=True, eq=False)
class Replacement:
    """A tree in place of a part, which was checked."""

    number: int
    leaves: tuple[PlacedLeaf, ...]


class Ledger:
    """Open parts by number, and what is known of the closed ones."""

    def __init__(self, goals: Sequence[float], known: Sequence[float]) -> None:
        """The whole set for each objective whose known bound is not above its goal."""
        self.goals = list(goals)
        self.closed = [math.inf] * len(self.goals)
        """the least bound of the closed parts of each objective; inf if there are none"""
        self.closed_count = 0
        self._open: dict[int, OpenPart] = {}
        self._next = 0
        for objective, bound in enumerate(known):
            whole = GivenPart(objective, (), -math.inf if math.isnan(bound) else bound)
            self._add(whole, OpenPart(whole))

    @property
    def open(self) -> Mapping[int, OpenPart]:
        """The open parts by number."""
        return self._open

    def bounds(self) -> list[float]:
        """The least bound over all parts, for each objective."""
        found = list(self.closed)
        for each in self._open.values():
            found[each.part.objective] = min(found[each.part.objective], each.part.bound)
        return found

    def counts(self) -> list[int]:
        """How many parts of each objective are open."""
        found = [0] * len(self.goals)
        for each in self._open.values():
            found[each.part.objective] += 1
        return found

    def worst(self) -> float:
        """How far the bound of an open part is below its goal at most, as a number below 0; inf if none is open."""
        return min((e.part.bound - self.goals[e.part.objective] for e in self._open.values()), default=math.inf)

    def is_known(self, number: int) -> bool:
        """Whether there is, or was, a part of this number."""
        return 0 <= number < self._next

    def checked(self, number: int, tree: SplitTree) -> Replacement:
        """A tree that may take the place of an open part; raises if it may not. Nothing is changed yet."""
        if number not in self._open:
            raise InvalidValueError(f"part {number} is not open; its answer came twice, or is another search's")
        return Replacement(number, _sound_leaves(tree))

    def replace(self, replacement: Replacement, home: str = "") -> None:
        """Put the leaves of a tree in the place of the part."""
        old = self._open.pop(replacement.number)
        for splits, leaf in replacement.leaves:
            bound = max(leaf.bound, old.part.bound)  # a bound of the whole part holds on its leaves
            part = GivenPart(old.part.objective, (*old.part.splits, *splits), bound, leaf.multipliers)
            self._add(part, OpenPart(part, leaf.exhausted, home))

    def skip(self, tree: SplitTree) -> None:
        """Count the leaves of a tree in the place of a part that is closed: with other goals it was open."""
        self._next += len(_sound_leaves(tree))

    def _add(self, part: GivenPart, entry: OpenPart) -> None:
        if math.isfinite(part.bound) and part.bound > self.goals[part.objective]:
            self.closed[part.objective] = min(self.closed[part.objective], part.bound)
            self.closed_count += 1
        else:
            self._open[self._next] = entry
        self._next += 1


def _sound_leaves(tree: SplitTree) -> tuple[PlacedLeaf, ...]:
    """The leaves of a tree; raises unless it is whole, and no bound is NaN or +inf, which is none."""
    leaves = tuple(leaves_of(tree))
    for _, leaf in leaves:
        if math.isnan(leaf.bound) or leaf.bound == math.inf:
            raise InvalidValueError(f"the bound of a part is {leaf.bound}, which is no bound")
    return leaves
