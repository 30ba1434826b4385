"""A tensor that is known to within an interval, whatever the network's input is."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops.contract import Context, Propagating, Relaxation, Shape, Step
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.tensors import sum_to
from vertex_softmax.ops.zonotope import Zonotope


@dataclasses.dataclass(frozen=True)
class Enclosed(Propagating):
    """lower ≤ value ≤ upper, number by number, for every input of the set that a graph was made for.

    It has no inputs, and stands for one set: the intervals have no batch dimension.
    """

    lower: Tensor
    upper: Tensor

    has_parallel_rule = True

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The middle: a value that is possible, for searches that need one."""
        return (self.lower + self.upper) / 2

    def interval(self, *boxes: Interval) -> Interval:
        """The interval, with a leading dimension of 1."""
        return Interval(self.lower[None], self.upper[None])

    def relax(self, context: Context) -> Relaxation:
        """The worse end for every objective; around the middle under parallel rules."""
        return EnclosedBound(*self._ball(), parallel=context.rules.parallel)

    def propagate(self, inputs: tuple[Zonotope, ...], boxes: tuple[Interval, ...], origin: str) -> Zonotope:
        """The middle, and what a number may be off by: no unknowns."""
        middle, radius = self._ball()
        return Zonotope(middle[None], {}, None, radius[None])

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Every dimension: there are no inputs to hand anything on to."""
        return ()

    def _ball(self) -> tuple[Tensor, Tensor]:
        """A middle and a radius around it that reaches both ends."""
        middle = self.evaluate()
        apart = torch.maximum(self.upper - middle, middle - self.lower)
        return middle, torch.nextafter(apart, torch.full_like(apart, torch.inf))


@dataclasses.dataclass(frozen=True)
class EnclosedBound(Relaxation):
    """Σ A·value ≥ Σ A·middle − Σ |A|·radius."""

    middle: Tensor
    radius: Tensor
    parallel: bool

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """No coefficients; the radius is an error of its own under parallel rules."""
        constant, error = sum_to(A * self.middle, diagonal), sum_to(A.abs() * self.radius, diagonal)
        return Step((), constant, error=error) if self.parallel else Step((), constant - error)
