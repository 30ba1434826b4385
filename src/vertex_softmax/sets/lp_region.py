"""Balls in an ℓp norm as the bounds see them, cut by a box: minima of linear functions by duality, in closed form.

A set is all x = centre + radius·z with |z|_p ≤ 1 for each of its balls and lower ≤ x ≤ upper; z is 0 where the radius
is. The numbers of an input are divided among balls of equal size: one ball for all numbers, or one for each token.

With b = A·radius and e_i ≥ 0 the way that z_i may go against b_i (1, or less where the box ends before),
Σ b z over the set is at least, for every λ ≥ 0,
  p = 1:  −λ − Σ_i e_i max(|b_i| − λ, 0)
  p = 2:  −λ − Σ_i max over 0 ≤ t ≤ e_i of |b_i| t − λ t²
(weak duality: so rounding of λ costs tightness and never soundness). The best λ is found by sorting the λ_i at which
number i comes to the end of its way, |b_i| for p = 1 and |b_i| / (2 e_i) for p = 2. Where no box cuts the ball it is
max |b| and |b|₂.
"""

from __future__ import annotations

import dataclasses
import enum

import torch
from torch import Tensor

from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.unit_sets import UnitBall, UnitSet
from vertex_softmax.sets.region import Region


class Norm(enum.Enum):
    """The norms of balls that are no boxes."""

    L1 = 1
    L2 = 2


