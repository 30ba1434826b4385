"""Normalisation, y / σ(y) with σ = √(mean y² + eps), as one op; LayerNorm also centres, scales and shifts.

Invariant: for all rows in their boxes, η·(y/σ) is at least the linear bound, for every σ₀ > 0.

An objective η·(y/σ) is the product of two numbers, w = η·y and ρ = 1/σ. It is bounded by one McCormick plane at a
centre c, and then by a linear bound of ρ in y, from below or above according to the sign of its coefficient:
- below: the tangent of x^{−1/2} at σ₀², for any σ₀ > 0, with a linear upper bound of σ²: the chords of y_i², or σ(c)² +
  2 c·(y − c)/d + R²/d where |y − c| ≤ R;
- above: the chord of 1/σ over [σ_l, σ_u], with σ at least its tangent plane at c (a norm is convex).

If y has generators, w, c·y and R are bounded as functionals by its ellipsoid, otherwise by its box.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from vertex_softmax.ops.contract import (
    Context,
    InnerLoss,
    InnerRange,
    Propagating,
    Range,
    Relaxation,
    Shape,
    Step,
    Summarising,
)
from vertex_softmax.ops.generators import Ellipsoid, Generators, ellipsoid, functional_radius, most_eigenvalue
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.propagation.third_norms import normalized_by_best
from vertex_softmax.ops.registry import register
from vertex_softmax.ops.tensors import beside
from vertex_softmax.ops.zonotope import Zonotope


@dataclasses.dataclass(frozen=True, eq=False)
class NormSummary:
    """What the relaxation of a normalisation needs of the generators of its rows."""

    ellipsoid: Ellipsoid
    along: Tensor
    """(batch, rows...): an upper bound of |c·(y − c)|"""
    far: Tensor
    """(batch, rows...): an upper bound of |y − c|²"""


@dataclasses.dataclass(frozen=True, eq=False)
class KnownRows:
    """What is known of rows y of d numbers, (batch, rows..., d)."""

    box: Interval
    centre: Tensor
    """c: the centre of the box, or that of the generators"""
    reach: Tensor
    """how far the box extends from c"""
    along: Tensor
    """(batch, rows...): an upper bound of |c·(y − c)|"""
    far: Tensor
    """(batch, rows...): an upper bound of |y − c|²"""
    shape: Ellipsoid | None


@dataclasses.dataclass(frozen=True, eq=False)
class NormRelaxation(InnerLoss):
    """Linear bounds of ρ = 1/σ over rows of d numbers, (batch, 1, rows, ...), and data for the product with w = η·y."""

    count: int
    """how many last dimensions are normalised together"""
    centre: Tensor
    """c, (batch, 1, rows, d)"""
    reach: Tensor
    """how far the box extends from c, (batch, 1, rows, d)"""
    shape: Ellipsoid | None
    """the ellipsoids of y, without the dimension of the objectives"""
    inverse: Interval
    """the range of ρ, (batch, 1, rows)"""
    square_slope: Tensor
    """σ² ≤ square_slope·y + square, (batch, 1, rows, d)"""
    square: Tensor
    touch: Tensor
    """σ₀, where the tangent of x^{−1/2} touches"""
    high_slope: Tensor
    """ρ ≤ high_slope·y + high"""
    high: Tensor
    along: Tensor
    """an upper bound of |c·(y − c)|"""
    sums: bool
    """whether w is bounded by exact sums over the generators"""
    radial: Tensor
    """the rows in which the slopes of both bounds of ρ are multiples of c"""
    parallel: bool

    ranges: ClassVar[Mapping[str, Range]] = {"touch": Range(-3.0, 3.0, 0.25)}

    def below(self) -> tuple[Tensor, Tensor]:
        """ρ ≥ slope·y + constant: (3 − σ²/σ₀²) / 2σ₀, divided step by step, as σ₀³ overflows long before σ₀² does."""
        touch = self.touch.unsqueeze(-1)
        return -(self.square_slope / touch / touch) / (2 * touch), (3 - self.square / self.touch / self.touch) / (
            2 * self.touch
        )

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """ρ_c A, plus w_c times a linear bound of ρ, minus one error w_r ρ_r for each row."""
        eta = A.flatten(A.dim() - self.count)  # (batch, S, rows..., d)
        w = (eta * self.centre).sum(-1)
        w_radius = (eta.abs() * self.reach).sum(-1)
        if self.shape is not None:
            round_ = functional_radius(eta.unsqueeze(-2), self.shape, self.sums).squeeze(-1).squeeze(-1)
            w_radius = torch.where(round_ < w_radius, round_, w_radius)  # also where it is NaN
        rho, rho_radius = self.inverse.centre, self.inverse.radius
        low_slope, low = self.below()
        both = w_radius * rho_radius
        error = None
        if self.parallel:
            slope, bound, half = self._band(low_slope, low)
            constant, error = w * bound - w * rho, w.abs() * half + both
        else:
            slope = torch.where((w >= 0).unsqueeze(-1), low_slope, self.high_slope)
            bound = torch.where(w >= 0, low, self.high)
            constant = w * bound - w * rho - both
        back = rho.unsqueeze(-1) * eta + w.unsqueeze(-1) * slope
        dims = [2 + i for i in range(constant.dim() - 2) if i != diagonal]
        sums = [None if x is None else x.sum(dims) if dims else x for x in (constant, error)]
        return Step((back.reshape(A.shape),), sums[0], error=sums[1])

    def inner_loss(self, A: Tensor) -> Tensor:
        """How much the product of w and ρ, and the chord of 1/σ, may lose."""
        eta = A.flatten(A.dim() - self.count)
        w, w_radius = (eta * self.centre).sum(-1), (eta.abs() * self.reach).sum(-1)
        if self.shape is not None:
            round_ = functional_radius(eta.unsqueeze(-2), self.shape).squeeze(-1).squeeze(-1)
            w_radius = torch.minimum(round_, w_radius)
        return self.inverse.radius * (w_radius + w.abs() * self.inverse.radius / self.inverse.centre)

    def _band(self, low_slope: Tensor, low: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The band ρ = slope·y + middle ± half: it has the slope of the upper bound, and the lower bound is moved to
        it.
        """
        slope = self.high_slope
        off = low_slope - slope
        centre = (off * self.centre).sum(-1)
        apart = (off.abs() * self.reach).sum(-1)
        length = self.centre.square().sum(-1)
        known = self.radial & (length > 0)
        times = centre.abs() / torch.where(known, length, torch.ones_like(length))  # |off| = times · |c|
        apart = torch.where(known, torch.minimum(apart, times * self.along), apart)
        least = centre - apart + low
        return slope, (least + self.high) / 2, (self.high - least) / 2

    def parameters(self) -> dict[str, Tensor]:
        """The logarithm of a factor of σ₀."""
        return {"touch": torch.zeros_like(self.touch)}

    def with_parameters(self, values: Mapping[str, Tensor]) -> NormRelaxation:
        """The same relaxation with tangents at other σ₀."""
        return dataclasses.replace(self, touch=self.touch * values["touch"].exp())

    def chosen_values(self, A: Tensor) -> dict[str, Tensor]:
        """The values of σ₀, (batch, S, rows...)."""
        return {"touch": self.touch.expand(A.shape[0], A.shape[1], *self.touch.shape[2:])}


