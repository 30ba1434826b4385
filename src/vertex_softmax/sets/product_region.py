"""Products of sets as the bounds see them: each part moves for itself, so that minima and boxes are those of the parts.

Σ A·x over a product is least where it is for every part. The unknowns of affine forms and zonotopes are those of the
parts. A unit set has balls of one kind (ops/unit_sets.py):

- boxes alone are a box (`product_of` makes one);
- an ℓ2 ball beside boxes: Euclidean balls, since each number of a box is a ball for itself, exactly;
- an ℓ1 ball beside boxes: cross-polytopes, exactly, for the same reason;
- ℓ1 and ℓ2 balls: Euclidean balls; forms take the ℓ2 ball around each ℓ1 ball (minima are still those of the ℓ1 ball);
- any other kind of region among the parts: forms and zonotopes take the box around the product.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.unit_sets import CUBE, UnitBall, UnitSet
from vertex_softmax.sets.lp_region import LpRegion, Norm
from vertex_softmax.sets.region import BoxRegion, Region


def product_of(parts: Sequence[Region], shape: Sequence[int]) -> Region:
    """The product of regions of one batch size, their numbers joined and then in this shape."""
    flat = [part.rearranged(torch.arange(_count(part), device=part.box.lower.device)) for part in parts]
    order = torch.arange(sum(map(_count, flat)), device=flat[0].box.lower.device).reshape(tuple(shape))
    if len(flat) == 1:
        return flat[0].rearranged(order)
    if all(isinstance(part, BoxRegion) for part in flat):
        lower, upper = (torch.cat(ends, 1) for ends in zip(*(part.box for part in flat), strict=True))
        return BoxRegion(lower, upper).rearranged(order)
    return ProductRegion(tuple(flat), order)


def _count(part: Region) -> int:
    return math.prod(part.box.lower.shape[1:])


@dataclasses.dataclass(frozen=True, eq=False)
class ProductRegion(Region):
    """A batch of products; entry i of an input is number order[i] of those of the parts, joined."""

    parts: tuple[Region, ...]
    """each (batch, numbers of the part)"""
    order: Tensor
    """(*shape), int64: a permutation"""

    @functools.cached_property
    def box(self) -> Interval:
        """The product of the parts' boxes."""
        return Interval(
            self._placed([part.box.lower for part in self.parts]), self._placed([part.box.upper for part in self.parts])
        )

    def _placed(self, parts: Sequence[Tensor]) -> Tensor:
        """Numbers of the parts, (..., numbers) each, as (..., *shape)."""
        joined = torch.cat(list(parts), -1)
        return joined[..., self.order.flatten()].reshape(*joined.shape[:-1], *self.order.shape)

    def _taken(self, A: Tensor) -> list[Tensor]:
        """Coefficients (batch, S, *shape) of the numbers of each part, (batch, S, numbers)."""
        flat = self.order.flatten()
        place = torch.empty_like(flat)
        place[flat] = torch.arange(len(flat), device=flat.device)
        return list(A.flatten(2)[..., place].split([_count(part) for part in self.parts], -1))

    def support(self, A: Tensor, constant: Tensor | float = 0.0) -> Tensor:
        """The sum of the parts' least values."""
        pairs = zip(self.parts, self._taken(A), strict=True)
        return constant + torch.stack([part.support(own) for part, own in pairs]).sum(0)

    def minimise(self, A: Tensor, constant: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        """The sum of the parts' least values, and the points of the parts that attain them."""
        found = [part.minimise(own) for part, own in zip(self.parts, self._taken(A), strict=True)]
        return constant + torch.stack([value for value, _ in found]).sum(0), self._placed([x for _, x in found])

    @property
    def ball(self) -> UnitBall | None:
        """The balls that every part is a product of, or is in; None: not known of some part."""
        if not all(isinstance(part, BoxRegion | LpRegion) for part in self.parts):
            return None
        norms = {part.norm for part in self.parts if isinstance(part, LpRegion)}
        if not norms:
            return UnitBall.INTERVAL
        return UnitBall.CROSS if norms == {Norm.L1} else UnitBall.EUCLIDEAN

    @property
    def middle(self) -> Tensor:
        """Those of the parts."""
        return super().middle if self.ball is None else self._placed([part.middle for part in self.parts])

    @property
    def spread(self) -> Tensor:
        """Those of the parts."""
        return super().spread if self.ball is None else self._placed([part.spread for part in self.parts])

    @functools.cached_property
    def unit(self) -> UnitSet:
        """A ball for each ball of the parts, and one for each number of a box.

        Numbers that never vary may be in any ball: they are in the first of an ℓp part.
        """
        if self.ball is None or self.ball is UnitBall.INTERVAL:
            return CUBE
        of, starts = self.balls, list(itertools.accumulate(map(_count, self.parts), initial=0))
        first = next(starts[i] for i, part in enumerate(self.parts) if isinstance(part, LpRegion))
        still = (torch.cat([part.spread for part in self.parts], -1) == 0).all(0)
        of = torch.where(still, of[first], of)
        return UnitSet(self.ball, of.unique(return_inverse=True)[1][self.order.flatten()])

    @property
    def balls(self) -> Tensor:
        """The ball of each number of the parts, joined, (numbers,): counted from 0, not all numbers are used."""
        found, before = [], 0
        for part in self.parts:
            own = torch.arange(_count(part), device=self.order.device)
            if isinstance(part, LpRegion):
                lead = part.members[:, :1].expand_as(part.members)
                own = own.scatter(0, part.members.flatten(), lead.flatten())
            found.append(before + own)
            before += len(own)
        return torch.cat(found)

    def columns(self) -> Tensor:
        """All balls of `blocks`, those of lower dimension with columns of zeros."""
        blocks = self.blocks()
        most = max(block.shape[2] for block in blocks)
        wide = [torch.cat([x, x.new_zeros(x.shape[0], x.shape[1], most - x.shape[2], *x.shape[3:])], 2) for x in blocks]
        return torch.cat(wide, 1)

    def blocks(self) -> tuple[Tensor, ...]:
        """The columns of the parts, those of one dimension together."""
        if self.ball is None:
            return (super().columns(),)
        by_dimension: dict[int, list[Tensor]] = {}
        ends = list(itertools.accumulate(map(_count, self.parts), initial=0))
        for part, before in zip(self.parts, ends, strict=False):
            for own in part.blocks():
                whole = own.new_zeros(*own.shape[:3], ends[-1])
                whole[..., before : before + own.shape[-1]] = own
                placed = whole[..., self.order.flatten()].reshape(*own.shape[:3], *self.order.shape)
                if own.shape[1] and own.shape[2]:
                    by_dimension.setdefault(own.shape[2], []).append(placed)
        if not by_dimension:
            return (super().columns(),)  # nothing varies
        return tuple(torch.cat(found, 1) for found in by_dimension.values())

    def at(self, which: slice | Tensor) -> ProductRegion:
        """The sets of some inputs."""
        return ProductRegion(tuple(part.at(which) for part in self.parts), self.order)

    def rearranged(self, numbers: Tensor) -> ProductRegion:
        """The order rearranged."""
        return ProductRegion(self.parts, self.order.flatten()[numbers])
