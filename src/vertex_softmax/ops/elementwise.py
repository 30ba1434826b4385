"""Functions of one number, bounded by two lines over the interval of the argument (lines.py).

To add one, write a class with `evaluate`, `derivative` and `lines`: convex, concave, or with the pieces where it is so.
Outside its domain (1/x over an interval with 0, √ and log of negative numbers) an interval is NaN: there is no bound.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from vertex_softmax.ops import gelu_values as values
from vertex_softmax.ops import higher_derivatives as derivatives
from vertex_softmax.ops.contract import Context, Propagating, Relaxation, Shape, Splittable
from vertex_softmax.ops.higher_derivatives import Higher
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.line_relaxations import BandRelaxation, CurvedRelaxation, LineRelaxation, ReluRelaxation
from vertex_softmax.ops.lines import (
    Band,
    Fan,
    Lines,
    band,
    concave_lines,
    convex_lines,
    curved_band,
    curved_lines,
    end_lines,
    negated,
    relu_lines,
)
from vertex_softmax.ops.propagation.curves import Derivatives, Parabola, bent_by_parabola, relu_parabola, taylor
from vertex_softmax.ops.propagation.third_curves import bent_by_best
from vertex_softmax.ops.registry import register
from vertex_softmax.ops.rules import ReluSlope, RowRule, Rules
from vertex_softmax.ops.tensors import beside, spread
from vertex_softmax.ops.zonotope import Zonotope

Pieces = tuple[tuple[float, float], ...]


class Elementwise(Splittable, Propagating):
    """f(x) elementwise, between two lines over the interval of x."""

    reads = (0,)
    rules_read = ("relu", "free")
    has_parallel_rule = True

    def derivative(self, x: Tensor) -> Tensor:
        """The derivative f'(x)."""
        raise NotImplementedError

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The two lines over a box."""
        raise NotImplementedError

    def interval(self, *boxes: Interval) -> Interval:
        """The values at the ends, for an increasing function."""
        return Interval(self.evaluate(boxes[0].lower), self.evaluate(boxes[0].upper))

    def relax(self, context: Context) -> Relaxation:
        """The two lines, or under parallel rules one band."""
        box, rules = context.boxes[0], context.rules
        if rules.parallel:
            return BandRelaxation(Band(*map(beside, self.band(box, rules))))
        return self.between(self.lines(box, rules).map(beside), context)

    def between(self, lines: Lines, context: Context) -> Relaxation:
        """The relaxation between two lines; subclasses add free parameters."""
        return LineRelaxation(lines)

    def band(self, box: Interval, rules: Rules) -> Band:
        """The band of one slope that holds the two lines."""
        lines = self.lines(box, rules)
        return band((lines.lower_slope + lines.upper_slope) / 2, lines, box)

    def propagate(self, inputs: tuple[Zonotope, ...], boxes: tuple[Interval, ...], origin: str) -> Zonotope:
        """The band of one slope over the box, or to second order (ops/propagation/curves.py)."""
        x, box = inputs[0], boxes[0]
        box = box if x.inputs is None else box.meet(x.tight_box)
        band = self.band(box, Rules(attention=RowRule.AFFINE, parallel=True))
        parabola = None if x.inputs is None else self.parabola(x, box)
        other = bent_by_parabola(x, band, parabola, origin)
        return bent_by_best(x, self.derivatives, box, other, origin)

    def parabola(self, x: Zonotope, box: Interval) -> Parabola | None:
        """The parabola around the centre of x, for all numbers of x in a box; None if there is none."""
        at = self.derivatives(x.centre)
        if at is None:
            return None
        away = torch.maximum(box.upper - x.centre, x.centre - box.lower)
        return taylor(at, torch.minimum(x.tight_radius, away).clamp(min=0))

    def derivatives(self, x: Tensor) -> Derivatives | None:
        """f and its derivatives at x; None if the function is not smooth."""
        more = self.higher(x)
        if more is None:
            return None
        return Derivatives(self.evaluate(x), self.derivative(x), second=more[0], third=more[1], fourth=more[2])

    def higher(self, x: Tensor) -> Higher | None:
        """The next two derivatives at x, and a bound of the fourth everywhere; None if the function is not smooth."""
        return None

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension."""
        return (dimension,)

    split_inputs: ClassVar[tuple[int, ...]] = (0,)

    def bend(self, i: int, A: Tensor, slope: Tensor, xs: tuple[Tensor, ...], points: tuple[Tensor, ...]) -> Tensor:
        """The range of A f(x) − slope·x over the points."""
        return spread(A * self.evaluate(x) - slope * x for x in points)


