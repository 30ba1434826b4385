"""Zonotopes: each node's value as an affine function of unknowns that all nodes share.

Invariant: for every input of the set there are values of the unknowns, the same for all nodes, at which a node's value
is centre + Σ_b blocks_b·ξ_b + own·ν + e. The unknowns ξ_b of a block lie in balls, |ξ| ≤ 1 for each ball (a ball of
dimension one is an interval). Besides, each number of the node has one unknown ν of its own, |ν| ≤ 1, and an error
|e| ≤ slack, mostly rounding, of which only the size is known.

An unknown keeps its name from the op that introduced it on; so if two branches of the network depend on it, their
effects can cancel where the branches meet. The own unknown of a number exists only as long as no op mixes numbers.

Errors of a row that are bounded in every direction become a ball in the shape of an ellipsoid. That keeps the
directions in which the errors lie. A box around them would lose these, and errors would then grow from layer to layer.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops import pairs, spans
from vertex_softmax.ops.generators import most_eigenvalue, raised, root
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.lengths import lengths, norm, pieces, sum_of_lengths
from vertex_softmax.ops.reaches import Care, KnownReaches, reach_of
from vertex_softmax.ops.unknowns import (
    BallProducts,
    InputUnknowns,
    LocalUnknowns,
    Pairs,
    Triples,
    Unknowns,
    in_rows,
    span_of,
    spread_numbers,
)

MOST_WRITTEN_NUMBERS = 1 << 20
"""A block of spanned unknowns is stored written out as well if it then has at most this many numbers (8 MiB)."""


class Written(NamedTuple):
    """A block of spanned unknowns written out: one column for each interval."""

    unknowns: Unknowns
    columns: Tensor
    version: int
    """the version of the block's tensor, which changes if somebody writes to it in place"""


SMALL = 0.005
"""Products of three whose rough reach is below this share of the radius are not bounded with Care.TIGHTEST."""


class Ellipse(NamedTuple):
    """Errors e of each row of d numbers with |η·e|² ≤ scale² · ηᵀ matrix η; the scale is apart to avoid underflow."""

    matrix: Tensor
    """(batch, rows..., d, d)"""
    scale: Tensor
    """(batch, rows...)"""

    @property
    def length(self) -> Tensor:
        """The root of the trace of scale² · matrix, (batch, rows...)."""
        trace: Tensor = self.matrix.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0)
        return self.scale * trace.sqrt()


@dataclasses.dataclass(frozen=True, eq=False)
class Segments:
    """Errors Σ_j columns_j ν_j of each row of d numbers with |ν_j| ≤ 1."""

    columns: Tensor
    """(batch, rows..., n, d)"""

    @property
    def length(self) -> Tensor:
        """The sum of the segments' lengths, (batch, rows...), which is also the `length` of the ellipse around them."""
        return norm(self.columns, (-1,)).sum(-1)

    @property
    def fits(self) -> bool:
        """Whether the segments take few enough numbers to become a block of their own."""
        rows = math.prod(self.columns.shape[1:-2])
        return rows * math.prod(self.columns.shape[1:]) <= MOST_SEGMENT_NUMBERS

    def block(self) -> Tensor:
        """The segments as a block with a slot for each of them: (batch, n, 1, rows..., d)."""
        return self.columns.movedim(-2, 1).unsqueeze(2)

    def ellipse(self) -> Ellipse:
        """An ellipse that contains the errors."""
        length = norm(self.columns, (-1,))
        whole = length.sum(-1)
        unit = self.columns / torch.where(length > 0, length, torch.ones_like(length)).unsqueeze(-1)
        share = length / torch.where(whole > 0, whole, torch.ones_like(whole)).unsqueeze(-1)
        return Ellipse((unit * share.unsqueeze(-1)).mT @ unit, whole)


