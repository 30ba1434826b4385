"""Functions of one number: between two lines over the interval of its argument (lines.py).

Adding one: a class with `evaluate`, `derivative`, and `lines`: convex, concave, or with the pieces where it is so.
Outside its domain (1/x over an interval with 0 in it, √ and log of negative numbers) an interval is NaN: no bound.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor

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
)
from vertex_softmax.ops.registry import Interval, Op, Place, Range, Rules, Shape, Step, beside, register, spread, sum_to

INFINITY = math.inf
Pieces = tuple[tuple[float, float], ...]


class Elementwise(Op):
    """f(x) elementwise: A⁺ takes the lower line, A⁻ the upper one."""

    parallels = True

    def derivative(self, x: Tensor) -> Tensor:
        """f'(x)"""
        raise NotImplementedError

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The two lines over a box."""
        raise NotImplementedError

    def interval(self, *boxes: Interval) -> Interval:
        """The ends, for an increasing function."""
        return Interval(self.evaluate(boxes[0].lower), self.evaluate(boxes[0].upper))

    def relax(self, place: Place) -> Lines | Band:
        """The two lines, beside the objectives."""
        lines = self.lines(place.boxes[0], place.rules)
        if place.rules.parallel:
            return Band(*(beside(x) for x in self.band(place.boxes[0], lines)))
        return Lines(*(beside(x) for x in lines))

    def band(self, box: Interval, lines: Lines) -> Band:
        """The band of one slope that holds the two lines."""
        slope = (lines.lower_slope + lines.upper_slope) / 2
        return band(slope, lines, box)

    def backward(self, A: Tensor, relaxed: Any, keep: int | None = None) -> Step:
        """A times the slope of the side its sign asks for."""
        if isinstance(relaxed, Band):
            return Step((A * relaxed.slope,), sum_to(A * relaxed.middle, keep), noise=A * relaxed.half)
        up = A >= 0
        slope = torch.where(up, relaxed.lower_slope, relaxed.upper_slope)
        intercept = torch.where(up, relaxed.lower_intercept, relaxed.upper_intercept)
        return Step((A * slope,), sum_to(A * intercept, keep))

    def carries(self, keep: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Every dimension."""
        return (keep,)

    def needs(self) -> tuple[int, ...]:
        """Its argument."""
        return (0,)

    splits: ClassVar[tuple[int, ...]] = (0,)

    def bend(self, i: int, A: Tensor, slope: Tensor, xs: tuple[Tensor, ...], points: tuple[Tensor, ...]) -> Tensor:
        """The range of A f(x) − slope·x."""
        return spread(A * self.evaluate(x) - slope * x for x in points)


