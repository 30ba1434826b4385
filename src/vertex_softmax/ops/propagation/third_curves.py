"""Zonotopes through smooth functions of one number, to third order in the input's unknowns (third_order.py).

Invariant: the zonotope returned contains f(x) for every x of the given one with |x'| ≤ h, rounding included.

With x' = ℓ + q + s and r = q + s, by Taylor's polynomial with a bound F of |f''''|,
  f(c + x') = f + f' x' + f'' x'²/2 + f''' x'³/6 ± F h⁴/24,
  x'² = ℓ² + 2ℓq + (ℓ s + s x' + q r),
  x'³ = ℓ³ + m r,  m = x'² + x' ℓ + ℓ² between 0 and M = h² + h|ℓ| + |ℓ|².
ℓ², ℓ q and ℓ³ are kept; m r is replaced by M/2 · r, with an error of at most M/2 · |r|.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vertex_softmax.ops import triples
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.propagation.curves import Derivatives
from vertex_softmax.ops.propagation.products import product_errors
from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.propagation.second_order import chosen, linear_columns
from vertex_softmax.ops.propagation.third_order import errors_of_rows, quadratic_columns, with_cubic, with_quadratic
from vertex_softmax.ops.unknowns import InputUnknowns, Unknowns
from vertex_softmax.ops.zonotope import Zonotope

Differentiate = Callable[[Tensor], Derivatives | None]
"""The values and derivatives of a function at some numbers; None if it is not smooth."""


def bent_by_best(x: Zonotope, of: Differentiate, box: Interval, other: Zonotope, origin: str) -> Zonotope:
    """f(x) for x in a box: to third order in the rows in which that has smaller errors, and `other` elsewhere."""
    inputs = x.inputs
    if inputs is None or inputs.triples is None or x.centre.dim() < 3:
        return other
    at = of(x.centre)
    if at is None:
        return other
    away = torch.maximum(box.upper - x.centre, x.centre - box.lower).clamp(min=0)
    found = bent_to_third_order(x, at, torch.minimum(x.tightest_radius, away), inputs, origin)
    better = errors_of_rows(found) < errors_of_rows(other)
    return chosen(better.unsqueeze(-1), found, other)


def bent_to_third_order(x: Zonotope, at: Derivatives, h: Tensor, inputs: InputUnknowns, origin: str) -> Zonotope:
    """f(x) for |x'| ≤ h, to third order."""
    line, rest = x.linear.radius, x.rest.tightest_radius
    most = h.square() + h * line + line.square()  # M
    bow, third = at.second / 2, at.third / 6
    own, balls = product_errors([(x.linear, x.third), (x.third, x), (x.quadratic, x.rest)], origin, bow)
    own = own + third.abs() * most / 2 * rest + at.fourth * h**4 / 24
    slope = at.first + third * most / 2  # of r
    blocks: dict[Unknowns, Tensor] = {
        u: columns * (at.first if u is inputs else slope)[:, None, None] for u, columns in x.blocks.items()
    }
    if balls is not None:
        blocks[balls[0]] = balls[1]
    found = Zonotope(at.value, blocks, own + slope.abs() * x.loose, torch.zeros_like(own))
    of_x, form = linear_columns(x, inputs), quadratic_columns(x, inputs)
    constant, square = triples.squared(of_x, of_x)
    found = with_quadratic(found, inputs, bow * constant, bow[:, None] * square)
    cubic = triples.times(of_x, at.second[:, None] * form + third[:, None] * square)
    line = cubic.line + (third * constant)[:, None] * of_x
    found = with_cubic(found, inputs, triples.Cubic(line, cubic.products))
    reach = x.centre.abs() + x.rough_radius
    size = at.value.abs() + (1 + slope.abs() + at.first.abs()) * reach
    size = size + bow.abs() * reach.square() + third.abs() * reach**3
    return rounded(found, size + found.rough_radius)
