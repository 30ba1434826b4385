"""Normalisation, y / σ(y) with σ = √(mean y² + eps), as one op: LayerNorm is centring (linear), this, scale and shift.

An objective η·(y/σ) is the product of two numbers, w = η·y and ρ = 1/σ: one McCormick plane at a centre c, then linear
bounds of ρ in y by the sign of its coefficient:
- below: the tangent of x^{−1/2} at σ₀², any σ₀ > 0, with a linear bound of σ² from above: the chords of y_i², or
  σ(c)² + 2 c·(y − c)/d + R²/d where |y − c| ≤ R;
- above: the chord of 1/σ over [σ_l, σ_u], with σ ≥ its tangent plane at c (a norm is convex).
Where y has generators, w, c·y and R are bounded as functionals by its ellipsoid, else by its box.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops.generators import Ellipsoid, Generators, ellipsoid, functional_radius, most_eigenvalue
from vertex_softmax.ops.registry import Interval, Op, Place, Range, Shape, Step, beside, register


class Rows(NamedTuple):
    """What is known of rows y of d numbers, (batch, rows..., d)."""

    box: Interval
    centre: Tensor
    """c: the box's, or that of the generators"""
    reach: Tensor
    """how far the box goes from c"""
    along: Tensor
    """(batch, rows...): |c·(y − c)| at most"""
    far: Tensor
    """(batch, rows...): |y − c|² at most"""
    shape: Ellipsoid | None


class Norm(NamedTuple):
    """Over rows of d numbers, (batch, 1, rows, ...)."""

    centre: Tensor
    """c, (batch, 1, rows, d)"""
    reach: Tensor
    shape: Ellipsoid | None
    """of y; without the objectives' dimension"""
    inverse: Interval
    """ρ, (batch, 1, rows)"""
    square_slope: Tensor
    """σ² ≤ square_slope·y + square, (batch, 1, rows, d)"""
    square: Tensor
    touch: Tensor
    """σ₀"""
    high_slope: Tensor
    """ρ ≤ high_slope·y + high"""
    high: Tensor
    along: Tensor
    """|c·(y − c)| at most"""
    sums: bool
    """bound w by the exact sums over the generators"""
    radial: Tensor
    """where the slopes of both bounds of ρ are multiples of c"""
    parallel: bool

    def below(self) -> tuple[Tensor, Tensor]:
        """ρ ≥ slope·y + constant: (3 − σ²/σ₀²) / 2σ₀, divided step by step, as σ₀³ overflows long before σ₀² does."""
        touch = self.touch.unsqueeze(-1)
        return -(self.square_slope / touch / touch) / (2 * touch), (3 - self.square / self.touch / self.touch) / (
            2 * self.touch
        )


