"""A box cut by one half-space as the bounds see it: minima of linear functions by duality, in closed form.

A set is all x with lower ≤ x ≤ upper and Σ slope·x ≤ limit. For every λ ≥ 0, Σ A·x over the set is at least
  −λ·limit + the least value of Σ (A + λ·slope)·x over the box
(weak duality: so rounding of λ costs tightness and never soundness). That is concave in λ, and bends where a number of
A + λ·slope changes its sign: the best λ is found by sorting these. Everything else that a region is asked, its box and
its unknowns, is the box's own: they know nothing of the cut, and hold for all of the box.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.sets.region import BoxRegion


@dataclasses.dataclass(frozen=True, eq=False)
class CutRegion(BoxRegion):
    """A batch of boxes, each cut by a half-space."""

    slope: Tensor
    """(batch, *shape)"""
    limit: Tensor
    """(batch,)"""

    def support(self, A: Tensor, constant: Tensor | float = 0.0) -> Tensor:
        """By the dual value at the best multiplier, which is fixed in the gradient: that is a point of the box."""
        price = self._price(A)
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

    def at(self, which: slice) -> CutRegion:
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
        flat, slope = A.flatten(2), self.slope.flatten(1).unsqueeze(1)
        width = (self.upper - self.lower).flatten(1).unsqueeze(1)
        falls = torch.where(flat != 0, torch.sign(flat), torch.sign(slope))  # of A + λ·slope for the least λ > 0
        corner = torch.where(falls > 0, self.lower.flatten(1).unsqueeze(1), self.upper.flatten(1).unsqueeze(1))
        rise = (slope * corner).sum(-1) - self.limit.unsqueeze(1)  # of the dual value, at λ = 0
        ordered, order = self._bends(flat).sort(-1)
        steps = (slope.abs() * width).expand_as(flat).gather(-1, order)
        rises = rise.unsqueeze(-1) - steps.cumsum(-1)  # behind each bend
        finite = ordered.isfinite()
        count = ((rises > 0) & finite).sum(-1, keepdim=True)  # so many bends are before the best one
        most = (finite.sum(-1, keepdim=True) - 1).clamp(min=0)
        best = ordered.gather(-1, torch.minimum(count, most)).squeeze(-1)
        return torch.where((rise > 0) & best.isfinite(), best, torch.zeros_like(best))

    def _bends(self, flat: Tensor) -> Tensor:
        """The λ > 0 at which each number of A + λ·slope changes its sign; inf where there is none. Like A, flat."""
        slope = self.slope.flatten(1).unsqueeze(1)
        bend = -flat / torch.where(slope != 0, slope, torch.ones_like(slope))
        return torch.where((slope != 0) & (bend > 0), bend, torch.full_like(bend, torch.inf))
