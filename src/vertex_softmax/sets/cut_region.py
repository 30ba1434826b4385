"""A box cut by one half-space as the bounds see it: minima of linear functions by duality, in closed form.

A set is all x with lower ≤ x ≤ upper and Σ slope·x ≤ limit. For every λ ≥ 0, Σ A·x over the set is at least
  −λ·limit + the least value of Σ (A + λ·slope)·x over the box
(weak duality: so rounding of λ costs tightness and never soundness). That is concave in λ, and bends where a number of
A + λ·slope changes its sign: the best λ is found by sorting these. Everything else that a region is asked, its box and
its unknowns, is the box's own: they know nothing of the cut, and hold for all of the box. Where so many functions are
asked for that sorting takes longest, the bends are counted in bins instead, and λ is taken within the best bin.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.sets.region import BoxRegion

BINS = 512
"""Into so many bins bends are counted where they are not sorted."""
SORTED = 1 << 16
"""At most so many bends are sorted at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class CutRegion(BoxRegion):
    """A batch of boxes, each cut by a half-space."""

    slope: Tensor
    """(batch, *shape)"""
    limit: Tensor
    """(batch,)"""

    def support(self, A: Tensor, constant: Tensor | float = 0.0) -> Tensor:
        """By the dual value at the best multiplier, which is fixed in the gradient: that is a point of the box."""
        price = self._price(A) if A.numel() <= SORTED else self._price_by_bins(A)
        mixed = A + price.reshape(*price.shape, *[1] * (A.dim() - 2)) * self.slope.unsqueeze(1)
        return super().support(mixed, constant - price * self.limit.unsqueeze(1))

    def minimise(self, A: Tensor, constant: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        """The least values, and points of the sets that attain them but for rounding: points of the boxes without it.

        Between the corners just before and just behind the best multiplier's bend, as far as the half-space allows.
        """
        price = self._price(A)
        flat, slope = A.flatten(2), self.slope.flatten(1).unsqueeze(1)
        box = BoxRegion(self.lower.flatten(1), self.upper.flatten(1))
        mixed = flat + price.unsqueeze(-1) * slope
        value, _ = box.minimise(mixed, constant - price * self.limit.unsqueeze(1))
        lower, upper = (end.unsqueeze(1) for end in box.box)
        centre = box.box.centre.unsqueeze(1)
        corner = torch.where(mixed > 0, lower, torch.where(mixed < 0, upper, centre))
        bent = (price.unsqueeze(-1) == self._bends(flat)) & (price.unsqueeze(-1) > 0)
        free = (mixed == 0) & (slope != 0)  # any value will do
        near = torch.where(bent | free, torch.where(slope > 0, lower, upper), corner)  # where Σ slope·x is less
        far = torch.where(bent, torch.where(slope > 0, upper, lower), torch.where(free, centre, corner))
        room = self.limit.unsqueeze(1) - (slope * near).sum(-1)
        way = (slope * (far - near)).sum(-1)
        share = torch.where(way > 0, room / torch.where(way > 0, way, torch.ones_like(way)), torch.zeros_like(way))
        point = near + share.clamp(0.0, 1.0).unsqueeze(-1) * (far - near)
        point = torch.minimum(torch.maximum(point, lower), upper)
        return value, point.reshape(A.shape)

    def at(self, which: slice | Tensor) -> CutRegion:
        """The sets of some inputs."""
        return CutRegion(self.lower[which], self.upper[which], self.slope[which], self.limit[which])

    def rearranged(self, numbers: Tensor) -> CutRegion:
        """Both ends and the slope rearranged."""
        lower, upper, slope = (
            x.flatten(1)[:, numbers.flatten()].reshape(-1, *numbers.shape) for x in (*self.box, self.slope)
        )
        return CutRegion(lower, upper, slope, self.limit)

    @torch.no_grad()
    def _price(self, A: Tensor) -> Tensor:
        """The best multipliers λ ≥ 0 of the half-space, (batch, S), among 0 and the bends."""
        flat = A.flatten(2)
        rise, falls = self._rise(flat), self._falls()
        ordered, order = self._bends(flat).sort(-1)
        steps = falls.expand_as(flat).gather(-1, order)
        rises = rise.unsqueeze(-1) - steps.cumsum(-1)  # behind each bend
        finite = ordered.isfinite()
        count = ((rises > 0) & finite).sum(-1, keepdim=True)  # so many bends are before the best one
        most = (finite.sum(-1, keepdim=True) - 1).clamp(min=0)
        best = ordered.gather(-1, torch.minimum(count, most)).squeeze(-1)
        return torch.where((rise > 0) & best.isfinite(), best, torch.zeros_like(best))

    @torch.no_grad()
    def _price_by_bins(self, A: Tensor) -> Tensor:
        """Almost the best multipliers λ ≥ 0, (batch, S): bends are counted by λ/(λ + scale), in equal bins."""
        flat, falls = A.flatten(2), self._falls()
        rise, bends = self._rise(flat), self._bends(flat)
        size = (self.slope.flatten(1).abs().sum(-1)).unsqueeze(1)
        scale = (flat.abs().sum(-1) / torch.where(size > 0, size, torch.ones_like(size))).unsqueeze(-1)
        place = (BINS * bends / (bends + scale)).nan_to_num(nan=BINS - 1, posinf=BINS - 1)
        steps = torch.where(bends.isfinite(), falls, torch.zeros_like(falls))
        counted = torch.zeros(*flat.shape[:2], BINS, dtype=flat.dtype, device=flat.device)
        counted.scatter_add_(-1, place.to(torch.int64).clamp(0, BINS - 1), steps)
        rises = rise.unsqueeze(-1) - counted.cumsum(-1)  # behind each bin
        best = (rises > 0).sum(-1, keepdim=True).clamp(max=BINS - 2)
        fall = counted.gather(-1, best)
        share = rises.gather(-1, best) / torch.where(fall > 0, fall, torch.ones_like(fall)) + 1
        where = (best + share.nan_to_num(0.0).clamp(0, 1)) / BINS
        price = (scale * where / (1 - where)).squeeze(-1)
        return torch.where((rise > 0) & price.isfinite(), price, torch.zeros_like(price))

    def _rise(self, flat: Tensor) -> Tensor:
        """How fast the dual value rises with λ, at λ = 0: (batch, S)."""
        slope = self.slope.flatten(1).unsqueeze(1)
        way = torch.where(flat != 0, torch.sign(flat), torch.sign(slope))  # of A + λ·slope for the least λ > 0
        corner = torch.where(way > 0, self.lower.flatten(1).unsqueeze(1), self.upper.flatten(1).unsqueeze(1))
        return (slope * corner).sum(-1) - self.limit.unsqueeze(1)

    def _falls(self) -> Tensor:
        """By how much the rise falls at the bend of each number: (batch, 1, numbers)."""
        return (self.slope.abs() * (self.upper - self.lower)).flatten(1).unsqueeze(1)

    def _bends(self, flat: Tensor) -> Tensor:
        """The λ > 0 at which each number of A + λ·slope changes its sign; inf where there is none. Like A, flat."""
        slope = self.slope.flatten(1).unsqueeze(1)
        bend = -flat / torch.where(slope != 0, slope, torch.ones_like(slope))
        return torch.where((slope != 0) & (bend > 0), bend, torch.full_like(bend, torch.inf))