@register
@dataclasses.dataclass(frozen=True)
class Relu(Elementwise):
    """max(x, 0): exact where the sign is decided, else the chord above and a line through 0 below."""

    splits_exactly = True

    def evaluate(self, *xs: Tensor) -> Tensor:
        """max(x, 0)"""
        return xs[0].relu()

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lower slope is free in [0, 1]; `rules.relu` chooses it."""
        return relu_lines(*box, {ReluSlope.ZERO: 0.0, ReluSlope.ONE: 1.0}.get(rules.relu))

    def between(self, lines: Lines, context: Context) -> Relaxation:
        """The relaxation between the lines, with the lower slope free."""
        return ReluRelaxation(lines)

    def band(self, box: Interval, rules: Rules) -> Band:
        """The band with the slope of the chord."""
        lines = self.lines(box, rules)
        return band(lines.upper_slope, dataclasses.replace(lines, lower_slope=lines.upper_slope), box)

    def parabola(self, x: Zonotope, box: Interval) -> Parabola:
        """The parabola of a ReLU, with less curvature where more of x'² becomes an error."""
        line, rest = x.linear.radius, x.rest.tight_radius
        return relu_parabola(x.centre, box, 2 * line * rest + rest.square())

    def split_point(self, i: int, box: Interval, x: Tensor) -> Tensor:
        """A ReLU is split at 0."""
        return torch.zeros_like(x)

    def bend(self, i: int, A: Tensor, slope: Tensor, xs: tuple[Tensor, ...], points: tuple[Tensor, ...]) -> Tensor:
        """The height of the triangle at 0; 0.6 of it for the lower line, whose slope can adapt (measured)."""
        low, _, high = points
        width = torch.where(high > low, high - low, torch.ones_like(high))
        return A.abs() * torch.where(A < 0, 1.0, 0.6) * -low * high / width

    def undecided(self, i: int, box: Interval) -> Tensor | None:
        """The numbers whose interval has both signs."""
        return (box.lower < 0) & (box.upper > 0)


