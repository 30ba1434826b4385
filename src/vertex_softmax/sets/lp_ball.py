"""Balls in the ℓ1, ℓ2 or maximum norm, optionally cut to the range of valid inputs."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.sets.arguments import Array, batch_of, clip_of, first_true, radius_of
from vertex_softmax.sets.base import InputSet, range_text
from vertex_softmax.sets.lp_points import directions, in_balls, moved, onto_ball, random_offsets
from vertex_softmax.sets.lp_region import LpRegion, Norm
from vertex_softmax.sets.region import BoxRegion, Region, placed
from vertex_softmax.sets.rounding import around, outward

MORE = 2.0**-30
"""A distance between two precisions is taken this much longer, relatively: far more than its rounding."""


class LpBall(InputSet):
    """All x' with |(x' − x) / eps|_p ≤ 1, and clip[0] ≤ x' ≤ clip[1] if clip is given; p is 1, 2 or inf.

    x has shape (batch, *input shape). eps is one number, a tensor (batch) with one number per input, or anything that
    broadcasts to x: a radius for each number, the half axes of an ellipsoid if p = 2. Numbers whose radius is 0 are
    fixed. By default all numbers of an input are in one ball; with `per_token` every token, a row of an input
    (tokens, ...), has a ball of its own: all words move, each within its ball.

    The set is the real one, in exact arithmetic: bounds hold for every point of it. `lower` and `upper` are the ends of
    a box around it, rounded outwards. `contains` is exact.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("lower", "upper", "x", "eps", "p", "clip", "per_token")

    _x: Tensor
    _eps: Tensor
    _p: float
    _clip: tuple[float, float] | None
    _per_token: bool

    def __init__(
        self,
        x: Array,
        eps: float | Array,
        p: float = 2,
        clip: tuple[float, float] | None = None,
        *,
        per_token: bool = False,
    ) -> None:
        point, order = batch_of("x", x), order_of(p)
        radius = radius_of(eps, point).clone()
        lower, upper = around("x", point, radius)
        if per_token and point.dim() < 3:
            raise InvalidValueError(
                f"x has shape {tuple(point.shape)}; per_token needs (batch, tokens, ...), a row for each token"
            )
        if clip is not None:
            low, high = clip = clip_of(clip)
            if (index := first_true((point < low) | (point > high))) is not None:
                raise InvalidValueError(
                    f"x is {point[index].item()!r} at index {index}, outside clip = {clip}; "
                    "scale the inputs, widen clip, or leave it out"
                )
            lower, upper = lower.clamp(min=low), upper.clamp(max=high)
        self._set(x=point, eps=radius, p=order, clip=clip, per_token=bool(per_token), lower=lower, upper=upper)

    @property
    def x(self) -> Tensor:
        """The points that the balls are around, (batch, *input shape); a copy."""
        return self._x.clone()

    @property
    def eps(self) -> Tensor:
        """The radius of every number, (batch, *input shape); a copy."""
        return self._eps.clone()

    @property
    def p(self) -> float:
        """The order of the norm: 1, 2 or inf."""
        return self._p

    @property
    def clip(self) -> tuple[float, float] | None:
        """The range of valid inputs; None if there is none."""
        return self._clip

    @property
    def per_token(self) -> bool:
        """Whether every token has a ball of its own."""
        return self._per_token

    @property
    def centre(self) -> Tensor:
        """The points that the balls are around, (batch, *input shape); a copy."""
        return self.x

    def region(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Region:
        """The sets as bounds see them, rounded outward to a precision."""
        if self._p == math.inf:
            return super().region(shape, dtype, device)
        lower, upper = (
            placed(outward(end, dtype, way).to(device), shape)
            for end, way in ((self._lower, -torch.inf), (self._upper, torch.inf))
        )
        centre = self._x.to(dtype)
        # In another precision the centre moves: by so much more the ball has to reach. One ulp besides is for what
        # rounds where x − centre is divided by the radius.
        moved = (centre.double() - self._x).abs()
        if bool((moved > 0).any()):
            moved = _distance(moved, self._eps, self._p, self._members())
        radius = outward(self._eps * (1 + moved), dtype, torch.inf)
        radius = torch.where(self._eps > 0, torch.nextafter(radius, torch.full_like(radius, torch.inf)), radius)
        if bool(((self._eps == 0) & (centre.double() != self._x)).any()):
            return BoxRegion(lower, upper)  # a fixed number that this precision does not have
        centre, radius = (placed(x.to(device), shape) for x in (centre, radius))
        # not `_members`: where the network takes the whole batch as one input, that has the balls of all of them
        members = torch.arange(centre[0].numel(), device=device).reshape(-1, self._members().shape[1])
        return LpRegion(Norm(int(self._p)), centre, radius, lower, upper, members)

    def _members(self) -> Tensor:
        """The numbers of each ball, (balls, size)."""
        count = self._x[0].numel()
        return torch.arange(count).reshape(self._x.shape[1] if self._per_token else 1, -1)

    def contains(self, x: Tensor) -> Tensor:
        """Whether each x lies in its set: (batch, *input shape) → bool, (batch). Exact; NaN lies in no set."""
        inside = super().contains(x)
        if self._p == math.inf:
            return inside
        given = x.detach().to(self._x.device, torch.float64)
        sure = in_balls(self._offsets(given.unsqueeze(1)), self._norm)
        inside &= self._fixed(given.unsqueeze(1))[:, 0] & ~sure.outside[:, 0]
        for i in (inside & ~sure.inside[:, 0]).nonzero().flatten().tolist():  # where rounding could decide
            inside[i] = all(self._in_ball(i, given[i].flatten().cpu(), ball) for ball in self._members())
        return inside

    def project(self, x: Tensor) -> Tensor:
        """Points of the sets near x, (batch, k, *input shape) both, float64; points inside by more than rounding stay.

        Without a clip and with one radius for all numbers it is the Euclidean projection. Else x is first clamped to
        clip, and then projected where the ball is round: in (x − centre) / eps. All numbers move towards the centre.
        """
        if self._p == math.inf:
            return super().project(x)
        given = x.detach().to(self._x.device, torch.float64)
        centre, eps = self._x.unsqueeze(1), self._eps.unsqueeze(1)
        given = torch.where(given.isnan(), centre, given)
        if self._clip is not None:
            given = given.clamp(*self._clip)
        z = self._offsets(given)
        stays = in_balls(z, self._norm).inside & self._fixed(given)
        found = moved(centre, eps * self._by_number(onto_ball(z, self._norm), given.shape))
        found = torch.minimum(torch.maximum(found, self._lower.unsqueeze(1)), self._upper.unsqueeze(1))
        # Where not even that is inside beyond doubt, eps is so small that offsets are no normal floats.
        reached = in_balls(self._offsets(found), self._norm).inside & self._fixed(found)
        found = torch.where(_beside(reached, found), found, centre)
        return torch.where(_beside(stays, found), given, found)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Random points (batch, count, *input shape): uniform in the balls, and at odd places on their rims.

        Those are vertices for p = 1. What clip cuts off is projected.
        """
        if self._p == math.inf:
            return super().sample(count, generator)
        members = self._members()
        z = random_offsets((count, *members.shape), self._norm, generator).to(self._x.device)
        shape = (1, count, *self._x.shape[1:])
        return self.project(self._x.unsqueeze(1) + self._eps.unsqueeze(1) * self._by_number(z.unsqueeze(0), shape))

    def step(self, x: Tensor, gradient: Tensor, share: float) -> Tensor:
        """One step from points x (batch, k, *input shape) of the sets that lowers a function with this gradient.

        p = 2: against the gradient of every ball, by `share` of its radius. p = 1: `share` of the way to the vertex (or
        corner of ball and clip) at which the linear function is least. Balls with gradient 0 stay.
        """
        if self._p == math.inf:
            return super().step(x, gradient, share)
        x, slope = (y.detach().to(self._x.device, torch.float64) for y in (x, gradient))
        slope = slope.nan_to_num(nan=0.0)
        if self._norm is Norm.L2:
            eps = self._by_ball(self._eps.unsqueeze(1))
            most = eps.amax(-1, keepdim=True)
            ratio = torch.where(most > 0, eps / torch.where(most > 0, most, torch.ones_like(most)), eps)
            way = directions(directions(self._by_ball(slope)) * ratio)
            return self.project(x - share * self._eps.unsqueeze(1) * self._by_number(way, x.shape))
        goal = self.region(self.shape[1:], torch.float64, self._x.device).minimise(slope)[1]
        still = (self._by_ball(slope) == 0).all(-1, keepdim=True).expand(*x.shape[:2], *self._members().shape)
        goal = torch.where(self._by_number(still, x.shape), x, goal)
        return self.project(x + min(share, 1.0) * (goal - x))

    @property
    def _norm(self) -> Norm:
        return Norm(int(self._p))

    def _by_ball(self, x: Tensor) -> Tensor:
        """Numbers (batch, k, *input shape) by their balls, (batch, k, balls, size)."""
        return x.flatten(2)[..., self._members().to(x.device)]

    def _by_number(self, z: Tensor, shape: Sequence[int]) -> Tensor:
        """Numbers by their balls, (..., balls, size), in the order of inputs: of a shape (batch, k, *input shape)."""
        return z.flatten(2).reshape(*z.shape[:2], *shape[2:])  # the members of the balls are in order

    def _offsets(self, x: Tensor) -> Tensor:
        """(x − centre) / eps of points (batch, k, *input shape), by balls; 0 where eps is."""
        eps = self._eps.unsqueeze(1)
        away = (x - self._x.unsqueeze(1)) / torch.where(eps > 0, eps, torch.ones_like(eps))
        return self._by_ball(torch.where(eps > 0, away, torch.zeros_like(away)))

    def _fixed(self, x: Tensor) -> Tensor:
        """Whether the numbers of points (batch, k, *input shape) whose radius is 0 are the centre's, (batch, k)."""
        return ((self._eps.unsqueeze(1) > 0) | (x == self._x.unsqueeze(1))).flatten(2).all(2)

    def _in_ball(self, i: int, x: Tensor, ball: Tensor) -> bool:
        """Whether the numbers of a ball are in it, in rational arithmetic."""
        total, power = Fraction(0), int(self._p)
        rows = zip(*(y.flatten()[ball].tolist() for y in (x, self._x[i], self._eps[i])), strict=True)
        for value, centre, radius in rows:
            off = abs(Fraction(value) - Fraction(centre))
            if off and not radius:
                return False
            total += (off / Fraction(radius)) ** power if off else 0
        return total <= 1

    def _summary(self) -> str:
        clip = "" if self.clip is None else f", clip {self.clip[0]:g} … {self.clip[1]:g}"
        order = "inf" if self._p == math.inf else f"{self._p:g}"
        return f"p {order}, eps {range_text(self._eps)}{clip}{', per token' if self._per_token else ''}"


def _beside(mask: Tensor, x: Tensor) -> Tensor:
    """A mask (batch, k) that broadcasts with points x (batch, k, *input shape)."""
    return mask.reshape(*mask.shape, *[1] * (x.dim() - 2))


def order_of(p: object) -> float:
    """The order of a norm as a number; an error if it is none that is supported."""
    if isinstance(p, str) and p.strip().lower() in ("inf", "∞"):
        return math.inf
    if isinstance(p, bool) or not isinstance(p, numbers.Real):
        raise InvalidTypeError(f"p is {p!r}; pass 1, 2 or math.inf")
    if float(p) not in (1.0, 2.0, math.inf):
        raise InvalidValueError(f"p is {p!r}; the norms are p = 1, 2 and inf")
    return float(p)


def _distance(moved: Tensor, eps: Tensor, p: float, members: Tensor) -> Tensor:
    """|moved / eps|_p of each ball at most, as numbers of the shape of `moved`; 0 where eps is."""
    share = torch.where(eps > 0, moved / torch.where(eps > 0, eps, torch.ones_like(eps)), torch.zeros_like(moved))
    by_ball = share.flatten(1)[:, members]
    size = by_ball.sum(-1) if p == 1 else by_ball.square().sum(-1).sqrt()
    size = size * (1 + MORE)
    found = torch.empty_like(share.flatten(1))
    found[:, members.flatten()] = size.unsqueeze(-1).expand_as(by_ball).flatten(1)
    return found.reshape(moved.shape)
