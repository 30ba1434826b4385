"""Zonotopes of nodes, made from the input on: one affine function of unknowns that all nodes share.

A node's value is centre + Σ_b blocks_b·ξ_b + own·ν + e. The unknowns ξ_b of a block lie in balls, |ξ| ≤ 1 for each ball
(a ball of one dimension is an interval); the same unknown stands in every node that the op which introduced it reaches,
so that what one branch adds another can take away. Every number has one more unknown ν of its own, |ν| ≤ 1, as long as
nothing mixes numbers; and |e| ≤ slack, mostly rounding, known only by its size.

A set of errors that is bounded in every direction becomes a ball in the shape of an ellipsoid. It keeps the directions
in which the errors lie, which a box of the same numbers loses: then errors grow from layer to layer.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops.generators import most_eigenvalue, raised, root
from vertex_softmax.ops.interval import Interval


@dataclasses.dataclass(frozen=True, eq=False)
class Unknowns:
    """Unknowns that one op introduced: balls of equal dimension. Equal only if they are the same object."""

    origin: str
    """the node that introduced them, for messages"""


class Ellipse(NamedTuple):
    """Errors e of each row of d numbers, |η·e|² ≤ scale² · ηᵀ matrix η: so nothing is the square of small numbers."""

    matrix: Tensor
    """(batch, rows..., d, d)"""
    scale: Tensor
    """(batch, rows...)"""

    @property
    def length(self) -> Tensor:
        """√ of the trace of both, (batch, rows...)."""
        trace: Tensor = self.matrix.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0)
        return self.scale * trace.sqrt()


@dataclasses.dataclass(frozen=True, eq=False)
class RowShape:
    """An ellipsoid around the deviation of each row of d numbers from its centre: |η·y'|² ≤ size · ηᵀ matrix η."""

    matrix: Tensor
    """(batch, rows..., d, d)"""
    size: Tensor
    """(batch, rows...)"""

    def ellipsoid(self) -> Ellipse:
        """The same as a matrix and a scale."""
        return Ellipse(self.matrix, self.size.sqrt())

    def farthest(self) -> Tensor:
        """|y'|² at most, (batch, rows...)."""
        return most_eigenvalue(self.matrix) * self.size


@dataclasses.dataclass(frozen=True, eq=False)
class Zonotope:
    """The values of a node over the input set; `shape` is the node's."""

    centre: Tensor
    """(batch, *shape)"""
    blocks: Mapping[Unknowns, Tensor]
    """(batch, balls, dimension of each, *shape)"""
    own: Tensor | None
    """(batch, *shape), ≥ 0: the unknown that each number has for itself; None is 0"""
    slack: Tensor
    """(batch, *shape), ≥ 0: what else a number may be off by"""

    @functools.cached_property
    def radius(self) -> Tensor:
        """How far each number is from its centre, (batch, *shape)."""
        found = self.slack if self.own is None else self.slack + self.own
        for columns in self.blocks.values():
            found = found + lengths(columns).sum(1)
        return found

    @property
    def box(self) -> Interval:
        """The range of every number."""
        return Interval(self.centre - self.radius, self.centre + self.radius)

    @property
    def loose(self) -> Tensor:
        """What is not in the blocks, (batch, *shape)."""
        return self.slack if self.own is None else self.slack + self.own

    def reach(self, eta: Tensor) -> Tensor:
        """|η·(y − centre)| at most, for one η (batch, rows..., d) for each row."""
        found = (eta.abs() * self.loose).sum(-1)
        for columns in self.blocks.values():
            found = found + lengths((columns * eta[:, None, None]).sum(-1)).sum(1)
        return found

    @functools.cached_property
    def row_shape(self) -> RowShape:
        """The ellipsoid of each row: Σ_m G_m G_mᵀ / u_m for the balls, u_m = |G_m|, and the rest along the axes."""
        loose = self.loose
        matrix, size = torch.diag_embed(loose), loose.sum(-1)
        count = loose.shape[-1]
        for columns in self.blocks.values():
            length = lengths(columns, also_last=True)  # (batch, balls, rows...)
            scale = torch.where(length > 0, length, torch.ones_like(length)).sqrt()
            flat = (columns / scale[:, :, None, ..., None]).flatten(1, 2).movedim(1, -1)  # (batch, rows..., d, P)
            matrix = matrix + flat @ flat.mT
            size = size + length.sum(1)
            count += flat.shape[-1]
        return RowShape(raised(matrix, count), size)

    @functools.cached_property
    def transposed(self) -> Zonotope:
        """With the last two dimensions exchanged."""
        return self.rearranged(lambda x: x.mT)

    def rearranged(self, change: Callable[[Tensor], Tensor]) -> Zonotope:
        """With all tensors changed by a function that only moves numbers, behind any leading dimensions."""
        return Zonotope(
            change(self.centre),
            {unknowns: change(columns) for unknowns, columns in self.blocks.items()},
            None if self.own is None else change(self.own),
            change(self.slack),
        )


