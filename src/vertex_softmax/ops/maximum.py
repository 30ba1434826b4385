"""The maximum of a row, bounded from below by one of its entries and from above by a sum of chords."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.ops.contract import Context, Op, Relaxation
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.line_relaxations import LineRelaxation
from vertex_softmax.ops.lines import Lines
from vertex_softmax.ops.registry import register
from vertex_softmax.ops.tensors import beside

INFINITY = math.inf


@register
@dataclasses.dataclass(frozen=True)
class Maximum(Op):
    """The maximum over the last dimension, which is kept with size 1.

    The lower bound is the entry with the largest lower end t. The upper bound is t + Σ max(x_j − t, 0) with each term
    replaced by its chord. If one entry is certainly the largest, both bounds are that entry.
    """

    reads = (0,)

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., n) → (..., 1)"""
        return xs[0].amax(-1, keepdim=True)

    def interval(self, *boxes: Interval) -> Interval:
        """The maxima of the lower and of the upper ends."""
        return Interval(self.evaluate(boxes[0].lower), self.evaluate(boxes[0].upper))

    def relax(self, context: Context) -> Relaxation:
        """Two lines with slopes (batch, 1, ..., n) and intercepts (batch, 1, ..., 1)."""
        lower, upper = context.boxes[0]
        t, which = lower.max(-1, keepdim=True)
        below = torch.zeros_like(lower).scatter(-1, which, 1.0)
        others = upper.masked_fill(below > 0, -INFINITY).amax(-1, keepdim=True)
        open_ = upper > t
        decided = others <= t  # the entry of the largest lower end is the maximum
        width = torch.where(open_, upper - lower, torch.ones_like(upper))
        slope = torch.where(open_, (upper - t) / width, torch.zeros_like(upper))  # of the chord of max(x − t, 0), x ≥ l
        raised = torch.where(open_, torch.maximum(-slope * lower, upper - t - slope * upper), torch.zeros_like(upper))
        above = torch.where(decided, torch.zeros_like(t), t + raised.sum(-1, keepdim=True))
        bad = (lower + upper).sum(-1, keepdim=True)
        nan = torch.where(bad.isnan(), bad, torch.zeros_like(bad))
        slope = torch.where(decided, below, slope)
        lines = Lines(
            lower_slope=below, lower_intercept=torch.zeros_like(t) + nan, upper_slope=slope, upper_intercept=above + nan
        )
        return LineRelaxation(lines.map(beside))