@dataclasses.dataclass(frozen=True, eq=False)
class RowShape:
    """An ellipsoid around the deviation y' of each row of d numbers from its centre: |η·y'|² ≤ size · ηᵀ matrix η for
    all η.
    """

    matrix: Tensor
    """(batch, rows..., d, d)"""
    size: Tensor
    """(batch, rows...)"""

    def ellipsoid(self) -> Ellipse:
        """The same ellipsoid as an `Ellipse`."""
        return Ellipse(self.matrix, self.size.sqrt())

    def farthest(self) -> Tensor:
        """An upper bound of |y'|², (batch, rows...)."""
        return most_eigenvalue(self.matrix) * self.size


@dataclasses.dataclass(frozen=True, eq=False)
class Zonotope:
    """The values of a node over the input set (see the module's invariant); `shape` is the shape of the node."""

    centre: Tensor
    """(batch, *shape)"""
    blocks: Mapping[Unknowns, Tensor]
    """by unknowns, (batch, balls, dimension of each ball, *shape): how each number moves with each unknown"""
    own: Tensor | None
    """(batch, *shape), ≥ 0: how far each number moves with its own unknown; None: 0"""
    slack: Tensor
    """(batch, *shape), ≥ 0: the bound of the error e of each number"""
    reaches: KnownReaches = dataclasses.field(default_factory=KnownReaches, repr=False)
    """a cache of how far blocks reach, which changes no result"""
    _local: Zonotope | None = dataclasses.field(default=None, init=False, repr=False)
    """the zonotope that this one is the `spread` of, if it was made so; `dataclasses.replace` does not keep it"""
    _written: dict[Unknowns, Written] = dataclasses.field(default_factory=dict, init=False, repr=False)
    """a cache of spanned blocks written out"""

    @functools.cached_property
    def radius(self) -> Tensor:
        """How far each number can be from its centre, (batch, *shape)."""
        return self.radius_by(Care.PLAIN)

    @functools.cached_property
    def rough_radius(self) -> Tensor:
        """The radius with products of the input's unknowns bounded as one ball: quick, for uses such as the size of
        rounding.
        """
        return self.radius_by(Care.ROUGH)

    @functools.cached_property
    def tight_radius(self) -> Tensor:
        """The radius with products of two unknowns bounded by spectral norms: slower, for what curves read."""
        if not any(isinstance(unknowns, Pairs | BallProducts) for unknowns in self.blocks):
            return self.radius
        return torch.minimum(self.radius_by(Care.TIGHT), self.radius)

    @functools.cached_property
    def tightest_radius(self) -> Tensor:
        """The radius with products of three unknowns bounded by spectral norms too: slower still."""
        return torch.minimum(self.radius_by(Care.TIGHTEST), self.tight_radius)

    def radius_by(self, care: Care) -> Tensor:
        """How far each number can be from its centre, (batch, *shape), computed with the given care."""
        found = self.loose
        for unknowns in self.blocks:
            if care is not Care.ROUGH and span_of(unknowns) is not None:
                self._write_out(unknowns)
            few = care is Care.TIGHTEST and isinstance(unknowns, Triples)  # the most expensive; not for small blocks
            few = few and bool(self.reach_of_block(unknowns, Care.ROUGH).amax() < SMALL * self.tight_radius.amax())
            found = found + self.reach_of_block(unknowns, Care.TIGHT if few else care)
        return found

    def reach_of_block(self, unknowns: Unknowns, care: Care) -> Tensor:
        """How far a block moves each number, (batch, *shape); cached."""
        return self.reaches.of(unknowns, self.blocks[unknowns], care)

    def _write_out(self, unknowns: Unknowns) -> None:
        """Cache a block written out and its reach, if it is small; then its row shape costs less too."""
        columns = self.blocks[unknowns]
        if isinstance(unknowns, LocalUnknowns) or spread_numbers(unknowns, columns) > MOST_WRITTEN_NUMBERS:
            return
        if not self.reaches.knows(unknowns, columns, Care.PLAIN):
            reach = sum_of_lengths(self.written_out(unknowns)[1])
            self.reaches.note(unknowns, columns, Care.PLAIN, reach)

    def written_out(self, unknowns: Unknowns) -> tuple[Unknowns, Tensor]:
        """A block with one column for each interval that spans its unknowns; unchanged if they are not spanned."""
        columns = self.blocks[unknowns]
        if span_of(unknowns) is None:
            return unknowns, columns
        known = self._written.get(unknowns)
        if known is None or known.version != columns._version:
            known = Written(*spans.written_out(unknowns, columns), columns._version)
            if known.columns.numel() <= MOST_WRITTEN_NUMBERS:
                self._written[unknowns] = known
        return known.unknowns, known.columns

    @property
    def box(self) -> Interval:
        """The range of every number."""
        return Interval(self.centre - self.radius, self.centre + self.radius)

    @property
    def rough_box(self) -> Interval:
        """The range of every number by `rough_radius`."""
        return Interval(self.centre - self.rough_radius, self.centre + self.rough_radius)

    @property
    def tight_box(self) -> Interval:
        """The range of every number by `tight_radius`."""
        return Interval(self.centre - self.tight_radius, self.centre + self.tight_radius)

    @property
    def inputs(self) -> InputUnknowns | None:
        """The input's unknowns, if this zonotope depends on them and they have unknowns for their products."""
        return next((unknowns for unknowns in self.blocks if isinstance(unknowns, InputUnknowns)), None)

    @property
    def loose(self) -> Tensor:
        """What is not in the blocks: own + slack, (batch, *shape)."""
        return self.slack if self.own is None else self.slack + self.own

    def reach(self, eta: Tensor) -> Tensor:
        """An upper bound of |η·(y − centre)| for one η (batch, rows..., d) for each row."""
        if self.by_rows is not self:
            return self.by_rows.reach(eta)
        found = (eta.abs() * self.loose).sum(-1)
        for unknowns, columns in self.blocks.items():
            along = (columns * eta[:, None, None]).sum(-1, keepdim=True)
            found = found + reach_of(unknowns, along, tight=True).squeeze(-1)
        return found

    @functools.cached_property
    def along_centre(self) -> Tensor:
        """An upper bound of |c·(y − c)| for each row with the centre c, (batch, rows...)."""
        return self.reach(self.centre)

    @functools.cached_property
    def farthest(self) -> Tensor:
        """An upper bound of |y − c|² for each row with the centre c, (batch, rows...)."""
        return torch.minimum(self.row_shape.farthest(), self.radius.square().sum(-1))

    @functools.cached_property
    def linear(self) -> Zonotope:
        """The part that is linear in the input's unknowns, around 0; 0 if products of these are not kept."""
        zero, inputs = torch.zeros_like(self.centre), self.inputs
        return Zonotope(zero, {} if inputs is None else {inputs: self.blocks[inputs]}, None, zero, self.reaches)

    @functools.cached_property
    def rest(self) -> Zonotope:
        """The part that is not `linear`, around 0."""
        inputs = self.inputs
        blocks = {unknowns: columns for unknowns, columns in self.blocks.items() if unknowns is not inputs}
        return Zonotope(torch.zeros_like(self.centre), blocks, self.own, self.slack, self.reaches)

    @functools.cached_property
    def quadratic(self) -> Zonotope:
        """The part made of products of two of the input's unknowns, around 0."""
        zero, inputs = torch.zeros_like(self.centre), self.inputs
        known = () if inputs is None else (inputs.pairs, inputs.squares)
        blocks = {unknowns: self.blocks[unknowns] for unknowns in known if unknowns in self.blocks}
        return Zonotope(zero, blocks, None, zero, self.reaches)

    @functools.cached_property
    def third(self) -> Zonotope:
        """The part that is neither `linear` nor `quadratic`, around 0."""
        known = self.quadratic.blocks
        blocks = {unknowns: columns for unknowns, columns in self.rest.blocks.items() if unknowns not in known}
        return Zonotope(torch.zeros_like(self.centre), blocks, self.own, self.slack, self.reaches)

    @functools.cached_property
    def spread(self) -> Zonotope:
        """The same zonotope without local unknowns: every number has a column for each ball. Itself if no unknowns are
        local.
        """
        whole: dict[Unknowns, Unknowns] = {u: u.everywhere for u in self.blocks if isinstance(u, LocalUnknowns)}
        found = _renamed(self, whole)
        if found is not self:
            object.__setattr__(found, "_local", self)
        return found

    @functools.cached_property
    def alone(self) -> Zonotope:
        """The part in unknowns that stand alone (`LocalUnknowns.alone`), around 0."""
        zero = torch.zeros_like(self.centre)
        blocks = {u: x for u, x in self.by_rows.blocks.items() if u.alone}
        return Zonotope(zero, blocks, None, zero)

    @functools.cached_property
    def by_rows(self) -> Zonotope:
        """The same zonotope with local unknowns shared by all numbers of a row; itself if they are."""
        if all(unknowns.in_rows for unknowns in self.blocks if isinstance(unknowns, LocalUnknowns)):
            return self
        blocks: dict[Unknowns, Tensor] = {}
        names: dict[Unknowns, Unknowns] = {}
        for unknowns, columns in self.blocks.items():
            name, wide = unknowns.by_rows(columns) if isinstance(unknowns, LocalUnknowns) else (unknowns, columns)
            names[unknowns], blocks[name] = name, wide
        return Zonotope(self.centre, blocks, self.own, self.slack, self.reaches.changed(self.blocks, blocks, names))

    @functools.cached_property
    def row_shape(self) -> RowShape:
        """An ellipsoid around each row: Σ_m G_m G_mᵀ / u_m over the balls m, with u_m = |G_m|, and `loose` along the
        axes.
        """
        if self._local is not None:  # the local form has fewer numbers
            return self._local.row_shape
        if self.by_rows is not self:
            return self.by_rows.row_shape
        if self.inputs is None or len(self.blocks) == 1:
            return self._row_shape()
        line, other = self.linear.row_shape, self.rest.row_shape
        return RowShape(line.matrix + other.matrix, line.size + other.size)

    def _row_shape(self) -> RowShape:
        loose = self.loose
        matrix, size = torch.diag_embed(loose), loose.sum(-1)
        count = loose.shape[-1]
        for unknowns, columns in self.blocks.items():
            if isinstance(unknowns, Pairs):
                shape, scale = pairs.ellipse(columns, unknowns.count)
                length = scale * shape.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0).sqrt()
                # not scale², which underflows long before the coefficients
                share = scale * (scale / torch.where(length > 0, length, torch.ones_like(length)))
                matrix = matrix + share[..., None, None] * shape
                size = size + length
                count += columns.shape[2]
                continue
            for piece in pieces(self.written_out(unknowns)[1], 1):
                length = lengths(piece, also_last=True)  # (batch, balls, rows...)
                scale = torch.where(length > 0, length, torch.ones_like(length)).sqrt()
                flat = (piece / scale[:, :, None, ..., None]).flatten(1, 2).movedim(1, -2)  # (batch, rows..., P, d)
                matrix = matrix + flat.mT @ flat
                size = size + length.sum(1)
                count += flat.shape[-2]
        return RowShape(raised(matrix, count), size)

    @functools.cached_property
    def transposed(self) -> Zonotope:
        """The zonotope with the last two dimensions exchanged."""
        return self.rearranged(lambda x: x.mT)

    def scaled_blocks(self, factor: Tensor) -> tuple[dict[Unknowns, Tensor], KnownReaches]:
        """The blocks with each number multiplied by a factor (batch, *shape), and their reaches."""
        blocks = {unknowns: columns * factor[:, None, None] for unknowns, columns in self.blocks.items()}
        size = factor.abs()
        return blocks, self.reaches.changed(self.blocks, blocks, {u: u for u in blocks}, lambda reach: reach * size)

    def rearranged(self, change: Callable[[Tensor], Tensor]) -> Zonotope:
        """The zonotope with `change` applied to all tensors; it only moves numbers, behind any leading dimensions."""
        shape = self.centre.shape[1:]
        names = {
            unknowns: unknowns.moved(change, shape) if isinstance(unknowns, LocalUnknowns) else unknowns
            for unknowns in self.blocks
        }
        blocks = {names[unknowns]: change(columns) for unknowns, columns in self.blocks.items()}
        own = None if self.own is None else change(self.own)
        reaches = self.reaches.changed(self.blocks, blocks, names, change)
        found = Zonotope(change(self.centre), blocks, own, change(self.slack), reaches)
        for unknowns, kept in self._written.items():
            if not isinstance(unknowns, LocalUnknowns) and kept.version == self.blocks[unknowns]._version:
                version = found.blocks[unknowns]._version
                found._written[unknowns] = Written(kept.unknowns, change(kept.columns), version)
        return found


