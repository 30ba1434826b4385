"""What a search leaves behind for whoever proves its result again: the parts it closed, and what it bounded them with.

Invariant: the leaves of an objective with no open part that was not decided over a narrower set cover the whole set,
and each is the end of one branch of its tree. Numbers that several leaves have in common are stored once.
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
"""Opens closed parts again, with higher goals (n,), and goes on with the search for some seconds."""


class NarrowedTree(NamedTuple):
    """The tree of one objective over what narrowing has left of its set."""

    question: Question
    """about what is left"""
    record: Record
    """of a search with this objective alone, number 0"""
    cuts: tuple[Choice, ...] = ()
    """as `RestRecord.cuts`"""


@dataclasses.dataclass(eq=False)
class RestRecord:
    """How a part of the set of one objective, or all of it, was decided: it was cut, then bounded or split.

    Parameters are in single precision: whatever they are is sound.
    """

    splits: tuple[Split, ...] = ()
    """on the way from the whole set to the part"""
    cuts: list[Choice] = dataclasses.field(default_factory=list)
    """the parameters of the linear bounds by which it was narrowed, each over what the one before has left"""
    last: Choice = dataclasses.field(default_factory=Choice)
    """those of the last bound over what is left"""
    tree: Record | None = None
    """the closed leaves of a tree over what is left, with their splits from the whole set on; None: `last` closed it"""
    pieces: list[RestRecord] = dataclasses.field(default_factory=list)
    """the leaves of that tree that were narrowed themselves"""

    def cut(self, choice: Choice) -> None:
        """Note that it was narrowed by a linear bound with these parameters."""
        self.cuts.append(single(choice))

    def bound(self, choice: Choice) -> None:
        """Note the parameters of a bound over what is left."""
        self.last = single(choice)

    def split(self, tree: Record, pieces: Sequence[Part]) -> list[RestRecord]:
        """Note the tree over what is left, and which of its parts are narrowed themselves: a record for each."""
        tree.drop(pieces)
        self.tree, self.pieces = tree, [RestRecord(piece.splits) for piece in pieces]
        return self.pieces


def single(choice: Choice) -> Choice:
    """The same in single precision, apart from the batch it was computed in."""
    return choice.map(lambda value: value.detach().to(torch.float32, copy=True))


class Record:
    """The leaves of a search, in the order in which they were closed."""

    def __init__(self) -> None:
        self.leaves: list[Part] = []
        """every part that was closed, with all of its parameters"""
        self.boxes: Boxes | None = None
        """of the whole set, as the search had them last"""
        self.inner: Mapping[Node, Interval] = {}
        """the ranges, before any split, of what ops compute on the way"""
        self.functionals: dict[int, Mapping[Node, Tensor]] = {}
        """by objective: what the ellipsoids of the values of attentions were fitted to, (..., n, d) each"""
        self.late: AscendedEntries | None = None
        """how the box was optimised that the last exact splits cut; None if it was not"""
        self.open: set[int] = set()
        """objectives of which some part is open: their leaves do not cover the set"""
        self.narrowed: dict[int, NarrowedTree | RestRecord] = {}
        """objectives that were decided over a narrower set (narrowed_search.py), and how"""
        self.halves: dict[int, list[ClosedBox]] = {}
        """objectives that were decided over smaller boxes of the input (halving.py), and these, which cover the set"""
        self._resume: Resume | None = None
        self._stored: dict[tuple[object, ...], Tensor] = {}

    def add(self, part: Part) -> None:
        """Add a part that is closed, with all of its parameters."""
        self.leaves.append(dataclasses.replace(part, candidates=(), choice=part.choice.map(self._once)))

    def decides(self, objective: int) -> bool:
        """Whether the objective is decided by what is recorded here."""
        by_leaves = objective not in self.open and any(leaf.objective == objective for leaf in self.leaves)
        return by_leaves or objective in self.narrowed or objective in self.halves

    def drop(self, pieces: Sequence[Part]) -> None:
        """Forget the leaves that lie in one of these parts."""
        inside = [piece.splits for piece in pieces]
        self.leaves = [
            leaf for leaf in self.leaves if not any(leaf.splits[: len(splits)] == splits for splits in inside)
        ]

    def forget(self, objectives: Iterable[int]) -> None:
        """Forget all about some objectives: another search decides them, or none does."""
        gone = set(objectives)
        self.leaves = [leaf for leaf in self.leaves if leaf.objective not in gone]
        self.functionals = {k: each for k, each in self.functionals.items() if k not in gone}
        self.narrowed = {k: each for k, each in self.narrowed.items() if k not in gone}
        self.halves = {k: each for k, each in self.halves.items() if k not in gone}
        self._stored.clear()

    def note_halves(self, closed: Sequence[ClosedBox], objectives: Iterable[int]) -> None:
        """Note the boxes of the input over which some objectives were decided."""
        for k in objectives:
            self.halves[k] = [each for each in closed if k in each.objectives]

    def note_late(self, entries: AscendedEntries) -> None:
        """Note how the box was optimised that the last exact splits cut."""
        self.late = entries

    def end(self, boxes: Boxes, inner: Mapping[Node, Interval], left: Iterable[Part], resume: Resume) -> None:
        """Note what the search had when it ended, and which parts are left open."""
        self.boxes, self.inner, self._resume = boxes, inner, resume
        self.open = {part.objective for part in left}

    def resume(self, parts: Sequence[Part], goals: Sequence[float], seconds: float) -> bool:
        """Go on with some of the leaves, which have to be above higher goals; whether all are closed again.

        What is closed takes the place of these leaves; if not all is, they stay what they were.
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
        """The same numbers, in the tensor that has them already if there is one."""
        raw = value.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy()
        key = (value.dtype, tuple(value.shape), hashlib.blake2b(raw.data, digest_size=16).digest())
        return self._stored.setdefault(key, value)
