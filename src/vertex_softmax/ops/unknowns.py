"""The unknowns of zonotopes (ops/zonotope.py): what they stand for, and how their coefficients are stored.

Unknowns lie in balls, |ξ| ≤ 1 for each ball; a ball of dimension one is an interval. A block of a node contains how
each number moves with each unknown. Behind an attention, which mixes the rows, most unknowns move all rows of a node;
before it they move a single row, or a single number. Such unknowns are `LocalUnknowns`, whose blocks do not store the
zeros of all others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Unknowns:
    """Unknowns that one op introduced: balls of equal dimension. They are the same unknowns only if they are the same
    object.
    """

    origin: str
    """the name of the node that introduced them"""

    @property
    def alone(self) -> bool:
        """Whether an op that mixes rows makes new errors of them instead of carrying them on; only some local ones."""
        return False


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs(Unknowns):
    """The products ξ_i ξ_j, i < j, of `count` unknowns in [−1, 1], treated as one ball (ops/pairs.py)."""

    count: int


@dataclasses.dataclass(frozen=True, eq=False)
class BallProducts(Unknowns):
    """√2 ξ_i ξ_j for i < j, then ξ_i², of `count` unknowns in one Euclidean ball: a vector of length |ξ|² ≤ 1."""

    count: int


@dataclasses.dataclass(frozen=True, eq=False)
class Triples(Unknowns):
    """Products of three of `count` unknowns in [−1, 1] (ops/triples.py), each in an interval of its own."""

    count: int


@dataclasses.dataclass(frozen=True, eq=False)
class InputUnknowns(Unknowns):
    """One unknown ξ_i for each number of the input that varies, with the unknowns of their products.

    Over a box each ξ_i lies in [−1, 1], in a ball of its own. Over a Euclidean ball all ξ_i lie in one ball, and so do
    all products: the vector of ξ_i² and √2 ξ_i ξ_j, i < j, has the length |ξ|² ≤ 1.
    """

    count: int
    """how many unknowns ξ_i there are"""
    squares: Unknowns
    """over a box: ζ_i in [−1, 1] with ξ_i² = (1 + ζ_i) / 2; over a ball: the same as `pairs`"""
    pairs: Unknowns
    """over a box a `Pairs`, over a ball a `BallProducts`"""
    triples: Triples | None = None
    """products of three, over a box only; None if they are not kept"""

    @property
    def ball(self) -> bool:
        """Whether the unknowns are in one Euclidean ball."""
        return self.squares is self.pairs


@dataclasses.dataclass(frozen=True, eq=False)
class SpannedUnknowns(Unknowns):
    """Unknowns that are linear functions of many intervals: those of one ball are spanᵀ ξ with ξ in [−1, 1]^m.

    For example, a patch of 768 pixels of which an embedding makes 48 numbers is described by 48 unknowns instead of
    768. Nothing is lost, because the reach of a block is computed from the intervals themselves (`ops/spans.py`).
    """

    every: Unknowns
    """the unknowns that stand for the intervals ξ"""
    count: int
    """how many of the intervals do not stand for rounding"""
    span: Tensor
    """(batch, balls, m, k)"""
    root: Tensor
    """(batch, balls, k, k): columns L of a ball reach at most |root L|"""
    ranges: Tensor
    """(batch, balls, 1, k): times |L|, a lower limit for the rough reach, of which rounding is a share"""


@dataclasses.dataclass(frozen=True, eq=False)
class GatheredUnknowns(Unknowns):
    """Unknowns ν = spanᵀ ξ + rootᵀ μ of balls around many errors, with ξ in [−1, 1]^m and |μ| ≤ 1; |ν| ≤ 1 holds too.

    Most code uses only |ν| ≤ 1. The reach of a single functional can be computed from ξ and μ, as if the errors had not
    been gathered (`ops/gathered.py`).
    """

    span: Tensor
    """(batch, balls, m, k)"""
    root: Tensor
    """(batch, balls, k, k)"""


@dataclasses.dataclass(frozen=True, eq=False)
class LocalUnknowns(Unknowns):
    """Unknowns of which every number depends on a few only, and different numbers may depend on different ones.

    A block of them has shape (batch, slots, k, *shape): slot m of a number belongs to ball `ids[m]` at that number.
    Where the last dimension of `ids` has size 1, all numbers of a row have the same unknowns. If a ball stands in
    several slots of a number, the computed reach is too large, which is sound.
    """

    everywhere: Unknowns
    """the same unknowns, as the name of blocks that store all of them for every number"""
    ids: Tensor
    """(slots, *shape) int64; arbitrary where the columns are 0"""
    count: int
    """how many balls there are in all"""
    in_one_row: bool = False
    """whether an op that mixes rows makes new errors of them: looser bounds, but less memory"""

    @property
    def alone(self) -> bool:
        """Whether an op that mixes rows makes new errors of them instead of carrying them on."""
        return self.in_one_row

    @property
    def in_rows(self) -> bool:
        """Whether all numbers of a row have the same unknowns."""
        return self.ids.shape[-1] == 1

    def matches(self, other: Unknowns) -> bool:
        """Whether two blocks with these unknowns can be added slot by slot."""
        if not isinstance(other, LocalUnknowns) or self.everywhere is not other.everywhere:
            return False
        return self.ids is other.ids or torch.equal(self.ids, other.ids)

    def spread(self, columns: Tensor) -> Tensor:
        """A block of these unknowns stored for all balls: (batch, slots, k, *shape) → (batch, balls, k, *shape)."""
        found = columns.new_zeros(columns.shape[0], self.count, *columns.shape[2:])
        return found.scatter_add_(1, self.ids[None, :, None].expand_as(columns), columns)

    def picked(self, columns: Tensor) -> Tensor:
        """The part of a block of `everywhere` in these slots: (batch, balls, k, *shape) → (batch, slots, k, *shape)."""
        ids = self.ids[None, :, None]
        shape = np.broadcast_shapes(ids.shape[3:], columns.shape[3:])
        wide = columns.expand(*columns.shape[:3], *shape)
        return wide.gather(1, ids.expand(columns.shape[0], -1, columns.shape[2], *shape))

    def moved(self, change: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> LocalUnknowns:
        """The unknowns of a node of this shape after `change`, which only moves numbers behind a leading dimension."""
        return self.at(change(self.ids.expand(self.ids.shape[0], *shape)))

    def at(self, ids: Tensor) -> LocalUnknowns:
        """The same unknowns with other ids (slots, *shape)."""
        first = ids[..., :1]
        common = bool((ids == first).all())
        return dataclasses.replace(self, ids=(first if common else ids).contiguous())

    def folded(self, columns: Tensor, dims: tuple[int, ...]) -> tuple[LocalUnknowns, Tensor]:
        """The unknowns, and a block of them, after a sum over dimensions of the shape: a slot for each number that is
        added up.
        """
        ids = self.ids
        for dim in dims:
            ids = ids.movedim(1 + dim, 1).flatten(0, 1).unsqueeze(1 + dim)
            columns = columns.movedim(3 + dim, 2).flatten(1, 2).unsqueeze(3 + dim)
        return dataclasses.replace(self, ids=ids), columns

    def times(self, columns: Tensor, weight: Tensor) -> tuple[LocalUnknowns, Tensor]:
        """The unknowns, and a block of them, after rows @ weight (d, out).

        The block goes from (batch, slots, k, rows..., d) to (batch, slots, k, rows..., out), with other slots.
        """
        if not self.in_rows and len(self._groups().unique()) == len(weight):  # nothing is summed
            ids = self.ids.movedim(-1, 1).flatten(0, 1).unsqueeze(-1)
            wide = weight.reshape(1, 1, len(weight), *[1] * (columns.dim() - 3), weight.shape[-1])
            return dataclasses.replace(self, ids=ids), (columns.movedim(-1, 2).unsqueeze(-1) * wide).flatten(1, 2)
        unknowns, rows = self.by_rows(columns)
        return unknowns, rows @ weight

    def by_rows(self, columns: Tensor) -> tuple[LocalUnknowns, Tensor]:
        """The unknowns and the block in slots that all numbers of a row share, one for each group of equal unknowns.

        A group is, for example, a head of an attention, or a single number after a reshape.
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
        """For each number of a row, the first number that has the same unknowns in all slots and rows, (d,)."""
        one = self.ids.flatten(0, -2)[0]
        group = (one.unsqueeze(-1) == one).to(torch.int8).argmax(-1)
        if bool((self.ids[..., group] == self.ids).all()):
            return group
        return torch.arange(len(one), device=one.device)


