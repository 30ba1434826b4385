"""Moves: entries of the inputs, flattened and joined, gathered into a node; and coefficients on the way back.

Invariant: Σ A·node = Σ back(A)·input, where the coefficients of an entry that was taken several times are added up in
floating point: no number passes through more than `most` − 1 roundings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .rounding import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    """How the coefficients of a gather are brought to its inputs."""

    total: int
    """the number of entries of all inputs"""
    order: NDArray[Any]
    """(entries of the node,): the node's entries, ordered by what they take"""
    taken: NDArray[Any]
    """the inputs' entries that are taken, in increasing order"""
    first: NDArray[Any]
    """where the entries that take each of these begin in `order`"""
    most: int
    """how often an entry is taken at most"""
    unmoved: bool
    """whether every entry stays where it is"""

    def back(self, A: Array) -> Array:
        """(S, entries of the node) → (S, total)."""
        if self.unmoved:
            return A
        if self.most == 1 and len(self.taken) == self.total:  # a permutation
            return A.take(self.order, axis=1)
        back = np.zeros((A.shape[0], self.total))
        ordered = A.take(self.order, axis=1)
        back[:, self.taken] = ordered if self.most == 1 else np.add.reduceat(ordered, self.first, axis=1)
        return back


def moved(index: NDArray[Any], total: int) -> Moved:
    """Of a gather with these indices, each from 0 to total − 1."""
    flat = index.ravel()
    order = np.argsort(flat, kind="stable")
    taken, first, counts = np.unique(flat[order], return_index=True, return_counts=True)
    unmoved = np.array_equal(flat, np.arange(total))
    return Moved(total=total, order=order, taken=taken, first=first, most=int(counts.max()), unmoved=unmoved)
