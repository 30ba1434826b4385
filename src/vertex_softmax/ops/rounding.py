"""Rounding to whole numbers, as quantised networks round their activations.

Invariant: every bound holds for y = x + e with any |e| ≤ ½ + SLACK · max(1, |x|), whichever way a tie or a number next
to one is rounded. So it does not matter that a runtime computes x in float32, in which x may lie on the other side of a
tie; SLACK is sixteen roundings of float32.
"""

from __future__ import annotations

import dataclasses

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
    """The whole number next to x, of two the even one."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The rounded number; its gradient, for attacks, is that of x."""
        x = xs[0]
        return x + (x.round() - x).detach() if x.requires_grad else x.round()

    def derivative(self, x: Tensor) -> Tensor:
        """1, that of the line which is rounded"""
        return torch.ones_like(x)

    @staticmethod
    def widened(box: Interval) -> Interval:
        """The box with SLACK at both ends."""
        spare = SLACK * torch.maximum(box.lower.abs(), box.upper.abs()).clamp(min=1)
        return Interval(box.lower - spare, box.upper + spare)

    def interval(self, *boxes: Interval) -> Interval:
        """The rounded ends of the widened box: rounding is monotone."""
        wide = self.widened(boxes[0])
        return Interval(wide.lower.round(), wide.upper.round())

    def lines(self, box: Interval, rules: Rules) -> Lines:
        """x ± ½, or the least and the largest value where those are nearer: up to one step apart."""
        wide = self.widened(box)
        low, high = self.interval(box)
        one, zero = torch.ones_like(low), torch.zeros_like(low)
        half = 0.5 + (wide.upper - box.upper)
        slanted = Lines(lower_slope=one, lower_intercept=-half, upper_slope=one, upper_intercept=half)
        level = Lines(lower_slope=zero, lower_intercept=low, upper_slope=zero, upper_intercept=high)
        found = level.where(high - low <= 1, slanted)
        nan = low + high
        return found.map(lambda x: torch.where(nan.isnan(), nan, x))