def spread_numbers(unknowns: Unknowns, columns: Tensor) -> int:
    """How many numbers a block will have once its unknowns are spread to all numbers and written out."""
    whole = unknowns.everywhere if isinstance(unknowns, LocalUnknowns) else unknowns
    if isinstance(whole, SpannedUnknowns):
        return columns.numel() // (columns.shape[1] * columns.shape[2]) * whole.count
    if not isinstance(unknowns, LocalUnknowns) or unknowns.alone:
        return columns.numel()
    return columns.numel() // columns.shape[1] * unknowns.count


def span_of(unknowns: Unknowns) -> Tensor | None:
    """The span of spanned unknowns, local or not; None for others."""
    whole = unknowns.everywhere if isinstance(unknowns, LocalUnknowns) else unknowns
    return whole.span if isinstance(whole, SpannedUnknowns) else None


def in_rows(origin: str, columns: Tensor, *, alone: bool = False) -> tuple[LocalUnknowns, Tensor]:
    """New unknowns in single rows, for columns (batch, slots, k, rows..., d); all-zero slots get none."""
    live = columns.abs().amax((0, 2, -1)) != 0  # (slots, rows...), also where it is NaN
    ids = (live.flatten().cumsum(0) - 1).clamp(min=0).reshape(live.shape).unsqueeze(-1)
    return LocalUnknowns(origin, Unknowns(origin), ids, max(1, int(live.sum())), alone), columns


def in_numbers(origin: str, radius: Tensor) -> tuple[LocalUnknowns, Tensor]:
    """New unknowns in [−1, 1] of single numbers, for a radius (batch, *shape); numbers that cannot move get none."""
    live = radius.amax(0) != 0
    ids = (live.flatten().cumsum(0) - 1).clamp(min=0).reshape(1, *live.shape)
    return LocalUnknowns(origin, Unknowns(origin), ids, max(1, int(live.sum()))), radius[:, None, None]