def aligned(*zonotopes: Zonotope) -> tuple[Zonotope, ...]:
    """The same zonotopes, stored so that blocks of the same unknowns have the same name in all of them and can be
    added.
    """
    names: dict[Unknowns, list[Unknowns]] = {}
    for unknowns in (u for zonotope in zonotopes for u in zonotope.blocks):
        whole = unknowns.everywhere if isinstance(unknowns, LocalUnknowns) else unknowns
        if unknowns not in names.setdefault(whole, []):
            names[whole].append(unknowns)
    chosen: dict[Unknowns, Unknowns] = {}
    for whole, (first, *others) in names.items():
        if others:
            fit = isinstance(first, LocalUnknowns) and all(first.matches(other) for other in others)
            chosen |= dict.fromkeys((first, *others), first if fit else whole)
    return tuple(_renamed(zonotope, chosen) for zonotope in zonotopes)


def _renamed(zonotope: Zonotope, chosen: Mapping[Unknowns, Unknowns]) -> Zonotope:
    """The zonotope with some unknowns renamed; local unknowns whose new name is not local are spread."""
    if all(chosen.get(unknowns, unknowns) is unknowns for unknowns in zonotope.blocks):
        return zonotope
    blocks: dict[Unknowns, Tensor] = {}
    names: dict[Unknowns, Unknowns] = {}
    for unknowns, columns in zonotope.blocks.items():
        name, wide = chosen.get(unknowns, unknowns), columns
        if isinstance(unknowns, LocalUnknowns) and not isinstance(name, LocalUnknowns):
            wide = unknowns.spread(columns)
        if name in blocks:  # the reach of a sum of blocks is not known from theirs
            names = {old: new for old, new in names.items() if new is not name}
            blocks[name] = blocks[name] + wide
        else:
            names[unknowns], blocks[name] = name, wide
    reaches = zonotope.reaches.changed(zonotope.blocks, blocks, names)
    return Zonotope(zonotope.centre, blocks, zonotope.own, zonotope.slack, reaches)


