"""An op without inputs whose value is known only to lie in an interval, whatever the network's input is."""

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
    """A tensor with lower ≤ value ≤ upper for every input of the set that the graph was made for.

    It has no inputs and belongs to a single input set; lower and upper have the node's shape, without a batch
    dimension.
    """

    lower: Tensor
    upper: Tensor

    has_parallel_rule = True

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The middle of the interval: a possible value, for searches that need one."""
        return (self.lower + self.upper) / 2

    def interval(self, *boxes: Interval) -> Interval:
        """The interval, with a leading dimension of 1."""
        return Interval(self.lower[None], self.upper[None])

    def relax(self, context: Context) -> Relaxation:
        """For every objective its minimum over the interval; under parallel rules the middle, with an error."""
        return EnclosedBound(*self._ball(), parallel=context.rules.parallel)

    def propagate(self, inputs: tuple[Zonotope, ...], boxes: tuple[Interval, ...], origin: str) -> Zonotope:
        """The middle, with the radius as slack: no unknowns."""
        middle, radius = self._ball()
        return Zonotope(middle[None], {}, None, radius[None])

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """All dimensions can be carried, because there are no inputs."""
        return ()

    def _ball(self) -> tuple[Tensor, Tensor]:
        """The middle, and a radius around it that contains both ends."""
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
        """A step without coefficients; under parallel rules the radius is reported as an error."""
        constant, error = sum_to(A * self.middle, diagonal), sum_to(A.abs() * self.radius, diagonal)
        return Step((), constant, error=error) if self.parallel else Step((), constant - error)
