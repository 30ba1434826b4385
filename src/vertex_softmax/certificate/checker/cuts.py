"""Cuts: narrower ranges of single entries of a node, one set of them for each branch of a tree.

Invariant: an input that takes a branch has entry `entries[i]` of the node in [lo[i], hi[i]] for every i with `which[i]`
the branch's number. Where a branch cuts an entry several times, the ranges were met; where they do not meet, no input
takes the branch, and any range is sound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .file import Rejected, checked_index
from .rounding import Array, ProvedInterval


@dataclass(frozen=True)
class Cut:
    """One side of a branching: the inputs for which an entry of a node is at most (left) or at least a point."""

    number: int
    """of the node"""
    entry: int
    """its index in the flattened node; of a σ: in the flattened σ of a normalisation"""
    point: float
    inner: bool
    """whether it is one of a normalisation's σ"""
    left: bool

    @property
    def split(self) -> tuple[int, int, float, bool]:
        """The node, the entry, the point, and whether it is a σ."""
        return self.number, self.entry, self.point, self.inner

    def within(self, lo: float, hi: float) -> tuple[float, float]:
        """What the cut leaves of a range; where that is nothing, no input is left, and any range is sound."""
        lo, hi = (lo, min(hi, self.point)) if self.left else (max(lo, self.point), hi)
        return (lo, hi) if lo <= hi else (hi, lo)


@dataclass(frozen=True, eq=False)
class Cuts:
    """The cuts of a node in a batch of branches; no entry occurs twice in one branch. Arrays (K,) each."""

    which: NDArray[np.int64]
    """the number of the branch"""
    entries: NDArray[np.int64]
    box: ProvedInterval
    """the ranges that are left"""
    held: Array
    """a multiplier of each range (passes.py)"""

    def each(self, S: int) -> Cuts:
        """The cuts of a batch in which every branch is there S times in succession, for so many objectives."""
        if S == 1:
            return self
        which = (self.which[:, None] * S + np.arange(S)).ravel()
        lo, hi, held = (np.repeat(x, S) for x in (self.box.lo, self.box.hi, self.held))
        return Cuts(which, np.repeat(self.entries, S), ProvedInterval(lo, hi), held)


def checked_cut(number: Any, entry: Any, point: Any, inner: Any, left: bool, sizes: list[int]) -> Cut:
    """A cut as a file has it; sizes: how many entries each node has. Rejected if it makes no sense."""
    number = checked_index(number, len(sizes))
    if type(inner) is not bool or not isinstance(point, float | int) or not math.isfinite(point) or number == 0:
        raise Rejected("a branching at a point that is not finite, or at the input, on whose box zonotopes depend")
    return Cut(number, checked_index(entry, sizes[number]), float(point), inner, left)


def gathered(branches: list[dict[tuple[int, int], tuple[float, float, float]]]) -> dict[int, Cuts]:
    """Node → the cuts of a batch; a branch is given by (node, entry) → (lower end, upper end, multiplier)."""
    rows: dict[int, list[tuple[int, int, float, float, float]]] = {}
    for k, branch in enumerate(branches):
        for (number, entry), ends in branch.items():
            rows.setdefault(number, []).append((k, entry, *ends))
    found = {}
    for number, each in rows.items():
        columns = list(zip(*each, strict=True))
        which, entries = (np.array(column, dtype=np.int64) for column in columns[:2])
        lo, hi, held = (np.array(column, dtype=np.float64) for column in columns[2:])
        found[number] = Cuts(which, entries, ProvedInterval(lo, hi), held)
    return found
