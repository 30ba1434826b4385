"""The unknowns that the numbers of a network's nodes are functions of (ops/zonotope.py).

Unknowns lie in balls, |ξ| ≤ 1 for each ball; a ball of one dimension is an interval. A block of a node has how each
number moves with each unknown. Most unknowns stand in all rows of a node as soon as an attention has mixed the rows,
but in one row alone until then: those are `LocalUnknowns`, whose blocks do not store the zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Unknowns:
    """Unknowns that one op introduced: balls of equal dimension. Equal only if they are the same object."""

    origin: str
    """the node that introduced them, for messages"""

    @property
    def alone(self) -> bool:
        """Whether they become new errors of each row where rows are mixed; only some local ones do."""
        return False


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs(Unknowns):
    """The products ξ_i ξ_j, i < j, of `count` unknowns in [−1, 1], as one ball (ops/pairs.py)."""

    count: int


@dataclasses.dataclass(frozen=True, eq=False)
class BallProducts(Unknowns):
    """√2 ξ_i ξ_j, i < j, and then ξ_i², of `count` unknowns in one Euclidean ball: a vector of length |ξ|² ≤ 1."""

    count: int


@dataclasses.dataclass(frozen=True, eq=False)
class Triples(Unknowns):
    """Products of three of `count` unknowns in [−1, 1] (ops/triples.py), each in an interval of its own."""

    count: int


@dataclasses.dataclass(frozen=True, eq=False)
class InputUnknowns(Unknowns):
    """One unknown ξ_i for each number of the input that varies, and the unknowns of their products.

    Over a cube ξ_i is in [−1, 1], each in a ball of its own. Over a Euclidean ball all are in one, and so are all
    products: the vector of ξ_i² and √2 ξ_i ξ_j, i < j, has the length |ξ|² ≤ 1.
    """

    count: int
    """how many unknowns there are"""
    squares: Unknowns
    """over a cube ζ_i in [−1, 1] with ξ_i² = (1 + ζ_i) / 2; over a ball those of `pairs`"""
    pairs: Unknowns
    """over a cube a `Pairs`, over a ball a `BallProducts`"""
    triples: Triples | None = None
    """products of three of them, where these are kept too: over a cube alone"""

    @property
    def ball(self) -> bool:
        """Whether the unknowns are in one Euclidean ball."""
        return self.squares is self.pairs


@dataclasses.dataclass(frozen=True, eq=False)
class SpannedUnknowns(Unknowns):
    """Unknowns that are linear functions of many intervals: those of a ball are spanᵀ ξ, ξ in [−1, 1]^m.

    A patch of 768 pixels that an embedding makes 48 numbers of is 48 unknowns and not 768. Nothing is lost: how far
    columns reach is that of the intervals, written out (`ops/spans.py`).
    """

    every: Unknowns
    """the intervals themselves"""
    count: int
    """how many of them there are that are no rounding"""
    span: Tensor
    """(batch, balls, m, k)"""
    root: Tensor
    """(batch, balls, k, k): no columns L of a ball reach farther than |root L|"""
    ranges: Tensor
    """(batch, balls, 1, k): of which rounding is a share, times |L|"""


@dataclasses.dataclass(frozen=True, eq=False)
class GatheredUnknowns(Unknowns):
    """Unknowns ν = spanᵀ ξ + rootᵀ μ of balls around many errors, ξ in [−1, 1]^m and |μ| ≤ 1: then |ν| ≤ 1.

    Whoever knows nothing of ξ and μ has a ball; how far one functional goes is known as if nothing had been gathered
    (`ops/gathered.py`).
    """

    span: Tensor
    """(batch, balls, m, k)"""
    root: Tensor
    """(batch, balls, k, k)"""


@dataclasses.dataclass(frozen=True, eq=False)
class LocalUnknowns(Unknowns):
    """Unknowns of which every number has only a few, which may be others than those of the number beside it.

    A block of them has shape (batch, slots, k, *shape): slot m of a number belongs to the ball `ids[m]` at that number.
    Where `ids` has size 1 in place of the last dimension, all numbers of a row have the same unknowns. A ball may stand
    in several slots of a row: then what is said of how far it reaches is too much, and never too little.
    """

    everywhere: Unknowns
    """the same unknowns in blocks that have all of them for every number"""
    ids: Tensor
    """(slots, *shape) int64; any ball where the columns are 0"""
    count: int
    """how many balls there are"""
    in_one_row: bool = False
    """whether they become new errors of each row where rows are mixed: less is known then, and less is stored"""

    @property
    def alone(self) -> bool:
        """Whether they become new errors of each row where rows are mixed."""
        return self.in_one_row

    @property
    def in_rows(self) -> bool:
        """Whether all numbers of a row have the same unknowns."""
        return self.ids.shape[-1] == 1

    def matches(self, other: Unknowns) -> bool:
        """Whether blocks of both can be added slot by slot."""
        if not isinstance(other, LocalUnknowns) or self.everywhere is not other.everywhere:
            return False
        return self.ids is other.ids or torch.equal(self.ids, other.ids)

    def spread(self, columns: Tensor) -> Tensor:
        """A block of these unknowns as one of `everywhere`: (batch, slots, k, *shape) → (batch, balls, k, *shape)."""
        found = columns.new_zeros(columns.shape[0], self.count, *columns.shape[2:])
        return found.scatter_add_(1, self.ids[None, :, None].expand_as(columns), columns)

    def picked(self, columns: Tensor) -> Tensor:
        """What a block of `everywhere` has in these slots: (batch, balls, k, *shape) → (batch, slots, k, *shape)."""
        ids = self.ids[None, :, None]
        shape = np.broadcast_shapes(ids.shape[3:], columns.shape[3:])
        wide = columns.expand(*columns.shape[:3], *shape)
        return wide.gather(1, ids.expand(columns.shape[0], -1, columns.shape[2], *shape))

    def moved(self, change: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> LocalUnknowns:
        """The unknowns of a node of this shape after a change that only moves numbers, behind one more dimension."""
        return self.at(change(self.ids.expand(self.ids.shape[0], *shape)))

    def at(self, ids: Tensor) -> LocalUnknowns:
        """The same unknowns at other numbers: ids (slots, *shape)."""
        first = ids[..., :1]
        common = bool((ids == first).all())
        return dataclasses.replace(self, ids=(first if common else ids).contiguous())

    def folded(self, columns: Tensor, dims: tuple[int, ...]) -> tuple[LocalUnknowns, Tensor]:
        """Unknowns of rows where numbers are summed over dimensions of the shape: a slot for each that is summed."""
        ids = self.ids
        for dim in dims:
            ids = ids.movedim(1 + dim, 1).flatten(0, 1).unsqueeze(1 + dim)
            columns = columns.movedim(3 + dim, 2).flatten(1, 2).unsqueeze(3 + dim)
        return dataclasses.replace(self, ids=ids), columns

    def times(self, columns: Tensor, weight: Tensor) -> tuple[LocalUnknowns, Tensor]:
        """A block through rows @ weight (d, out): (batch, slots, k, rows..., d) → (batch, slots, k, rows..., out)."""
        if not self.in_rows and len(self._groups().unique()) == len(weight):  # single numbers: no sum has more terms
            ids = self.ids.movedim(-1, 1).flatten(0, 1).unsqueeze(-1)
            wide = weight.reshape(1, 1, len(weight), *[1] * (columns.dim() - 3), weight.shape[-1])
            return dataclasses.replace(self, ids=ids), (columns.movedim(-1, 2).unsqueeze(-1) * wide).flatten(1, 2)
        unknowns, rows = self.by_rows(columns)
        return unknowns, rows @ weight

    def by_rows(self, columns: Tensor) -> tuple[LocalUnknowns, Tensor]:
        """With slots that all numbers of a row share: one for each group of numbers that have the same unknowns.

        Such groups are the heads of an attention; behind a reshape of single numbers each number is one.
        """
        if self.in_rows:
            return self, columns
        group = self._groups()  # (d,)
        first = (group == torch.arange(len(group), device=group.device)).nonzero().flatten()  # (groups,)
        ids = self.ids[..., first].movedim(-1, 1).flatten(0, 1).unsqueeze(-1)
        inside = (group == first.unsqueeze(-1)).to(columns.dtype)  # (groups, d)
        inside = inside.reshape(1, 1, len(first), *[1] * (columns.dim() - 3), columns.shape[-1])
        return dataclasses.replace(self, ids=ids), (columns.unsqueeze(2) * inside).flatten(1, 2)

    def _groups(self) -> Tensor:
        """For each number of a row the first one that has the same unknowns in all slots and rows, (d,)."""
        one = self.ids.flatten(0, -2)[0]
        group = (one.unsqueeze(-1) == one).to(torch.int8).argmax(-1)
        if bool((self.ids[..., group] == self.ids).all()):
            return group
        return torch.arange(len(one), device=one.device)


def spread_numbers(unknowns: Unknowns, columns: Tensor) -> int:
    """How many numbers a block has once its unknowns are not local, and written out."""
    whole = unknowns.everywhere if isinstance(unknowns, LocalUnknowns) else unknowns
    if isinstance(whole, SpannedUnknowns):
        return columns.numel() // (columns.shape[1] * columns.shape[2]) * whole.count
    if not isinstance(unknowns, LocalUnknowns) or unknowns.alone:
        return columns.numel()
    return columns.numel() // columns.shape[1] * unknowns.count


def span_of(unknowns: Unknowns) -> Tensor | None:
    """What spanned unknowns, local or not, are made of; None of others."""
    whole = unknowns.everywhere if isinstance(unknowns, LocalUnknowns) else unknowns
    return whole.span if isinstance(whole, SpannedUnknowns) else None


def in_rows(origin: str, columns: Tensor, *, alone: bool = False) -> tuple[LocalUnknowns, Tensor]:
    """New unknowns in single rows: columns (batch, slots, k, rows..., d); slots whose columns are 0 get none."""
    live = columns.abs().amax((0, 2, -1)) != 0  # (slots, rows...), also where it is NaN
    ids = (live.flatten().cumsum(0) - 1).clamp(min=0).reshape(live.shape).unsqueeze(-1)
    return LocalUnknowns(origin, Unknowns(origin), ids, max(1, int(live.sum())), alone), columns


def in_numbers(origin: str, radius: Tensor) -> tuple[LocalUnknowns, Tensor]:
    """New unknowns of single numbers, in [−1, 1]: radius (batch, *shape); numbers that cannot move get none."""
    live = radius.amax(0) != 0
    ids = (live.flatten().cumsum(0) - 1).clamp(min=0).reshape(1, *live.shape)
    return LocalUnknowns(origin, Unknowns(origin), ids, max(1, int(live.sum()))), radius[:, None, None]
