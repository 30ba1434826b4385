"""Intervals: what a box says of every number of a tensor."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Interval(NamedTuple):
    """lower ≤ x ≤ upper, elementwise; (batch, *shape)."""

    lower: Tensor
    upper: Tensor

    @property
    def centre(self) -> Tensor:
        """The midpoint."""
        return (self.lower + self.upper) / 2

    @property
    def radius(self) -> Tensor:
        """Half the width."""
        return (self.upper - self.lower) / 2

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    def meet(self, other: Interval) -> Interval:
        """The intersection. Where rounding made the two cross, the points between them, never the empty set."""
        lower = torch.maximum(self.lower, other.lower)
        upper = torch.minimum(self.upper, other.upper)
        crossed = lower > upper
        return Interval(torch.where(crossed, upper, lower), torch.where(crossed, lower, upper))