def times_right(columns: Tensor, right: Tensor) -> Tensor:
    """columns (batch, balls, k, ..., n, i) @ right (batch, ..., i, m), as one product for all unknowns."""
    middle = columns.shape[3:-2]
    found = torch.einsum(
        "bpchni,bhim->bpchnm", columns.flatten(3, -3) if middle else columns.unsqueeze(3), _flat(right)
    )
    return found.reshape(*columns.shape[:-1], right.shape[-1])


def times_left(left: Tensor, columns: Tensor) -> Tensor:
    """left (batch, ..., n, i) @ columns (batch, balls, k, ..., i, m), as one product for all unknowns."""
    middle = columns.shape[3:-2]
    found = torch.einsum("bhni,bpchim->bpchnm", _flat(left), columns.flatten(3, -3) if middle else columns.unsqueeze(3))
    return found.reshape(*columns.shape[:-2], left.shape[-2], columns.shape[-1])


def times_rows(columns: Tensor, right: Tensor) -> Tensor:
    """For each row n, columns (batch, balls, k, ..., n, i) @ right (batch, ..., n, i, m), as one product for all
    unknowns.
    """
    found = torch.einsum("bpcri,brim->bpcrm", columns.flatten(3, -2), right.flatten(1, -3))
    return found.reshape(*columns.shape[:-1], right.shape[-1])


