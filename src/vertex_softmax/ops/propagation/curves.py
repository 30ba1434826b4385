"""A zonotope through a function of one number.

To first order: the slope of its band, and an unknown of its own for each number. To second order, with |x'| ≤ h:
  f(c + x') = f + f' x' + f'' x'²/2 + f''' x'³/6 + e,  |e| ≤ F h⁴/24,  F a bound of |f''''|,
where x'³ is ¾h² x' to within h³/4 (a Chebyshev polynomial). Of x'² what is linear in the input on both sides is kept
(second_order.py), and the rest is a sum of elementwise products, which a row of many numbers has as one ellipsoid
(products.py). A row takes whichever has less error: the band is better where h is large.
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
from vertex_softmax.ops.zonotope import Unknowns, Zonotope


@dataclasses.dataclass(frozen=True, eq=False)
class Derivatives:
    """f and its first three derivatives at some numbers, and a bound of the fourth everywhere."""

    value: Tensor
    first: Tensor
    second: Tensor
    third: Tensor
    fourth: float


def bent(x: Zonotope, band: Band) -> Zonotope:
    """slope·x + middle ± half, (batch, *shape)."""
    slope = band.slope
    blocks = {unknowns: columns * slope[:, None, None] for unknowns, columns in x.blocks.items()}
    own = band.half + slope.abs() * x.loose
    found = Zonotope(slope * x.centre + band.middle, blocks, own, torch.zeros_like(own))
    return rounded(found, slope.abs() * (x.centre.abs() + x.rough_radius) + band.middle.abs() + band.half)


def bent_to_second_order(x: Zonotope, box: Interval, band: Band, at: Derivatives, origin: str) -> Zonotope:
    """The same with products of inputs, in the rows (batch, rows..., d) where that has less error."""
    inputs, first = x.inputs, bent(x, band)
    if inputs is None or x.centre.dim() < 3:
        return first
    away = torch.maximum(box.upper - x.centre, x.centre - box.lower)
    h = torch.minimum(x.tight_radius, away).clamp(min=0)
    half = at.second / 2
    slope = at.first + at.third * h.square() / 8
    own, balls = product_errors([(x.linear, x.rest), (x.rest, x)], origin, half)
    own = own + at.third.abs() * h**3 / 24 + at.fourth * h**4 / 24
    blocks: dict[Unknowns, Tensor] = {u: columns * slope[:, None, None] for u, columns in x.blocks.items()}
    length = torch.zeros_like(own[..., 0])
    if balls is not None:
        blocks[balls[0]] = balls[1]
        length = balls[1].square().sum((2, -1)).sqrt().sum(1)
    found = Zonotope(at.value, blocks, own + slope.abs() * x.loose, torch.zeros_like(own))
    pair, square = pairs.outer(linear_columns(x, inputs), linear_columns(x, inputs))
    found = with_products(found, inputs, (half[:, None] * pair, half[:, None] * square))
    size = slope.abs() * x.rough_radius + half.abs() * x.rough_radius.square()
    found = rounded(found, at.value.abs() + found.rough_radius + size)
    share = math.sqrt(2 / math.pi)  # of the mean over directions, as for products
    better = length + share * own.sum(-1) < share * band.half.sum(-1)
    usable = torch.stack([part.isfinite() for part in (at.value, at.first, at.second, at.third, own)]).all(0).all(-1)
    return chosen((better & usable).unsqueeze(-1), found, first)
