"""Zonotopes through a function of one number, applied to each number of a node.

Invariant: the zonotope returned contains f(x) for every x of the given zonotope that lies in the box.

To first order: a line with the slope of a band, and for each number an unknown of its own as wide as the band. To
second order: a parabola,
  f(c + x') = value + slope·x' + curvature·x'² ± error   for all c + x' in a box.
Of x'² the product of the parts that are linear in the input is kept exactly (second_order.py). The rest is a sum of
elementwise products, which for a row of many numbers is bounded by one ellipsoid (products.py). Each row takes
whichever order has less error; the band is better where the rest is large.

Smooth functions use Taylor's polynomial f + f' x' + f'' x'²/2 + f''' x'³/6 + e for |x'| ≤ h, where |e| ≤ F h⁴/24 for a
bound F of |f''''|, and x'³ is ¾h² x' to within h³/4 (a Chebyshev polynomial). ReLU has parabolas of its own, see below.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.ops import pairs
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.lines import Band
from vertex_softmax.ops.propagation.products import product_errors
from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.propagation.second_order import chosen, linear_columns, with_products
from vertex_softmax.ops.unknowns import Unknowns
from vertex_softmax.ops.zonotope import Zonotope


@dataclasses.dataclass(frozen=True, eq=False)
class Derivatives:
    """f and its first three derivatives at some numbers, and a bound of the fourth everywhere."""

    value: Tensor
    first: Tensor
    second: Tensor
    third: Tensor
    fourth: float


@dataclasses.dataclass(frozen=True, eq=False)
class Parabola:
    """f(c + x') = value + slope·x' + curvature·x'² ± error for all c + x' in a box, (batch, *shape)."""

    value: Tensor
    slope: Tensor
    curvature: Tensor
    error: Tensor

    @property
    def finite(self) -> Tensor:
        """The numbers at which all four are finite."""
        return torch.stack([x.isfinite() for x in (self.value, self.slope, self.curvature, self.error)]).all(0)


def taylor(at: Derivatives, h: Tensor) -> Parabola:
    """The parabola of a smooth function for |x'| ≤ h."""
    return Parabola(
        value=at.value,
        slope=at.first + at.third * h.square() / 8,
        curvature=at.second / 2,
        error=at.third.abs() * h**3 / 24 + at.fourth * h**4 / 24,
    )


CURVATURES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The parabolas tried for a ReLU, as shares of the way from the best line to the best parabola."""
SHARE_OF_MIXED = 0.5
"""The part of x'² that is not kept is expected to cost this share of its size: over a row it adds up with both
signs."""


def relu_parabola(c: Tensor, box: Interval, mixed: Tensor) -> Parabola:
    """The parabola of max(x, 0) = (x + |x|) / 2 about c, over a box (batch, *shape).

    On [l, u], l < 0 < u, R(x) = |x| − g x² − b x with g ≥ 0 is concave on both sides of 0. So its least value is at 0
    or at an end, and its largest value on each side is at the turning point or where the side ends; every g and b are
    sound. The best ones: with M = max(−l, u) and m = min(−l, u), R is 0 at the far end, and if m < M/2, R at the near
    end is as large as at the far side's turning point. The error of |x| is at most M/8; on a symmetric interval it is a
    quarter of the error of a line. `mixed`: how large the part of x'² is that becomes an error. The larger it is, the
    less curvature is best.
    """
    lower, upper = box
    undecided = (lower < 0) & (upper > 0)
    low, up = (torch.where(undecided, end, torch.full_like(end, sign)) for end, sign in ((lower, -1.0), (upper, 1.0)))
    far, near = torch.maximum(-low, up), torch.minimum(-low, up)
    bowed = torch.where(2 * near < far, 2 * near / (far * far / 4 + near * (far + near)), 1 / far)
    tilted = torch.where(up >= -low, 1 - bowed * far, bowed * far - 1)
    shares = torch.tensor(CURVATURES, dtype=c.dtype, device=c.device).reshape(-1, *[1] * c.dim())
    g, b = shares * bowed, (1 - shares) * ((up + low) / (up - low)) + shares * tilted  # (shares, batch, *shape)
    ends = [x.abs() - g * x * x - b * x for x in (low, up)]
    tops = []
    for slope, length in ((1 - b, up), (1 + b, -low)):  # R = slope·|x| − g x² for |x| ≤ length, right, left of 0
        turn = torch.where(g > 0, slope / torch.where(g > 0, 2 * g, torch.ones_like(g)), length)
        turn = torch.minimum(turn.clamp(min=0), length)
        tops.append(turn * slope - g * turn * turn)
    zero = torch.zeros_like(g)
    most, least = torch.stack([zero, *ends, *tops]).amax(0), torch.stack([zero, *ends]).amin(0)
    half = (most - least) / 2
    cost = half + SHARE_OF_MIXED * torch.where(g > 0, g * mixed, zero)
    best = cost.nan_to_num(torch.inf).argmin(0, keepdim=True)
    g, b, middle, half = (x.gather(0, best).squeeze(0) for x in (g, b, (most + least) / 2, half))
    nan = lower + upper  # NaN where there is no box
    sure = torch.where(lower >= 0, 1.0, torch.where(upper <= 0, torch.zeros_like(c), nan))
    return Parabola(
        value=torch.where(undecided, (c + g * c * c + b * c + middle) / 2, sure * c),
        slope=torch.where(undecided, (1 + 2 * g * c + b) / 2, sure),
        curvature=torch.where(undecided, g / 2, torch.zeros_like(c)),
        error=torch.where(undecided, half / 2, torch.zeros_like(c)),
    )


def bent(x: Zonotope, band: Band) -> Zonotope:
    """The zonotope of slope·x + middle ± half, (batch, *shape)."""
    slope = band.slope
    own = band.half + slope.abs() * x.loose
    blocks, reaches = x.scaled_blocks(slope)
    found = Zonotope(slope * x.centre + band.middle, blocks, own, torch.zeros_like(own), reaches)
    return rounded(found, slope.abs() * (x.centre.abs() + x.rough_radius) + band.middle.abs() + band.half)


def bent_to_second_order(x: Zonotope, band: Band, parabola: Parabola, origin: str) -> Zonotope:
    """The parabola, with products of inputs, in rows (batch, rows..., d) where it has less error; the band in all
    others.
    """
    inputs, first = x.inputs, bent(x, band)
    if inputs is None or x.centre.dim() < 3:
        return first
    half, slope = parabola.curvature, parabola.slope
    own, balls = product_errors([(x.linear, x.rest), (x.rest, x)], origin, half)
    own = own + parabola.error
    blocks: dict[Unknowns, Tensor] = {u: columns * slope[:, None, None] for u, columns in x.blocks.items()}
    length = torch.zeros_like(own[..., 0])
    if balls is not None:
        blocks[balls[0]] = balls[1]
        length = balls[1].square().sum((2, -1)).sqrt().sum(1)
    found = Zonotope(parabola.value, blocks, own + slope.abs() * x.loose, torch.zeros_like(own))
    pair, square = pairs.outer(linear_columns(x, inputs), linear_columns(x, inputs))
    found = with_products(found, inputs, (half[:, None] * pair, half[:, None] * square))
    reach = x.centre.abs() + x.rough_radius
    size = (1 + slope.abs()) * reach + half.abs() * reach.square()
    found = rounded(found, parabola.value.abs() + found.rough_radius + size)
    share = math.sqrt(2 / math.pi)  # the mean over directions, as in product_errors
    better = length + share * own.sum(-1) < share * band.half.sum(-1)
    usable = (parabola.finite & own.isfinite()).all(-1)
    return chosen((better & usable).unsqueeze(-1), found, first)


def bent_by_parabola(x: Zonotope, band: Band, parabola: Parabola | None, origin: str) -> Zonotope:
    """The image to second order if a parabola is known, else by the band."""
    return bent(x, band) if parabola is None else bent_to_second_order(x, band, parabola, origin)
