"""Relaxations of functions of one number: between two lines, in a band, with free slopes.

Invariant: with lines that hold over the interval of every argument, `backward` gives a lower bound of Σ A·f(x), because
each coefficient is multiplied with the line that its sign asks for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from vertex_softmax.ops.contract import Range, Relaxation, Step
from vertex_softmax.ops.lines import Band, Fan, Lines
from vertex_softmax.ops.tensors import sum_to


@dataclasses.dataclass(frozen=True, eq=False)
class LineRelaxation(Relaxation):
    """f between two lines over the interval of its argument; the lines are shaped (batch, 1, *shape)."""

    lines: Lines

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A times the line that its sign asks for: positive coefficients take the lower line, negative the upper."""
        up = A >= 0
        slope = torch.where(up, self.lines.lower_slope, self.lines.upper_slope)
        intercept = torch.where(up, self.lines.lower_intercept, self.lines.upper_intercept)
        return Step((A * slope,), sum_to(A * intercept, diagonal))


@dataclasses.dataclass(frozen=True, eq=False)
class BandRelaxation(Relaxation):
    """f(x) = slope·x + middle ± half: the parallel rule; the band is shaped (batch, 1, *shape)."""

    band: Band

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """One linear function, and one unknown of its own for every number."""
        slope, middle, half = self.band
        return Step((A * slope,), sum_to(A * middle, diagonal), noise=A * half)


@dataclasses.dataclass(frozen=True, eq=False)
class ReluRelaxation(LineRelaxation):
    """The chord above, and below a line through 0 whose slope in [0, 1] is free where the sign is not decided."""

    ranges: ClassVar[Mapping[str, Range]] = {"slope": Range()}

    def parameters(self) -> dict[str, Tensor]:
        """The slope of the lower line; it has an effect only where the sign is not decided."""
        return {"slope": self.lines.lower_slope}

    def with_parameters(self, values: Mapping[str, Tensor]) -> ReluRelaxation:
        """Another lower slope where the sign is not decided, that is, where the chord is raised above 0."""
        undecided = self.lines.upper_intercept > 0
        slope = torch.where(undecided, values["slope"], self.lines.lower_slope)
        return ReluRelaxation(dataclasses.replace(self.lines, lower_slope=slope))

    def chosen_values(self, A: Tensor) -> dict[str, Tensor]:
        """The slope of the lower line."""
        return {"slope": self.lines.lower_slope.expand(A.shape[0], A.shape[1], *A.shape[2:])}


@dataclasses.dataclass(frozen=True, eq=False)
class CurvedRelaxation(LineRelaxation):
    """Two lines, and where parameters are free a fan of lines to mix them from."""

    fan: Fan | None = None

    ranges: ClassVar[Mapping[str, Range]] = {"below": Range(-1.0, 1.0), "above": Range(-1.0, 1.0)}

    def parameters(self) -> dict[str, Tensor]:
        """Which lines between those of the two ends, for either side (`Fan.mixed`)."""
        if self.fan is None:
            return {}
        zero = torch.zeros_like(self.lines.lower_slope)
        return {"below": zero, "above": zero}

    def with_parameters(self, values: Mapping[str, Tensor]) -> CurvedRelaxation:
        """The same relaxation with other lines of the fan."""
        if self.fan is None:
            return self
        return CurvedRelaxation(self.fan.mixed(values["below"], values["above"]))

    def chosen_values(self, A: Tensor) -> dict[str, Tensor]:
        """The slopes of the lower and of the upper line."""
        shape = (A.shape[0], A.shape[1], *A.shape[2:])
        return {"below": self.lines.lower_slope.expand(shape), "above": self.lines.upper_slope.expand(shape)}