@register
@dataclasses.dataclass(frozen=True)
class Relu(Elementwise):
    """max(x, 0): exact where the sign is decided, else the chord above and a line through 0 below."""

    ranges: ClassVar[dict[str, Range]] = {"slope": Range()}

    def evaluate(self, *xs: Tensor) -> Tensor:
        """max(x, 0)"""
        return xs[0].relu()

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lower slope is free in [0, 1]; `rules.relu` chooses it."""
        lower, upper = box
        on, off = lower >= 0, upper <= 0
        undecided = ~(on | off)
        width = torch.where(undecided, upper - lower, torch.ones_like(upper))
        zero, one = torch.zeros_like(lower), torch.ones_like(lower)
        chord = torch.where(undecided, upper / width, torch.where(off, zero, one))
        free = {"adaptive": (upper > -lower).to(lower.dtype), "zero": zero, "one": one}[rules.relu]
        slope = torch.where(undecided, free, torch.where(off, zero, one))
        # the chord through (l, 0) and (u, u), raised to meet both ends in spite of rounding
        above = torch.where(undecided, torch.maximum(-chord * lower, upper - chord * upper), zero)
        nan = lower.isnan() | upper.isnan()
        return Lines(slope, torch.where(nan, lower + upper, zero), chord, torch.where(nan, lower + upper, above))

    def band(self, box: Interval, lines: Lines) -> Band:
        """The slope of the chord."""
        return band(lines.upper_slope, lines._replace(lower_slope=lines.upper_slope), box)

    def parameters(self, relaxed: Any) -> dict[str, Tensor]:
        """The lower slope; it counts only where the sign is open."""
        return {"slope": relaxed.lower_slope}

    def with_parameters(self, relaxed: Any, values: dict[str, Tensor]) -> Any:
        """Another lower slope where the sign is open, that is where the chord is raised above 0."""
        open_ = relaxed.upper_intercept > 0
        return relaxed._replace(lower_slope=torch.where(open_, values["slope"], relaxed.lower_slope))

    def settled(self, A: Tensor, relaxed: Any) -> dict[str, Tensor]:
        """The lower slope."""
        return {"slope": relaxed.lower_slope.expand(A.shape[0], A.shape[1], *A.shape[2:])}

    splits_exactly = True

    def split_point(self, i: int, box: Interval, x: Tensor) -> Tensor:
        """By the sign."""
        return torch.zeros_like(x)

    def bend(self, i: int, A: Tensor, slope: Tensor, xs: tuple[Tensor, ...], points: tuple[Tensor, ...]) -> Tensor:
        """The height of the triangle at 0. Below, where the slope was free to adapt, it counts 0.6: measured."""
        low, _, high = points
        width = torch.where(high > low, high - low, torch.ones_like(high))
        return A.abs() * torch.where(A < 0, 1.0, 0.6) * -low * high / width

    def undecided(self, i: int, box: Interval) -> Tensor | None:
        """Where the sign is open."""
        return (box.lower < 0) & (box.upper > 0)


class Curved(Elementwise):
    """Convex on some intervals of the real line, concave on the rest."""

    convex: ClassVar[Pieces]
    concave: ClassVar[Pieces]

    def curvature(self) -> tuple[Pieces, Pieces]:
        """Where it is convex, and where concave."""
        return self.convex, self.concave

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lines that are best in the middle of the interval, or nearly."""
        return curved_lines(self.evaluate, self.derivative, *self.curvature(), *box)

    def relax(self, place: Place) -> Any:
        """The two lines, and if parameters are free those of the ends; beside the objectives."""
        found = super().relax(place)
        if isinstance(found, Band) or not place.rules.free:
            return found
        ends = end_lines(self.evaluate, self.derivative, *self.curvature(), *place.boxes[0])
        left, right = (Lines(*map(beside, lines)) for lines in ends)
        return Fan(found, left, right)

    ranges: ClassVar[dict[str, Range]] = {"below": Range(-1.0, 1.0), "above": Range(-1.0, 1.0)}

    def parameters(self, relaxed: Any) -> dict[str, Tensor]:
        """Which lines between those of the two ends."""
        if not isinstance(relaxed, Fan):
            return {}
        zero = torch.zeros_like(relaxed.middle.lower_slope)
        return {"below": zero, "above": zero}

    def with_parameters(self, relaxed: Any, values: dict[str, Tensor]) -> Any:
        """Other lines."""
        return relaxed.at(values["below"], values["above"])

    def backward(self, A: Tensor, relaxed: Any, keep: int | None = None) -> Step:
        """As for any function of one number."""
        return super().backward(A, relaxed.middle if isinstance(relaxed, Fan) else relaxed, keep)

    def settled(self, A: Tensor, relaxed: Any) -> dict[str, Tensor]:
        """The slopes below and above."""
        lines = relaxed.middle if isinstance(relaxed, Fan) else relaxed
        shape = (A.shape[0], A.shape[1], *A.shape[2:])
        return {"below": lines.lower_slope.expand(shape), "above": lines.upper_slope.expand(shape)}

    def band(self, box: Interval, lines: Lines) -> Band:
        """The slope of the chord."""
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
    return ((-INFINITY, -c), (c, INFINITY))


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
        if self.tanh and self.single:
            k, c = self.constants()
            return 0.5 * xs[0] * (1 + torch.tanh(k * (xs[0] + c * xs[0] ** 3)))
        return torch.nn.functional.gelu(xs[0], approximate="tanh" if self.tanh else "none")

    def derivative(self, x: Tensor) -> Tensor:
        """Φ(x) + x φ(x)"""
        if self.tanh:
            k, c = self.constants()
            x = x.clamp(-1e3, 1e3)  # beyond 8 it is 0 or 1 to the last bit; x³ would overflow
            t = torch.tanh(k * (x + c * x**3))
            return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * c * x * x)
        slope: Tensor = torch.special.ndtr(x) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return slope

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


class Sigmoidal(Curved):
    """Increasing, convex below 0, concave above."""

    convex = ((-INFINITY, 0.0),)
    concave = ((0.0, INFINITY),)


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
        """Convex."""
        return convex_lines(self.evaluate, self.derivative, *box)


class Positive(Elementwise):
    """Defined for x > 0: an interval that reaches 0 or below has no bound, and says so by NaN."""

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
        """The ends."""
        return super().interval(self.inside(boxes[0]))

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """Concave."""
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
        """Concave; over the point 0 the value itself."""
        point = box.upper <= 0
        high = torch.where(point, torch.ones_like(box.upper), box.upper)
        found = concave_lines(self.evaluate, self.derivative, torch.where(point, high, box.lower), high)
        zero = box.lower.sqrt() + box.upper.sqrt()  # 0, or NaN outside the domain
        outside = zero.isnan()  # the tangent at the middle is a number even then
        return Lines(*(torch.where(point | outside, zero, x) for x in found))


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
        """Falling: the ends change places."""
        lower, upper = self.inside(boxes[0])
        return Interval(self.evaluate(upper), self.evaluate(lower))

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """Convex."""
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
        """Falling on each side of 0; NaN across it."""
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
        left = Lines(-mirror.lower_slope, mirror.lower_intercept, -mirror.upper_slope, mirror.upper_intercept)
        return Lines(*(torch.where(flip, a, b) for a, b in zip(left, right, strict=True)))


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
        """Convex."""
        return convex_lines(self.evaluate, self.derivative, *box)