class Curved(Elementwise):
    """Convex on some intervals of the real line, concave on the rest."""

    convex: ClassVar[Pieces]
    concave: ClassVar[Pieces]

    def curvature(self) -> tuple[Pieces, Pieces]:
        """Where the function is convex, and where it is concave."""
        return self.convex, self.concave

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lines that are best in the middle of the interval, or nearly."""
        return curved_lines(self.evaluate, self.derivative, *self.curvature(), *box)

    def between(self, lines: Lines, context: Context) -> Relaxation:
        """The relaxation between the lines, with a fan of lines if parameters are free."""
        if not context.rules.free:
            return CurvedRelaxation(lines)
        left, right = end_lines(self.evaluate, self.derivative, *self.curvature(), *context.boxes[0])
        return CurvedRelaxation(lines, Fan(lines, left.map(beside), right.map(beside)))

    def band(self, box: Interval, rules: Rules) -> Band:
        """The band with the slope of the chord."""
        return curved_band(self.evaluate, self.derivative, *self.curvature(), *box)


class Valley(Curved):
    """Falls, then rises: the least value is at `bottom`."""

    bottom: ClassVar[float]

    def _bottom(self) -> float:
        return self.bottom

    def interval(self, *boxes: Interval) -> Interval:
        """The ends, and the bottom if it lies between them."""
        lower, upper = boxes[0]
        left, right = self.evaluate(lower), self.evaluate(upper)
        bottom = torch.full_like(lower, self._bottom())
        between = (lower < bottom) & (bottom < upper)
        least = torch.where(between, self.evaluate(bottom), torch.minimum(left, right))
        return Interval(least, torch.maximum(left, right))


def _outside(c: float) -> Pieces:
    return ((-math.inf, -c), (c, math.inf))


@register
@dataclasses.dataclass(frozen=True)
class Gelu(Valley):
    """x Φ(x), or with `tanh` its usual approximation x/2 (1 + tanh(k (x + c x³))).

    k = √(2/π) and c = 0.044715, as real numbers; with `single` both as float32 rounds them, as models written out in
    float32 have them, and with `double` as float64 does.
    """

    tanh: bool = False
    single: bool = False
    double: bool = False

    def constants(self) -> tuple[float, float]:
        """k and c of the tanh form: exactly these where `single` or `double` is set, else the doubles next to them."""
        return (0.7978845834732056, 0.044714998453855515) if self.single else (0.7978845608028654, 0.044715)

    def evaluate(self, *xs: Tensor) -> Tensor:
        """x Φ(x)"""
        return values.value_by_tanh(xs[0], *self.constants()) if self.tanh else values.value(xs[0])

    def interval(self, *boxes: Interval) -> Interval:
        """As of every valley, outward by what the exponents of tiny values may round."""
        low, high = super().interval(*boxes)
        share = values.rounded(boxes[0].lower, self.constants() if self.tanh else None)
        return Interval(low - share * low.abs(), high + share * high.clamp(max=0).abs())

    def derivative(self, x: Tensor) -> Tensor:
        """Φ(x) + x φ(x)"""
        return values.slope_by_tanh(x, *self.constants()) if self.tanh else values.slope(x)

    def higher(self, x: Tensor) -> Higher:
        """The higher derivatives of either form."""
        return derivatives.gelu_by_tanh(x, *self.constants()) if self.tanh else derivatives.gelu(x)

    def _bottom(self) -> float:
        if not self.tanh:
            return -0.7517915246935644575
        return -0.7524614044087226430 if self.single else -0.7524614220710162585

    def curvature(self) -> tuple[Pieces, Pieces]:
        """f'' changes its sign at ±√2 (erf), ±1.4185… (tanh)."""
        tanh = 1.4185039771280708814 if self.single else 1.4185040087908283555
        c = tanh if self.tanh else math.sqrt(2)
        return ((-c, c),), _outside(c)


@register
@dataclasses.dataclass(frozen=True)
class Silu(Valley):
    """x / (1 + e⁻ˣ)."""

    bottom = -1.2784645427610737951
    convex = ((-2.3993572805154676678, 2.3993572805154676678),)
    concave = _outside(2.3993572805154676678)

    def evaluate(self, *xs: Tensor) -> Tensor:
        """x σ(x)"""
        return torch.nn.functional.silu(xs[0])

    def derivative(self, x: Tensor) -> Tensor:
        """σ + x σ (1 − σ)"""
        s = x.sigmoid()
        return s * (1 + x * (-x).sigmoid())

    def higher(self, x: Tensor) -> Higher:
        """The second and third derivative, and a bound of the fourth."""
        return derivatives.silu(x)


class Sigmoidal(Curved):
    """Increasing, convex below 0, concave above."""

    convex = ((-math.inf, 0.0),)
    concave = ((0.0, math.inf),)


@register
@dataclasses.dataclass(frozen=True)
class Tanh(Sigmoidal):
    """tanh(x)."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """tanh x"""
        return xs[0].tanh()

    def derivative(self, x: Tensor) -> Tensor:
        """1 / cosh² x, without cancellation"""
        return 4 * (2 * x).sigmoid() * (-2 * x).sigmoid()

    def higher(self, x: Tensor) -> Higher:
        """The second and third derivative, and a bound of the fourth."""
        return derivatives.tanh(x)


@register
@dataclasses.dataclass(frozen=True)
class Sigmoid(Sigmoidal):
    """1 / (1 + e⁻ˣ)."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """σ(x)"""
        return xs[0].sigmoid()

    def derivative(self, x: Tensor) -> Tensor:
        """σ(x) σ(−x)"""
        return x.sigmoid() * (-x).sigmoid()

    def higher(self, x: Tensor) -> Higher:
        """The second and third derivative, and a bound of the fourth."""
        return derivatives.sigmoid(x)


@register
@dataclasses.dataclass(frozen=True)
class Erf(Sigmoidal):
    """erf(x)."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """erf x"""
        return xs[0].erf()

    def derivative(self, x: Tensor) -> Tensor:
        """2/√π e^{−x²}"""
        return torch.exp(-x * x) * (2 / math.sqrt(math.pi))


@register
@dataclasses.dataclass(frozen=True)
class Exp(Elementwise):
    """eˣ."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """eˣ"""
        return xs[0].exp()

    def derivative(self, x: Tensor) -> Tensor:
        """eˣ"""
        return x.exp()

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lines of a convex function."""
        return convex_lines(self.evaluate, self.derivative, *box)