@register
@dataclasses.dataclass(frozen=True)
class Normalize(Summarising, Propagating, InnerRange):
    """y / √(mean of y² over the last `count` dimensions + eps)."""

    eps: float
    count: int = 1

    reads = (0,)
    generator_inputs = (0,)
    has_parallel_rule = True

    def _rows(self, x: Tensor) -> Tensor:
        return x.flatten(x.dim() - self.count)

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., d) → (..., d)"""
        dims = list(range(-self.count, 0))
        return xs[0] / (xs[0].square().mean(dims, keepdim=True) + self.eps).sqrt()

    def _row_zonotope(self, y: Zonotope) -> Zonotope:
        """The zonotope with a single dimension for each row; y itself, with its caches, if it has that already."""
        return y if self.count == 1 else y.rearranged(self._rows)

    def propagate(self, inputs: tuple[Zonotope, ...], boxes: tuple[Interval, ...], origin: str) -> Zonotope:
        """The zonotope of the normalised rows (ops/propagation/norms.py)."""
        shape = inputs[0].centre.shape[1:]
        found = normalized_by_best(self._row_zonotope(inputs[0]), self.eps, origin)
        return found.rearranged(lambda x: x.reshape(*x.shape[: x.dim() - len(shape) + self.count - 1], *shape))

    def learnt(self, inputs: tuple[Zonotope, ...]) -> NormSummary:
        """The ellipsoid of the rows, and bounds of |c·(y − c)| and |y − c|²."""
        y = self._row_zonotope(inputs[0])
        shape = y.row_shape
        round_ = Ellipsoid(
            centre=y.centre.unsqueeze(-2), shape=shape.matrix.unsqueeze(-3), size=shape.size.unsqueeze(-1), rows=None
        )
        return NormSummary(round_, y.along_centre, y.farthest)

    def summarise(self, generators: Mapping[int, Generators]) -> NormSummary:
        """The ellipsoid of the rows, and bounds of |c·(y − c)| and |y − c|²."""
        y = generators[0]
        columns = y.columns.flatten(y.columns.dim() - 1 - self.count, -2)  # (batch, rows..., d, P)
        flat = Generators(self._rows(y.centre), columns, self._rows(y.error))
        along = (flat.centre.unsqueeze(-2) @ columns).abs().sum((-2, -1)) + (flat.centre.abs() * flat.error).sum(-1)
        round_ = ellipsoid(Generators(*(x.unsqueeze(-2 if i != 1 else -3) for i, x in enumerate(flat))))
        far = (most_eigenvalue(round_.shape) * round_.size).squeeze(-1)
        return NormSummary(round_, along, far)

    def _known(self, context: Context) -> KnownRows:
        """What is known of the rows: from their box, and from their generators if there are any."""
        box = Interval(*(self._rows(x) for x in context.boxes[0]))
        known = context.summary
        if not isinstance(known, NormSummary):
            centre, reach = box.centre, box.radius
            along, far = (centre.abs() * reach).sum(-1), reach.square().sum(-1)
            return KnownRows(box=box, centre=centre, reach=reach, along=along, far=far, shape=None)
        centre = known.ellipsoid.centre.squeeze(-2)
        reach = torch.maximum(box.upper - centre, centre - box.lower)
        along = torch.minimum(known.along, (centre.abs() * reach).sum(-1))
        far = torch.minimum(known.far, reach.square().sum(-1))
        return KnownRows(box=box, centre=centre, reach=reach, along=along, far=far, shape=known.ellipsoid)

    def _sigma(self, rows: KnownRows) -> Interval:
        """The range of σ."""
        box, d = rows.box, rows.centre.shape[-1]
        a, b = box.lower.square(), box.upper.square()
        across = (box.lower < 0) & (box.upper > 0)
        least = torch.where(across, torch.zeros_like(a), torch.minimum(a, b)).mean(-1) + self.eps
        most = torch.maximum(a, b).mean(-1) + self.eps
        # σ(y) ≥ (c·y / d + eps) / σ(c): the tangent plane at c, at its least
        square = rows.centre.square().mean(-1)
        middle = (square + self.eps).sqrt()
        spare = 16 * torch.finfo(square.dtype).eps * (square + rows.along / d)  # where the two cancel, rounding is left
        plane = (square - rows.along / d + self.eps - spare) / middle
        low = torch.where(plane > 0, torch.maximum(plane, least.sqrt()), least.sqrt())
        high = torch.minimum(most, square + self.eps + (2 * rows.along + rows.far) / d).sqrt()
        return Interval(torch.where(plane.isnan(), plane, low), torch.maximum(low, high))

    def interval(self, *boxes: Interval) -> Interval:
        """The exact range: y_i / σ increases in y_i, and moves towards 0 as the other y_j² grow; at most √d (y_i² may
        overflow).
        """
        lower, upper = (self._rows(x) for x in boxes[0])
        a, b = lower.square(), upper.square()
        across = (lower < 0) & (upper > 0)
        least = torch.where(across, torch.zeros_like(a), torch.minimum(a, b))
        most = torch.maximum(a, b)
        d = lower.shape[-1]
        eye = torch.eye(d, dtype=lower.dtype, device=lower.device)
        others = 1 - eye  # for each number the sum over all others, without subtraction
        finite = torch.finfo(lower.dtype).max
        # a smaller sum of squares only widens the range: each square is clamped so that no sum overflows
        small = least.clamp(max=finite / d) @ others
        large = (most.clamp(max=finite) @ others).masked_fill(most.isinf().any(-1, keepdim=True), torch.inf)

        def value(y: Tensor, rest: Tensor, away: Tensor) -> Tensor:
            total = (y.square() + rest) / d + self.eps
            return torch.where(away & total.isinf(), y.sign() * d**0.5, y / total.sqrt())

        high = value(upper, torch.where(upper >= 0, small, large), upper >= 0)
        low = value(lower, torch.where(lower >= 0, large, small), lower <= 0)
        # without eps, y / σ is not defined at y = 0: no bound over a box that holds it
        undefined = (least.sum(-1, keepdim=True) + self.eps <= 0).expand_as(low)
        low, high = (x.masked_fill(undefined, torch.nan) for x in (low, high))
        shape = boxes[0].lower.shape
        return Interval(low.reshape(shape), high.reshape(shape))

    def relax(self, context: Context) -> Relaxation:
        """The linear bounds of ρ."""
        rows = self._known(context)
        d = rows.centre.shape[-1]
        sigma = self._sigma(rows) if context.inner is None else self._sigma(rows).meet(context.inner)
        (lower, upper), c = rows.box, rows.centre
        mean = c.square().mean(-1)
        # σ² from above: chords of y_i², or about c with |y − c|²; whichever is less at c
        chords = (lower + upper) / d, self.eps - (lower * upper).mean(-1)
        about = 2 * c / d, self.eps - mean + rows.far / d
        better = (about[0] * c).sum(-1) + about[1] < (chords[0] * c).sum(-1) + chords[1]
        slope = torch.where(better.unsqueeze(-1), about[0], chords[0])
        square = torch.where(better, about[1], chords[1])
        # σ₀ may be any number > 0; c may lie outside a box that was made tighter since
        inside = torch.maximum(torch.minimum(c, upper), lower)
        touch = torch.maximum((slope * inside).sum(-1) + square, sigma.lower.square()).sqrt()
        middle = (mean + self.eps).sqrt()
        product = sigma.lower * sigma.upper
        high_slope = -c / (d * middle).unsqueeze(-1) / product.unsqueeze(-1)
        high = (sigma.lower + sigma.upper - self.eps / middle) / product
        return NormRelaxation(
            count=self.count,
            centre=beside(c),
            reach=beside(rows.reach),
            shape=rows.shape,
            inverse=Interval(beside(1 / sigma.upper), beside(1 / sigma.lower)),
            square_slope=beside(slope),
            square=beside(square),
            touch=beside(touch),
            high_slope=beside(high_slope),
            high=beside(high),
            along=beside(rows.along),
            sums=context.rules.sums,
            radial=beside(better),
            parallel=context.rules.parallel,
        )

    def inner_range(self, context: Context) -> Interval:
        """The range of σ, (batch, rows...)."""
        return self._sigma(self._known(context))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension that is not normalised."""
        return (dimension,) if dimension < len(shape) - self.count else None
