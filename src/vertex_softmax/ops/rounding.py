"""Rounding to whole numbers of a range, as quantised networks round their activations.

Invariant: every bound holds for y = clamp(x) + e with any |e| ≤ ½ + SLACK · max(1, |clamp(x)|), y a whole number of the
range, whichever way a tie or a number next to one is rounded. So it does not matter that a runtime computes x in
float32, in which x may lie on the other side of a tie; SLACK is sixteen roundings of float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.ops.elementwise import Elementwise
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.lines import Lines
from vertex_softmax.ops.registry import register
from vertex_softmax.ops.rules import Rules

SLACK = 2.0**-20


@register
@dataclasses.dataclass(frozen=True)
class Round(Elementwise):
    """The whole number nearest to clamp(x, least, most), the even one in a tie; least and most are whole numbers."""

    least: float = -math.inf
    most: float = math.inf
    places: Tensor | None = dataclasses.field(default=None, compare=False)
    """of an op restricted to some numbers of a tensor of the model: their places in it, as integers in the output's
    shape; None: all numbers, in order"""

    def numbered(self, shape: Sequence[int]) -> Round:
        """The op with places, of which a restriction keeps those of its numbers; itself if it has them."""
        if self.places is not None:
            return self
        return dataclasses.replace(self, places=torch.arange(math.prod(shape)).reshape(tuple(shape)))

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The rounded number; its gradient, for attacks, is that of the number before rounding."""
        x = xs[0].clamp(self.least, self.most)
        return x + (x.round() - x).detach() if x.requires_grad else x.round()

    def derivative(self, x: Tensor) -> Tensor:
        """The derivative of the number before rounding: 1 inside the range, 0 outside."""
        return ((x >= self.least) & (x <= self.most)).to(x)

    def _cut(self, box: Interval) -> tuple[Interval, Tensor]:
        """The box cut to the range, and SLACK for its numbers."""
        cut = Interval(*(end.clamp(self.least, self.most) for end in box))
        return cut, SLACK * torch.maximum(cut.lower.abs(), cut.upper.abs()).clamp(min=1)

    def interval(self, *boxes: Interval) -> Interval:
        """The rounded ends, widened by SLACK before rounding; rounding is monotone."""
        cut, spare = self._cut(boxes[0])
        return Interval(self.evaluate(cut.lower - spare), self.evaluate(cut.upper + spare))

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """Lines at a distance of ½ and SLACK from clamp(x); or the constant least or largest value, if that is closer.

        The upper line goes from the value of clamp at the left end to where clamp reaches its largest value; the lower
        line goes from where clamp leaves its least value to its value at the right end.
        """
        lower, upper = box
        cut, spare = self._cut(box)
        half, middle, rise = 0.5 + spare, (lower + upper) / 2, cut.upper - cut.lower
        low, high = self.interval(box)

        def steep(run: Tensor) -> Tensor:
            flat = (run <= 0) | (rise <= 0)
            return torch.where(flat, 0.0, rise / torch.where(flat, torch.ones_like(run), run)).clamp(max=1)

        above = steep(torch.minimum(upper, cut.upper) - lower)
        below = steep(upper - torch.maximum(lower, cut.lower))
        # slopes are clamped to 1 and rounded, so intercepts are chosen to clear both ends of the rising piece
        turn_above, turn_below = torch.minimum(upper, cut.upper), torch.maximum(lower, cut.lower)
        over = torch.maximum(cut.lower - above * lower, cut.upper - above * turn_above) + half
        under = torch.minimum(cut.upper - below * upper, cut.lower - below * turn_below) - half
        level_above, level_below = above * middle + over >= high, below * middle + under <= low
        nan = torch.where((lower + upper).isnan(), lower + upper, torch.zeros_like(lower))
        return Lines(
            lower_slope=torch.where(level_below, 0.0, below),
            lower_intercept=torch.where(level_below, low, under) + nan,
            upper_slope=torch.where(level_above, 0.0, above),
            upper_intercept=torch.where(level_above, high, over) + nan,
        )