class Positive(Elementwise):
    """A function defined for x > 0; if an interval reaches 0 or below, its image is NaN: there is no bound."""

    @staticmethod
    def inside(box: Interval) -> Interval:
        """The box, NaN where it leaves the domain."""
        nan = torch.full_like(box.lower, torch.nan)
        fine = box.lower > 0
        return Interval(torch.where(fine, box.lower, nan), torch.where(fine, box.upper, nan))


@register
@dataclasses.dataclass(frozen=True)
class Log(Positive):
    """The natural logarithm."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """log x"""
        return xs[0].log()

    def derivative(self, x: Tensor) -> Tensor:
        """1 / x"""
        return 1 / x

    def interval(self, *boxes: Interval) -> Interval:
        """The values at the ends; NaN outside of the domain."""
        return super().interval(self.inside(boxes[0]))

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lines of a concave function."""
        return concave_lines(self.evaluate, self.derivative, *self.inside(box))


@register
@dataclasses.dataclass(frozen=True)
class Sqrt(Elementwise):
    """√x, x ≥ 0."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """√x; NaN below 0"""
        return xs[0].sqrt()

    def derivative(self, x: Tensor) -> Tensor:
        """1 / (2 √x)"""
        return 0.5 / x.sqrt()

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lines of a concave function; over the point 0 its value."""
        point = box.upper <= 0
        high = torch.where(point, torch.ones_like(box.upper), box.upper)
        found = concave_lines(self.evaluate, self.derivative, torch.where(point, high, box.lower), high)
        zero = box.lower.sqrt() + box.upper.sqrt()  # 0, or NaN outside the domain
        outside = zero.isnan()  # the tangent at the middle is a number even then
        return found.map(lambda x: torch.where(point | outside, zero, x))


@register
@dataclasses.dataclass(frozen=True)
class Rsqrt(Positive):
    """1 / √x."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """1 / √x"""
        return xs[0].rsqrt()

    def derivative(self, x: Tensor) -> Tensor:
        """−x^{−3/2} / 2"""
        return -0.5 * x.rsqrt() / x

    def interval(self, *boxes: Interval) -> Interval:
        """The function falls, so the ends are swapped."""
        lower, upper = self.inside(boxes[0])
        return Interval(self.evaluate(upper), self.evaluate(lower))

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lines of a convex function."""
        return convex_lines(self.evaluate, self.derivative, *self.inside(box))


@register
@dataclasses.dataclass(frozen=True)
class Reciprocal(Elementwise):
    """1 / x over an interval without 0."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """1 / x"""
        return 1 / xs[0]

    def derivative(self, x: Tensor) -> Tensor:
        """−1 / x²"""
        return -1 / (x * x)

    def interval(self, *boxes: Interval) -> Interval:
        """The function falls on each side of 0; NaN across 0."""
        lower, upper = boxes[0]
        nan = torch.full_like(lower, torch.nan)
        fine = (lower > 0) | (upper < 0)
        return Interval(torch.where(fine, 1 / upper, nan), torch.where(fine, 1 / lower, nan))

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """Convex above 0; below 0 the mirror image, 1/x = −(1/−x)."""
        flip = box.upper < 0
        lower = torch.where(flip, -box.upper, box.lower)
        upper = torch.where(flip, -box.lower, box.upper)
        right = convex_lines(self.evaluate, self.derivative, *Positive.inside(Interval(lower, upper)))
        # f(x) = −f(−x): slopes stay, sides and intercepts change
        mirror = negated(right)
        left = Lines(
            lower_slope=-mirror.lower_slope,
            lower_intercept=mirror.lower_intercept,
            upper_slope=-mirror.upper_slope,
            upper_intercept=mirror.upper_intercept,
        )
        return left.where(flip, right)


@register
@dataclasses.dataclass(frozen=True)
class Square(Elementwise):
    """x²."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """x²"""
        return xs[0].square()

    def derivative(self, x: Tensor) -> Tensor:
        """2 x"""
        return 2 * x

    def interval(self, *boxes: Interval) -> Interval:
        """0 is the least value if it lies between the ends."""
        a, b = boxes[0].lower.square(), boxes[0].upper.square()
        across = (boxes[0].lower < 0) & (boxes[0].upper > 0)
        return Interval(torch.where(across, torch.zeros_like(a), torch.minimum(a, b)), torch.maximum(a, b))

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lines of a convex function."""
        return convex_lines(self.evaluate, self.derivative, *box)
