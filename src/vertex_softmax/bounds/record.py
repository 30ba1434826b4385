"""The record of a search: the parts it closed and the parameters it used, from which its result can be proved again.

Invariant: for an objective that has no open part and was not decided over a narrower set, the recorded leaves cover the
whole set, and each is the end of one branch of its tree. Tensors that several leaves have in common are stored once.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.ascent import AscendedEntries
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import Choice
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.splits import Split
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.interval import Interval

if TYPE_CHECKING:
    from vertex_softmax.bounds.aims import Outcome
    from vertex_softmax.bounds.halving import ClosedBox
    from vertex_softmax.bounds.question import Question

Resume = Callable[[Sequence[Part], Sequence[float], float], "Outcome"]
"""Opens closed parts again with higher goals (n,), and continues the search for some seconds."""


class NarrowedTree(NamedTuple):
    """The tree of one objective over what narrowing has left of its set."""

    question: Question
    """the question about what is left"""
    record: Record
    """the record of a search for this objective alone, which has index 0 in it"""
    cuts: tuple[Choice, ...] = ()
    """the parameters of the linear bounds that cut the set (`RestRecord.cuts`)"""


@dataclasses.dataclass(eq=False)
class RestRecord:
    """How one objective was decided on a part of its set or on all of it: the part was cut, then bounded or split.

    Parameters are stored in single precision, which is sound because any values are.
    """

    splits: tuple[Split, ...] = ()
    """the splits that lead from the whole set to the part"""
    cuts: list[Choice] = dataclasses.field(default_factory=list)
    """the parameters of the linear bounds by which the part was narrowed, each over what the one before had left"""
    last: Choice = dataclasses.field(default_factory=Choice)
    """the parameters of the last bound over what is left"""
    tree: Record | None = None
    """the closed leaves of the tree over what is left, with all splits from the whole set on; None: `last` closed the
    part"""
    pieces: list[RestRecord] = dataclasses.field(default_factory=list)
    """the leaves of that tree that were narrowed in turn"""

    def cut(self, choice: Choice) -> None:
        """Record that the part was narrowed by a linear bound with these parameters."""
        self.cuts.append(single(choice))

    def bound(self, choice: Choice) -> None:
        """Record the parameters of a bound over what is left."""
        self.last = single(choice)

    def split(self, tree: Record, pieces: Sequence[Part]) -> list[RestRecord]:
        """Record the tree over what is left, and which of its parts are narrowed in turn; return a record for each of
        these.
        """
        tree.drop(pieces)
        self.tree, self.pieces = tree, [RestRecord(piece.splits) for piece in pieces]
        return self.pieces


def single(choice: Choice) -> Choice:
    """A copy of the choice in single precision, which does not keep the batch alive that it was computed in."""
    return choice.map(lambda value: value.detach().to(torch.float32, copy=True))


class Record:
    """The leaves of a search, in the order in which they were closed, and what they were bounded with."""

    def __init__(self) -> None:
        self.leaves: list[Part] = []
        """every part that was closed, with all of its parameters"""
        self.boxes: Boxes | None = None
        """the boxes of the whole set, as the search had them at its end"""
        self.inner: Mapping[Node, Interval] = {}
        """by node, the range before any split of what its op computes inside"""
        self.functionals: dict[int, Mapping[Node, Tensor]] = {}
        """by objective and attention: the coefficients (..., n, d) to which the ellipsoids of the values were fitted"""
        self.late: AscendedEntries | None = None
        """how the box of the last exact splits was optimised (`Search.late`); None if it was not"""
        self.open: set[int] = set()
        """the objectives with an open part, whose leaves do not cover the set"""
        self.narrowed: dict[int, NarrowedTree | RestRecord] = {}
        """how objectives were decided that were decided over a narrower set (narrowed_search.py)"""
        self.halves: dict[int, list[ClosedBox]] = {}
        """by objective that was decided by halving the input (halving.py): the boxes in which it was, which cover the
        set"""
        self._resume: Resume | None = None
        self._stored: dict[tuple[object, ...], Tensor] = {}

    def add(self, part: Part) -> None:
        """Add a closed part with all of its parameters."""
        self.leaves.append(dataclasses.replace(part, candidates=(), choice=part.choice.map(self._once)))

    def decides(self, objective: int) -> bool:
        """Whether this record decides the objective."""
        by_leaves = objective not in self.open and any(leaf.objective == objective for leaf in self.leaves)
        return by_leaves or objective in self.narrowed or objective in self.halves

    def drop(self, pieces: Sequence[Part]) -> None:
        """Remove the leaves that lie in one of these parts."""
        inside = [piece.splits for piece in pieces]
        self.leaves = [
            leaf for leaf in self.leaves if not any(leaf.splits[: len(splits)] == splits for splits in inside)
        ]

    def forget(self, objectives: Iterable[int]) -> None:
        """Remove everything about some objectives, because another search decides them, or none does."""
        gone = set(objectives)
        self.leaves = [leaf for leaf in self.leaves if leaf.objective not in gone]
        self.functionals = {k: each for k, each in self.functionals.items() if k not in gone}
        self.narrowed = {k: each for k, each in self.narrowed.items() if k not in gone}
        self.halves = {k: each for k, each in self.halves.items() if k not in gone}
        self._stored.clear()

    def clear(self) -> None:
        """Remove everything, because another search decides all objectives, or none does."""
        self.__init__()  # type: ignore[misc]

    def note_halves(self, closed: Sequence[ClosedBox], objectives: Iterable[int]) -> None:
        """Note the boxes of the input over which some objectives were decided."""
        for k in objectives:
            self.halves[k] = [each for each in closed if k in each.objectives]

    def note_late(self, entries: AscendedEntries) -> None:
        """Record how the box of the last exact splits was optimised."""
        self.late = entries

    def end(self, boxes: Boxes, inner: Mapping[Node, Interval], left: Iterable[Part], resume: Resume) -> None:
        """Record the final state of the search, and which of its parts are still open."""
        self.boxes, self.inner, self._resume = boxes, inner, resume
        self.open = {part.objective for part in left}

    def resume(self, parts: Sequence[Part], goals: Sequence[float], seconds: float) -> bool:
        """Open some of the leaves again, which have to be above higher goals; return whether all could be closed.

        If so, the newly closed parts replace these leaves; if not, the leaves stay as they were.
        """
        if self._resume is None:
            return False
        before, gone = self.leaves, {id(part) for part in parts}
        self.leaves = [leaf for leaf in before if id(leaf) not in gone]
        self._resume(parts, goals, seconds)
        if self.open:
            self.leaves, self.open = before, set()
            return False
        return True

    def _once(self, value: Tensor) -> Tensor:
        """The stored tensor with the same numbers, if there is one; else this one, which is then stored."""
        raw = value.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy()
        key = (value.dtype, tuple(value.shape), hashlib.blake2b(raw.data, digest_size=16).digest())
        return self._stored.setdefault(key, value)