def _flat(matrices: Tensor) -> Tensor:
    """(batch, ..., n, i) → (batch, h, n, i)."""
    return matrices.flatten(1, -3) if matrices.dim() > 3 else matrices.unsqueeze(1)


def of_box(box: Interval) -> Zonotope:
    """The zonotope of a box, in which every number has its own unknown."""
    radius = box.radius
    return Zonotope(box.centre, {}, radius, torch.zeros_like(radius))


def balls(matrix: Tensor, origin: str, *, alone: bool = False) -> tuple[Unknowns, Tensor]:
    """New unknowns, one ball for each row that has an error, L (batch, rows..., d, k); and their block
    (batch, 1, k, rows..., d).
    """
    return in_rows(origin, matrix.movedim(-1, 1).unsqueeze(1), alone=alone)


MOST_SEGMENT_NUMBERS = 1 << 23
"""Segments get unknowns of their own as long as their block has at most this many numbers for each input (64 MiB)."""


def error_blocks(errors: Iterable[Ellipse | Segments], origin: str) -> dict[Unknowns, Tensor]:
    """Blocks of new unknowns that contain the sum of some errors of rows.

    Each segment gets an interval; where these would be too many, segments become ellipses. All ellipses of a row
    together become one ball: a ball for each of them gained nothing (digits with norms at ε = .035: .905 instead of
    .902).
    """
    found: dict[Unknowns, Tensor] = {}
    ellipses = []
    for each in errors:
        if isinstance(each, Ellipse):
            ellipses.append(each)
        elif each.fits:
            found.update([in_rows(origin, each.block())])
        else:
            ellipses.append(each.ellipse())
    if ellipses:
        found.update([ellipsoid_balls(ellipses, origin)])
    return found