@dataclasses.dataclass(frozen=True, eq=False)
class LpRegion(Region):
    """A batch of sets, each the product of some balls, cut by a box."""

    norm: Norm
    centre: Tensor
    """(batch, *shape), in the box"""
    radius: Tensor
    """(batch, *shape), ≥ 0"""
    lower: Tensor
    """(batch, *shape)"""
    upper: Tensor
    """(batch, *shape)"""
    members: Tensor
    """(balls, size), int64: which numbers of an input, counted flat, are in each ball; every number is in one"""

    @property
    def box(self) -> Interval:
        """The smallest box around each set, as it was given: ball and box already taken together."""
        return Interval(self.lower, self.upper)

    def support(self, A: Tensor, constant: Tensor | float = 0.0) -> Tensor:
        """By the dual value at the best multiplier."""
        b, way = self._moves(A)
        middle = (A.flatten(2) @ self.centre.flatten(1).unsqueeze(-1)).squeeze(-1)
        return constant + middle - _farthest(b.abs(), way, self.norm)[0].sum(-1)

    def minimise(self, A: Tensor, constant: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        """The least values, and points of the sets that attain them but for rounding."""
        b, way = self._moves(A)
        value, length = _farthest(b.abs(), way, self.norm)
        z = torch.zeros(*A.shape[:2], self.members.numel(), dtype=A.dtype, device=A.device)
        z[..., self.members.flatten()] = (-b.sign() * length).flatten(-2)
        point = self.centre.unsqueeze(1) + self.radius.unsqueeze(1) * z.reshape(A.shape)
        point = torch.minimum(torch.maximum(point, self.lower.unsqueeze(1)), self.upper.unsqueeze(1))
        middle = (A.flatten(2) @ self.centre.flatten(1).unsqueeze(-1)).squeeze(-1)
        return constant + middle - value.sum(-1), point

    @property
    def middle(self) -> Tensor:
        """The centre of the balls."""
        return self.centre

    @property
    def spread(self) -> Tensor:
        """The radii of the balls, which may reach out of the box that cuts them."""
        return self.radius

    @property
    def unit(self) -> UnitSet:
        """A product of balls."""
        of = torch.empty_like(self.members.flatten())
        balls = torch.arange(len(self.members), device=of.device).unsqueeze(1)
        of[self.members] = balls.expand_as(self.members)
        return UnitSet(UnitBall.EUCLIDEAN if self.norm is Norm.L2 else UnitBall.CROSS, of)

    def columns(self) -> Tensor:
        """A Euclidean ball for each ball of the set: the ℓ1 ball is inside the ℓ2 ball. The box's cut is lost here."""
        batch, (balls, size) = self.radius.shape[0], self.members.shape
        found = self.radius.new_zeros(batch, balls, size, balls * size)
        ball = torch.arange(balls, device=found.device).unsqueeze(1).expand(balls, size)
        place = torch.arange(size, device=found.device).expand(balls, size)
        found[:, ball, place, self.members] = self.radius.flatten(1)[:, self.members]
        live = (found != 0).any(-1).any(0)  # (balls, size)
        found = found[:, live.any(1)][:, :, live.any(0)]
        return found.reshape(*found.shape[:3], *self.radius.shape[1:])

    def at(self, which: slice | Tensor) -> LpRegion:
        """The sets of some inputs."""
        centre, radius, lower, upper = (x[which] for x in (self.centre, self.radius, self.lower, self.upper))
        return LpRegion(self.norm, centre, radius, lower, upper, self.members)

    def rearranged(self, numbers: Tensor) -> LpRegion:
        """Every tensor rearranged, and the balls' members found again."""
        flat = numbers.flatten()
        place = torch.empty_like(flat)
        place[flat] = torch.arange(len(flat), device=flat.device)
        centre, radius, lower, upper = (
            x.flatten(1)[:, flat].reshape(-1, *numbers.shape)
            for x in (self.centre, self.radius, self.lower, self.upper)
        )
        return LpRegion(self.norm, centre, radius, lower, upper, place[self.members])

    def _moves(self, A: Tensor) -> tuple[Tensor, Tensor]:
        """b and the ways e of each number, by balls, (batch, S, balls, size) both."""
        flat, radius = A.flatten(2), self.radius.flatten(1)
        b = (flat * radius.unsqueeze(1))[..., self.members]
        safe = torch.where(radius > 0, radius, torch.ones_like(radius))
        centre = self.centre.flatten(1)
        down, up = ((centre - self.lower.flatten(1)) / safe, (self.upper.flatten(1) - centre) / safe)
        one = torch.ones_like(safe)
        down, up = (torch.minimum(x.clamp(min=0), one)[:, None, self.members] for x in (down, up))
        return b, torch.where(b > 0, down, up)


def _farthest(size: Tensor, way: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """The most of Σ size·t with 0 ≤ t ≤ way and |t|_p ≤ 1, and where: (..., n) each → (...), (..., n).

    The first is the dual value at a multiplier, and so at least the true one, to rounding of sums.
    """
    if norm is Norm.L1:
        return _farthest_in_l1(size, way)
    return _farthest_in_l2(size, way)


def _farthest_in_l1(size: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
    ordered, order = size.sort(-1, descending=True)
    steps = way.gather(-1, order)
    before = steps.cumsum(-1) - steps
    taken = torch.minimum((1 - before).clamp(min=0), steps)
    full = steps.sum(-1) <= 1
    last = (taken > 0).long().mul_(torch.arange(size.shape[-1], device=size.device)).amax(-1, keepdim=True)
    price = torch.where(full, torch.zeros_like(full, dtype=size.dtype), ordered.gather(-1, last).squeeze(-1))
    value = price + (way * (size - price.unsqueeze(-1)).clamp(min=0)).sum(-1)
    found = torch.zeros_like(size).scatter(-1, order, taken)
    return value, torch.where(size > 0, found, torch.zeros_like(found))


def _farthest_in_l2(size: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
    most = size.amax(-1, keepdim=True)
    safe = torch.where(most > 0, most, torch.ones_like(most))
    part = size / safe  # squares of small numbers vanish
    ends = torch.where(way > 0, part / (2 * torch.where(way > 0, way, torch.ones_like(way))), torch.inf)
    ends = torch.where(part > 0, ends, torch.zeros_like(ends))
    ordered, order = ends.sort(-1, descending=True)
    sizes, ways = part.gather(-1, order), way.gather(-1, order)
    spent = ways.square().cumsum(-1)  # by those that are at their ends, if they are the first k
    left = sizes.square().flip(-1).cumsum(-1).flip(-1)
    left = torch.cat([left[..., 1:], torch.zeros_like(left[..., :1])], -1)  # of those that are not
    finite = ordered.isfinite() & (ordered > 0)
    price = torch.where(finite, ordered, torch.ones_like(ordered))
    reached = torch.where(finite, spent + left / (4 * price.square()), torch.where(ordered > 0, spent, torch.inf))
    count = (reached <= 1).sum(-1, keepdim=True)  # so many are at their ends
    index = (count - 1).clamp(min=0)
    none = count == 0
    room = 1 - torch.where(none, torch.zeros_like(most), spent.gather(-1, index))
    rest = torch.where(none, sizes.square().sum(-1, keepdim=True), left.gather(-1, index))
    free = (room > 0) & (rest > 0)
    best = torch.where(free, (rest / torch.where(free, room, torch.ones_like(room))).sqrt() / 2, torch.zeros_like(rest))
    length = torch.where(best > 0, part / (2 * torch.where(best > 0, best, torch.ones_like(best))), torch.inf)
    length = torch.where(part > 0, torch.minimum(length, way), torch.zeros_like(way))
    value = best.squeeze(-1) + (part * length - best * length.square()).sum(-1)
    return value * safe.squeeze(-1), length
