"""What a backward pass adds up: linear lower bounds in the input, and what they may be off by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from vertex_softmax.bounds.choice import Multipliers
from vertex_softmax.bounds.coefficients import Coefficients
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.contract import Step
from vertex_softmax.sets.region import Region


@dataclasses.dataclass(frozen=True, eq=False)
class PassStep:
    """One step of a pass through an op that is not affine."""

    node: Node
    coefficients: Coefficients
    """on the op's output"""
    step: Step
    """what the op's relaxation made of them"""


@dataclasses.dataclass(frozen=True, eq=False)
class LinearBound:
    """Objective ≥ constant + Σ coefficients·start for every input of the set."""

    constant: Tensor
    """(batch, S)"""
    coefficients: Tensor | None
    """(batch, S, *shape of the start); None where the objectives do not depend on the input"""
    error: Tensor | None = None
    """(batch, S), under parallel rules: the objective is at most this far from the linear function"""
    noise: tuple[Tensor, ...] = ()
    """(batch, S, columns) each, under parallel rules: unknowns of single ops, from the nearest op on"""
    size: Tensor | None = None
    """(batch, S), if asked for: Σ |coefficients|·|box| over all nodes; what the pass rounds is a share of it"""
    multipliers: Mapping[Node, Multipliers] = dataclasses.field(default_factory=dict)
    """of the boxes that had multipliers, as they were used"""
    steps: tuple[PassStep, ...] = ()
    """if asked for, the steps of all ops that are not affine, in the order of the pass"""

    def least(self, region: Region) -> Tensor:
        """The least values over the input set, (batch, S); an overflow to +inf is no bound, and NaN."""
        if self.coefficients is None:
            return no_overflow(self.constant)
        return no_overflow(region.support(self.coefficients, self.constant))

    def minimise(self, region: Region) -> tuple[Tensor, Tensor]:
        """The least values (batch, S), and points (batch, S, *shape of the start) of the set that attain them.

        The values are summed in another order than by `least`: they differ in the last bits.
        """
        slopes = torch.zeros_like(region.box.lower).unsqueeze(1) if self.coefficients is None else self.coefficients
        value, point = region.minimise(slopes, self.constant)
        return no_overflow(value), point.expand(*value.shape, *point.shape[2:])


def no_overflow(bound: Tensor) -> Tensor:
    """A lower bound of +inf is an overflow, and no bound: NaN."""
    return torch.where(bound == torch.inf, torch.full_like(bound, torch.nan), bound)