def lengths(columns: Tensor, *, also_last: bool = False) -> Tensor:
    """How far each ball moves each number: (batch, balls, k, *shape) → (batch, balls, *shape).

    `also_last`: each row, over the last dimension too.
    """
    if columns.shape[2] == 1 and not also_last:
        return columns.abs().squeeze(2)
    return norm(columns, (2, -1) if also_last else (2,))


def norm(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The Euclidean norm over some dimensions; where squares underflow, the largest number times √count."""
    square = x.square().sum(dims)
    count = math.prod(x.shape[i] for i in dims)
    limits = torch.finfo(x.dtype)
    small = square < count * limits.tiny / limits.eps
    if not bool(small.any()):
        return square.sqrt()
    most = x.abs().amax(dims) * (math.sqrt(count) * (1 + 4 * limits.eps))
    return torch.where(small, most, square.sqrt())


def times_right(columns: Tensor, right: Tensor) -> Tensor:
    """columns (batch, balls, k, ..., n, i) @ right (batch, ..., i, m), one product for all unknowns together."""
    middle = columns.shape[3:-2]
    found = torch.einsum(
        "bpchni,bhim->bpchnm", columns.flatten(3, -3) if middle else columns.unsqueeze(3), _flat(right)
    )
    return found.reshape(*columns.shape[:-1], right.shape[-1])


def times_left(left: Tensor, columns: Tensor) -> Tensor:
    """left (batch, ..., n, i) @ columns (batch, balls, k, ..., i, m), one product for all unknowns together."""
    middle = columns.shape[3:-2]
    found = torch.einsum("bhni,bpchim->bpchnm", _flat(left), columns.flatten(3, -3) if middle else columns.unsqueeze(3))
    return found.reshape(*columns.shape[:-2], left.shape[-2], columns.shape[-1])


def times_rows(columns: Tensor, right: Tensor) -> Tensor:
    """Row by row: columns (batch, balls, k, ..., n, i) @ right (batch, ..., n, i, m), for all unknowns together."""
    found = torch.einsum("bpcri,brim->bpcrm", columns.flatten(3, -2), right.flatten(1, -3))
    return found.reshape(*columns.shape[:-1], right.shape[-1])


def _flat(matrices: Tensor) -> Tensor:
    """(batch, ..., n, i) → (batch, h, n, i)."""
    return matrices.flatten(1, -3) if matrices.dim() > 3 else matrices.unsqueeze(1)


def of_box(box: Interval) -> Zonotope:
    """A box: every number has its own unknown."""
    radius = box.radius
    return Zonotope(box.centre, {}, radius, torch.zeros_like(radius))


def balls(matrix: Tensor, origin: str) -> tuple[Unknowns, Tensor]:
    """One ball for each row that has an error: L (batch, rows..., d, k) → unknowns, (batch, balls, k, rows..., d)."""
    batch, rows, (d, k) = matrix.shape[0], matrix.shape[1:-2], matrix.shape[-2:]
    flat = matrix.reshape(batch, -1, d, k)
    live = flat.abs().amax((0, 2, 3)).nonzero().flatten()
    columns = flat.new_zeros(batch, len(live), flat.shape[1], k, d)
    columns[:, torch.arange(len(live), device=flat.device), live] = flat[:, live].mT
    return Unknowns(origin), columns.movedim(3, 2).reshape(batch, len(live), k, *rows, d)


def ellipsoid_balls(ellipses: Iterable[Ellipse], origin: str) -> tuple[Unknowns, Tensor]:
    """Balls that hold the sum of errors which each lie in an ellipse."""
    whole = sum_of_ellipses(list(ellipses))
    return balls(whole.scale[..., None, None] * root(whole.matrix), origin)


def sum_of_ellipses(ellipses: list[Ellipse]) -> Ellipse:
    """Σ √(ηᵀ Mᵢ η) ≤ √(ηᵀ M η) for M = Σ Mᵢ / wᵢ with weights wᵢ that add up to 1, in proportion to √tr Mᵢ."""
    lengths_of = [ellipse.length for ellipse in ellipses]
    whole = torch.stack(lengths_of).sum(0)
    found = torch.zeros_like(ellipses[0].matrix)
    safe = torch.where(whole > 0, whole, torch.ones_like(whole))
    for ellipse, length in zip(ellipses, lengths_of, strict=True):
        part = torch.where(length > 0, length, torch.ones_like(length))
        weight = torch.where(length > 0, (ellipse.scale / part) * (ellipse.scale / safe), 0.0)
        found = found + weight[..., None, None] * ellipse.matrix
    return Ellipse(raised(found, ellipses[0].matrix.shape[-1]), whole)


def columns_ellipse(columns: Tensor) -> Ellipse:
    """Of the errors Σ_j columns_j ν_j with |ν_j| ≤ 1: columns (batch, rows..., n, d)."""
    length = norm(columns, (-1,))
    whole = length.sum(-1)
    unit = columns / torch.where(length > 0, length, torch.ones_like(length)).unsqueeze(-1)
    share = length / torch.where(whole > 0, whole, torch.ones_like(whole)).unsqueeze(-1)
    return Ellipse((unit * share.unsqueeze(-1)).mT @ unit, whole)