def ellipsoid_balls(ellipses: Iterable[Ellipse], origin: str, *, alone: bool = False) -> tuple[Unknowns, Tensor]:
    """New balls that contain the sum of errors which each lie in an ellipse; `alone`: see `LocalUnknowns`."""
    whole = sum_of_ellipses(list(ellipses))
    return balls(whole.scale[..., None, None] * root(whole.matrix), origin, alone=alone)


def sum_of_ellipses(ellipses: list[Ellipse]) -> Ellipse:
    """The ellipse M = Σ Mᵢ / wᵢ around a sum of ellipses: Σ √(ηᵀ Mᵢ η) ≤ √(ηᵀ M η) if Σ wᵢ = 1.

    The weights are proportional to √tr Mᵢ.
    """
    lengths_of = [ellipse.length for ellipse in ellipses]
    whole = torch.stack(lengths_of).sum(0)
    found = torch.zeros_like(ellipses[0].matrix)
    safe = torch.where(whole > 0, whole, torch.ones_like(whole))
    for ellipse, length in zip(ellipses, lengths_of, strict=True):
        part = torch.where(length > 0, length, torch.ones_like(length))
        weight = torch.where(length > 0, (ellipse.scale / part) * (ellipse.scale / safe), 0.0)
        found = found + weight[..., None, None] * ellipse.matrix
    return Ellipse(raised(found, ellipses[0].matrix.shape[-1]), whole)
