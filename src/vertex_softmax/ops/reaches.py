"""How far blocks of unknowns move each number, computed with more or less care, and cached.

Invariant: a reach is at least as far as the block moves the number, to rounding; a cached reach is used only for the
very tensor of columns it was computed from.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from torch import Tensor

from vertex_softmax.ops import gathered, pairs, spans, triples
from vertex_softmax.ops.lengths import sum_of_lengths
from vertex_softmax.ops.unknowns import BallProducts, GatheredUnknowns, Pairs, Triples, Unknowns, span_of


class Care(Enum):
    """How carefully the reach is computed of products of the input's unknowns, and of spanned unknowns.

    The reach of other unknowns does not depend on it: they are treated as balls, also gathered ones
    (`ops/gathered.py`).
    """

    ROUGH = "as one ball"
    PLAIN = "by the Frobenius norm"
    TIGHT = "by the spectral norm"
    TIGHTEST = "products of three by the spectral norm too"


WITH_CARE: dict[Care, tuple[type[Unknowns], ...]] = {
    Care.ROUGH: (),
    Care.PLAIN: (Pairs,),
    Care.TIGHT: (Pairs, BallProducts),
    Care.TIGHTEST: (Triples,),
}
"""By care, the unknowns (besides spanned ones) whose reach is then not just the sum of the lengths of their columns."""


class Reach(NamedTuple):
    """A cached reach, with the columns it belongs to."""

    columns: weakref.ReferenceType[Tensor]
    version: int
    """the version of the columns' tensor, which changes if somebody writes to it in place"""
    reach: Tensor


class KnownReaches:
    """A cache of how far blocks reach. An entry belongs to one tensor of columns and expires with it.

    Zonotopes made by `dataclasses.replace` may share a cache, because a block with other columns does not match an
    entry.
    """

    def __init__(self, found: dict[tuple[Unknowns, Care], Reach] | None = None) -> None:
        self._found = {} if found is None else found

    def of(self, unknowns: Unknowns, columns: Tensor, care: Care) -> Tensor:
        """The reach of a block, from the cache if it is known."""
        spanned = span_of(unknowns) is not None
        if care is Care.TIGHTEST and not isinstance(unknowns, Triples):
            care = Care.TIGHT
        if spanned and care is Care.TIGHT:
            care = Care.PLAIN
        if not spanned and not isinstance(unknowns, WITH_CARE[care]):
            care = Care.ROUGH
        if not self.knows(unknowns, columns, care):
            if care is Care.ROUGH:
                reach = spans.rough_reach(unknowns, columns) if spanned else sum_of_lengths(columns)
            else:
                reach = reach_of(unknowns, columns, tight=care is not Care.PLAIN)
            self.note(unknowns, columns, care, reach)
        return self._found[unknowns, care].reach

    def knows(self, unknowns: Unknowns, columns: Tensor, care: Care) -> bool:
        """Whether the reach of a block with exactly these columns is known."""
        known = self._found.get((unknowns, care))
        return known is not None and known.columns() is columns and known.version == columns._version

    def note(self, unknowns: Unknowns, columns: Tensor, care: Care, reach: Tensor) -> None:
        """Store the reach of a block."""
        self._found[unknowns, care] = Reach(weakref.ref(columns), columns._version, reach)

    def beside(self, *others: KnownReaches) -> KnownReaches:
        """A cache with the entries of several; entries whose columns differ from a block's do not match it."""
        found = dict(self._found)
        for other in others:
            found.update(other._found)
        return KnownReaches(found)

    def changed(
        self,
        old: Mapping[Unknowns, Tensor],
        new: Mapping[Unknowns, Tensor],
        names: Mapping[Unknowns, Unknowns],
        change: Callable[[Tensor], Tensor] = lambda reach: reach,
    ) -> KnownReaches:
        """The cache for changed blocks: `old[u]` has become `new[names[u]]`, and its reach is `change` of what it was.

        Only for changes for which that is exact: moving numbers, scaling each number, storing a block in another way.
        """
        found = {}
        for (unknowns, care), known in self._found.items():
            columns, name = old.get(unknowns), names.get(unknowns)
            if columns is None or name is None or known.columns() is not columns or known.version != columns._version:
                continue
            found[name, care] = Reach(weakref.ref(new[name]), new[name]._version, change(known.reach))
        return KnownReaches(found)


def reach_of(unknowns: Unknowns, columns: Tensor, *, tight: bool = False) -> Tensor:
    """How far a block moves each number: (batch, balls, k, *shape) → (batch, *shape)."""
    if span_of(unknowns) is not None:
        return spans.reach(unknowns, columns)
    if isinstance(unknowns, Pairs):
        return (pairs.tight_reach if tight else pairs.reach)(columns, unknowns.count)
    if tight and isinstance(unknowns, BallProducts):
        return pairs.ball_reach(columns, unknowns.count)
    if tight and isinstance(unknowns, Triples):
        return triples.tight_reach(columns, unknowns.count)
    if tight and isinstance(unknowns, GatheredUnknowns):
        return gathered.reach(unknowns, columns)
    return sum_of_lengths(columns)
