"""Activation functions besides those of elementwise.py: ELU, softplus, mish and hardswish.

Invariant: as there, each lies between its two lines over the interval of its argument. ELU and softplus are convex;
mish and hardswish fall, then rise, and are convex in the middle and concave outside. The kinks of hardswish, at the
ends of its middle piece, are concave: a line below never touches one from below, and a line above is compared with the
value there.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.ops import higher_derivatives as derivatives
from vertex_softmax.ops.elementwise import Elementwise, Pieces, Valley
from vertex_softmax.ops.higher_derivatives import Higher
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.lines import Lines, convex_lines
from vertex_softmax.ops.registry import register
from vertex_softmax.ops.rules import Rules


@register
@dataclasses.dataclass(frozen=True)
class Elu(Elementwise):
    """x above 0, eˣ − 1 below: convex and increasing."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """max(x, 0) + min(eˣ − 1, 0)"""
        return torch.nn.functional.elu(xs[0])

    def derivative(self, x: Tensor) -> Tensor:
        """1 above 0, eˣ below"""
        return x.clamp(max=0).exp()

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lines of a convex function."""
        return convex_lines(self.evaluate, self.derivative, *box)


@register
@dataclasses.dataclass(frozen=True)
class Softplus(Elementwise):
    """log(1 + eˣ), and x itself above `threshold`, as torch has it: convex, but for a step down at the threshold.

    The step is log(1 + e⁻ᵗ) high, 2.1e-9 at torch's threshold t = 20; all that reaches beyond t is lowered by it.
    """

    threshold: float = math.inf

    @property
    def step(self) -> float:
        """An upper bound of the step's height: how far x lies below log(1 + eˣ) above the threshold."""
        return math.log1p(math.exp(-self.threshold)) if self.threshold < math.inf else 0.0

    def smooth(self, x: Tensor) -> Tensor:
        """log(1 + eˣ)"""
        return torch.logaddexp(x, torch.zeros_like(x))

    def evaluate(self, *xs: Tensor) -> Tensor:
        """log(1 + eˣ), x above the threshold"""
        return torch.where(self._beyond(xs[0]), xs[0], self.smooth(xs[0]))

    def _beyond(self, x: Tensor) -> Tensor:
        """Whether x is above the threshold as it is given, which single precision may not have."""
        return x.double() > self.threshold

    def derivative(self, x: Tensor) -> Tensor:
        """σ(x)"""
        return x.sigmoid()

    def _drop(self, box: Interval) -> Tensor:
        """The step where the box reaches beyond the threshold, 0 elsewhere; rounded up."""
        return torch.where(self._beyond(box.upper), self.step * (1 + 2.0**-20), 0.0).to(box.upper)

    def interval(self, *boxes: Interval) -> Interval:
        """The values at the ends, the lower one less the step, as the function increases; beyond the threshold the box
        itself.
        """
        box = boxes[0]
        beyond = self._beyond(box.lower) & ~box.upper.isnan()
        lower, upper = self.smooth(box.lower) - self._drop(box), self.smooth(box.upper)
        return Interval(torch.where(beyond, box.lower, lower), torch.where(beyond, box.upper, upper))

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """The lines of a convex function, the lower one less the step; beyond the threshold x itself."""
        found = convex_lines(self.smooth, self.derivative, *box)
        found = dataclasses.replace(found, lower_intercept=found.lower_intercept - self._drop(box))
        one, zero = torch.ones_like(box.lower), torch.zeros_like(box.lower)
        same = Lines(lower_slope=one, lower_intercept=zero, upper_slope=one, upper_intercept=zero)
        return same.where(self._beyond(box.lower) & ~box.upper.isnan(), found)

    def higher(self, x: Tensor) -> Higher | None:
        """The second and third derivative, and a bound of the fourth; None with a threshold, where there is a step."""
        return derivatives.softplus(x) if self.threshold == math.inf else None


@register
@dataclasses.dataclass(frozen=True)
class Mish(Valley):
    """x tanh(log(1 + eˣ))."""

    bottom = -1.1924312145154952121
    convex = ((-2.2563763963607931200, 1.4905711794854284593),)
    concave = ((-math.inf, -2.2563763963607931200), (1.4905711794854284593, math.inf))

    def evaluate(self, *xs: Tensor) -> Tensor:
        """x tanh(log(1 + eˣ)) = x u / (u + 2) with u = eˣ (eˣ + 2), and by e⁻ˣ above 0"""
        e = (-xs[0].abs()).exp()
        part = torch.where(xs[0] < 0, e * (e + 2), 1 + 2 * e)
        return xs[0] * (part / (part + torch.where(xs[0] < 0, 2.0, 2 * e * e)))

    def derivative(self, x: Tensor) -> Tensor:
        """g + x g' with g = tanh(log(1 + eˣ))"""
        value, slope, _, _ = derivatives.gate_of_mish(x)
        return value + x * slope

    def higher(self, x: Tensor) -> Higher:
        """The second and third derivative, and a bound of the fourth."""
        return derivatives.mish(x)


@register
@dataclasses.dataclass(frozen=True)
class HardSwish(Valley):
    """x · min(max(k x + ½, 0), 1) with k = 1/6, or with `single` the float32 next to it, as ONNX defines it."""

    single: bool = False

    @property
    def steepness(self) -> float:
        """The factor k."""
        return 11184811 / 2**26 if self.single else 1 / 6

    @property
    def end(self) -> float:
        """Where the middle piece ends, 1/(2k): 3 exactly, or the float next to it."""
        return 2**25 / 11184811 if self.single else 3.0

    def evaluate(self, *xs: Tensor) -> Tensor:
        """0 on the left, x (k x + ½) in the middle, x on the right"""
        x = xs[0]
        # nothing cancels but what x + 3 does, which is exact; the float32 next to 1/6, 3 times, is ½ + 2⁻²⁶
        middle = x * (self.steepness * (x + 3) - 2.0**-26) if self.single else x * (x + 3) / 6
        return torch.where(x <= -self.end, x.clamp(min=0), torch.where(x >= self.end, x, middle))

    def derivative(self, x: Tensor) -> Tensor:
        """0, 2 k x + ½ and 1; at the kinks that of the middle, which is safe for the pieces on both sides"""
        middle = 2 * self.steepness * x + 0.5
        outside = (x > 0).to(x)
        return torch.where(x.abs() > self.end, outside, middle)

    def _bottom(self) -> float:
        return -self.end / 2

    def curvature(self) -> tuple[Pieces, Pieces]:
        """The intervals on which it is convex, the middle piece, and on which it is concave (linear), outside."""
        return ((-self.end, self.end),), ((-math.inf, -self.end), (self.end, math.inf))