@register
@dataclasses.dataclass(frozen=True)
class Normalize(Op):
    """y / √(mean of y² over the last `count` dimensions + eps)."""

    eps: float
    count: int = 1

    parallels = True
    ranges: ClassVar[dict[str, Range]] = {"touch": Range(-3.0, 3.0, 0.25)}

    def _rows(self, x: Tensor) -> Tensor:
        return x.flatten(x.dim() - self.count)

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., d) → (..., d)"""
        dims = list(range(-self.count, 0))
        return xs[0] / (xs[0].square().mean(dims, keepdim=True) + self.eps).sqrt()

    def generated(self) -> tuple[int, ...]:
        """y."""
        return (0,)

    def table(self, generators: tuple[Any, ...]) -> Any:
        """Its ellipsoid, |c·(y − c)| and |y − c|² at most."""
        y: Generators | None = generators[0]
        if y is None:
            return None
        columns = y.columns.flatten(y.columns.dim() - 1 - self.count, -2)  # (batch, rows..., d, P)
        flat = Generators(self._rows(y.centre), columns, self._rows(y.error))
        along = (flat.centre.unsqueeze(-2) @ columns).abs().sum((-2, -1)) + (flat.centre.abs() * flat.error).sum(-1)
        round_ = ellipsoid(Generators(*(x.unsqueeze(-2 if i != 1 else -3) for i, x in enumerate(flat))))
        far = (most_eigenvalue(round_.shape) * round_.size).squeeze(-1)
        return round_, along, far

    def _known(self, place: Place) -> Rows:
        """The rows by their box, and by their generators if there are any."""
        box = Interval(*(self._rows(x) for x in place.boxes[0]))
        if place.table is None:
            centre, reach = box.centre, box.radius
            return Rows(box, centre, reach, (centre.abs() * reach).sum(-1), reach.square().sum(-1), None)
        round_, along, far = place.table
        centre = round_.centre.squeeze(-2)
        reach = torch.maximum(box.upper - centre, centre - box.lower)
        along = torch.minimum(along, (centre.abs() * reach).sum(-1))
        return Rows(box, centre, reach, along, torch.minimum(far, reach.square().sum(-1)), round_)

    def _sigma(self, rows: Rows) -> Interval:
        """The range of σ."""
        box, d = rows.box, rows.centre.shape[-1]
        a, b = box.lower.square(), box.upper.square()
        across = (box.lower < 0) & (box.upper > 0)
        least = torch.where(across, torch.zeros_like(a), torch.minimum(a, b)).mean(-1) + self.eps
        most = torch.maximum(a, b).mean(-1) + self.eps
        # σ(y) ≥ (c·y / d + eps) / σ(c): the tangent plane at c, at its least
        square = rows.centre.square().mean(-1)
        middle = (square + self.eps).sqrt()
        plane = (square - rows.along / d + self.eps) / middle
        low = torch.where(plane > 0, torch.maximum(plane, least.sqrt()), least.sqrt())
        high = torch.minimum(most, square + self.eps + (2 * rows.along + rows.far) / d).sqrt()
        return Interval(torch.where(plane.isnan(), plane, low), torch.maximum(low, high))

    def interval(self, *boxes: Interval) -> Interval:
        """y_i / σ is increasing in y_i, moves towards 0 as the other y_j² grow; √d at most (y_i² may overflow)."""
        lower, upper = (self._rows(x) for x in boxes[0])
        a, b = lower.square(), upper.square()
        across = (lower < 0) & (upper > 0)
        least = torch.where(across, torch.zeros_like(a), torch.minimum(a, b))
        most = torch.maximum(a, b)
        d = lower.shape[-1]
        eye = torch.eye(d, dtype=lower.dtype, device=lower.device)
        others = 1 - eye  # sums over the others are summed, not subtracted
        finite = torch.finfo(lower.dtype).max
        small = least.clamp(max=finite / d) @ others  # less may be taken away from 0, and less there is not to add up
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

    def needs(self) -> tuple[int, ...]:
        """y."""
        return (0,)

    def relax(self, place: Place) -> Norm:
        """The bounds of ρ."""
        rows = self._known(place)
        d = rows.centre.shape[-1]
        sigma = self._sigma(rows) if place.inner is None else self._sigma(rows).meet(place.inner)
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
        return Norm(
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
            sums=place.rules.sums,
            radial=beside(better),
            parallel=place.rules.parallel,
        )

    def backward(self, A: Tensor, relaxed: Any, keep: int | None = None) -> Step:
        """ρ_c A, and w_c times a bound of ρ; one error w_r ρ_r per row."""
        norm: Norm = relaxed
        eta = self._rows(A)  # (batch, S, rows..., d)
        w = (eta * norm.centre).sum(-1)
        w_radius = (eta.abs() * norm.reach).sum(-1)
        if norm.shape is not None:
            round_ = functional_radius(eta.unsqueeze(-2), norm.shape, norm.sums).squeeze(-1).squeeze(-1)
            w_radius = torch.where(round_ < w_radius, round_, w_radius)  # it may have overflowed
        rho, rho_radius = norm.inverse.centre, norm.inverse.radius
        low_slope, low = norm.below()
        both = w_radius * rho_radius
        error = None
        if norm.parallel:
            slope, bound, half = _band(norm, low_slope, low)
            constant, error = w * bound - w * rho, w.abs() * half + both
        else:
            slope = torch.where((w >= 0).unsqueeze(-1), low_slope, norm.high_slope)
            bound = torch.where(w >= 0, low, norm.high)
            constant = w * bound - w * rho - both
        back = rho.unsqueeze(-1) * eta + w.unsqueeze(-1) * slope
        dims = [2 + i for i in range(constant.dim() - 2) if i != keep]
        sums = [None if x is None else x.sum(dims) if dims else x for x in (constant, error)]
        return Step((back.reshape(A.shape),), sums[0], error=sums[1])

    def inner_box(self, place: Place) -> Interval | None:
        """The range of σ, (batch, rows...)."""
        return self._sigma(self._known(place))

    def inner_bend(self, A: Tensor, relaxed: Any) -> Tensor:
        """What the product of w and ρ is off by, and the chord of 1/σ."""
        norm: Norm = relaxed
        eta = self._rows(A)
        w, w_radius = (eta * norm.centre).sum(-1), (eta.abs() * norm.reach).sum(-1)
        if norm.shape is not None:
            round_ = functional_radius(eta.unsqueeze(-2), norm.shape).squeeze(-1).squeeze(-1)
            w_radius = torch.minimum(round_, w_radius)
        return norm.inverse.radius * (w_radius + w.abs() * norm.inverse.radius / norm.inverse.centre)

    def parameters(self, relaxed: Any) -> dict[str, Tensor]:
        """log of what σ₀ is multiplied by."""
        return {"touch": torch.zeros_like(relaxed.touch)}

    def with_parameters(self, relaxed: Any, values: dict[str, Tensor]) -> Any:
        """Tangents at other σ₀."""
        return relaxed._replace(touch=relaxed.touch * values["touch"].exp())

    def settled(self, A: Tensor, relaxed: Any) -> dict[str, Tensor]:
        """σ₀, (batch, S, rows...)."""
        return {"touch": relaxed.touch.expand(A.shape[0], A.shape[1], *relaxed.touch.shape[2:])}

    def carries(self, keep: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Every dimension that is not normalised."""
        return (keep,) if keep < len(shape) - self.count else None


def _band(norm: Norm, low_slope: Tensor, low: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ρ = slope·y + middle ± half: the slope of the upper bound, the lower one brought to it over the box."""
    slope = norm.high_slope
    off = low_slope - slope
    centre = (off * norm.centre).sum(-1)
    apart = (off.abs() * norm.reach).sum(-1)
    length = norm.centre.square().sum(-1)
    known = norm.radial & (length > 0)
    times = centre.abs() / torch.where(known, length, torch.ones_like(length))  # |off| = times · |c|
    apart = torch.where(known, torch.minimum(apart, times * norm.along), apart)
    least = centre - apart + low
    return slope, (least + norm.high) / 2, (norm.high - least) / 2
