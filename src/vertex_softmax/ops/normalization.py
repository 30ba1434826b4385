"""Normalisation, y / σ(y) with σ = √(mean y² + eps), as one op: LayerNorm is centring (linear), this, scale and shift.

An objective η·(y/σ) is the product of two numbers, w = η·y and ρ = 1/σ: one McCormick plane at the centre, then linear
bounds of ρ in y by the sign of its coefficient:
- below: the tangent of x^{−1/2} at σ₀², with σ² ≤ mean of the chords of y_i² (+ eps);
- above: the chord of 1/σ over [σ_l, σ_u], with σ ≥ its tangent plane at the centre (a norm is convex).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops.registry import Interval, Op, Place, Shape, Step, beside, register


class Norm(NamedTuple):
    """Over rows of d numbers, (batch, 1, rows, ...)."""

    box: Interval
    """y, (batch, 1, rows, d)"""
    inverse: Interval
    """ρ, (batch, 1, rows)"""
    low_slope: Tensor
    """ρ ≥ low_slope·y + low, (batch, 1, rows, d)"""
    low: Tensor
    high_slope: Tensor
    """ρ ≤ high_slope·y + high"""
    high: Tensor


@register
@dataclasses.dataclass(frozen=True)
class Normalize(Op):
    """y / √(mean of y² over the last `count` dimensions + eps)."""

    eps: float
    count: int = 1

    def _rows(self, x: Tensor) -> Tensor:
        return x.flatten(x.dim() - self.count)

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., d) → (..., d)"""
        dims = list(range(-self.count, 0))
        return xs[0] / (xs[0].square().mean(dims, keepdim=True) + self.eps).sqrt()

    def _sigma(self, box: Interval) -> Interval:
        """The range of σ over rows of boxes (..., d)."""
        a, b = box.lower.square(), box.upper.square()
        across = (box.lower < 0) & (box.upper > 0)
        least = torch.where(across, torch.zeros_like(a), torch.minimum(a, b)).mean(-1) + self.eps
        most = torch.maximum(a, b).mean(-1) + self.eps
        # σ(y) ≥ (y₀·y / d + eps) / σ(y₀): the tangent plane at the centre, at its least
        centre = box.centre
        middle = (centre.square().mean(-1) + self.eps).sqrt()
        plane = ((centre.square() - centre.abs() * box.radius).mean(-1) + self.eps) / middle
        low = torch.where(plane > 0, torch.maximum(plane, least.sqrt()), least.sqrt())
        return Interval(torch.where(plane.isnan(), plane, low), most.sqrt())

    def interval(self, *boxes: Interval) -> Interval:
        """y_i / σ is increasing in y_i, and moves towards 0 as the other y_j² grow."""
        lower, upper = (self._rows(x) for x in boxes[0])
        a, b = lower.square(), upper.square()
        across = (lower < 0) & (upper > 0)
        least = torch.where(across, torch.zeros_like(a), torch.minimum(a, b))
        most = torch.maximum(a, b)
        d = lower.shape[-1]
        eye = torch.eye(d, dtype=lower.dtype, device=lower.device)
        others = 1 - eye  # sums over the others are summed, not subtracted
        small, large = least @ others, most @ others

        def value(y: Tensor, rest: Tensor) -> Tensor:
            return y / ((y.square() + rest) / d + self.eps).sqrt()

        high = value(upper, torch.where(upper >= 0, small, large))
        low = value(lower, torch.where(lower >= 0, large, small))
        # without eps, y / σ is not defined at y = 0: no bound over a box that holds it
        undefined = (least.sum(-1, keepdim=True) + self.eps <= 0).expand_as(low)
        low, high = (x.masked_fill(undefined, torch.nan) for x in (low, high))
        shape = boxes[0].lower.shape
        return Interval(low.reshape(shape), high.reshape(shape))

    def needs(self) -> tuple[int, ...]:
        """y."""
        return (0,)

    def relax(self, place: Place) -> Norm:
        """The bounds of ρ."""
        box = Interval(*(self._rows(x) for x in place.boxes[0]))
        d = box.lower.shape[-1]
        sigma = self._sigma(box)
        lower, upper = box
        squares = ((lower + upper) * box.centre - lower * upper).mean(-1) + self.eps  # the chords at the centre
        root = squares.sqrt()
        cubed = (2 * root * squares).unsqueeze(-1)
        low_slope = -(lower + upper) / (d * cubed)
        low = 1.5 / root - (self.eps - (lower * upper).mean(-1)) / (2 * root * squares)
        centre = box.centre
        middle = (centre.square().mean(-1) + self.eps).sqrt()
        product = sigma.lower * sigma.upper
        high_slope = -centre / (d * middle * product).unsqueeze(-1)
        high = (sigma.lower + sigma.upper - self.eps / middle) / product
        inverse = Interval(1 / sigma.upper, 1 / sigma.lower)
        parts = (low_slope, low, high_slope, high)
        return Norm(Interval(*map(beside, box)), Interval(*map(beside, inverse)), *map(beside, parts))

    def backward(self, A: Tensor, relaxed: Any, keep: int | None = None) -> Step:
        """ρ_c A, and w_c times a bound of ρ; one error w_r ρ_r per row."""
        norm: Norm = relaxed
        eta = self._rows(A)  # (batch, S, rows..., d)
        w = (eta * norm.box.centre).sum(-1)
        w_radius = (eta.abs() * norm.box.radius).sum(-1)
        rho, rho_radius = norm.inverse.centre, norm.inverse.radius
        up = (w >= 0).unsqueeze(-1)
        slope = torch.where(up, norm.low_slope, norm.high_slope)
        bound = torch.where(w >= 0, norm.low, norm.high)
        back = rho.unsqueeze(-1) * eta + w.unsqueeze(-1) * slope
        constant = w * bound - w * rho - w_radius * rho_radius
        dims = [2 + i for i in range(constant.dim() - 2) if i != keep]
        return Step((back.reshape(A.shape),), constant.sum(dims) if dims else constant)

    def carries(self, keep: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Every dimension that is not normalised."""
        return (keep,) if keep < len(shape) - self.count else None
