"""The result of a backward pass: linear lower bounds in the input, and the errors of their parts."""

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
    """The step of a pass through one op that is not affine."""

    node: Node
    coefficients: Coefficients
    """the coefficients on the op's output"""
    step: Step
    """what the op's relaxation makes of them"""


@dataclasses.dataclass(frozen=True, eq=False)
class LinearBound:
    """S linear functions: at every input of the set, objective ≥ constant + Σ coefficients·start.

    The start is the node at which passes end, the input or a rearrangement of it (`GraphIndex.start`).
    """

    constant: Tensor
    """(batch, S)"""
    coefficients: Tensor | None
    """(batch, S, *shape of the start); None where the objectives do not depend on the input"""
    error: Tensor | None = None
    """(batch, S), under parallel rules: the objective differs from the linear function, plus its noise, by at most
    this"""
    noise: tuple[Tensor, ...] = ()
    """(batch, S, columns) each, under parallel rules: the coefficients of the unknowns in [−1, 1] of single ops, from
    the op nearest to the objective on"""
    size: Tensor | None = None
    """(batch, S), if asked for: Σ |coefficients|·|box| over all nodes, and what underflow takes from coefficients,
    divided by the precision: what the pass loses is a small share of it"""
    multipliers: Mapping[Node, Multipliers] = dataclasses.field(default_factory=dict)
    """the multipliers that were used, by node"""
    steps: tuple[PassStep, ...] = ()
    """if asked for, the steps through all ops that are not affine, from the objective towards the input"""

    def least(self, region: Region) -> Tensor:
        """The least values of the linear functions over the input set, (batch, S); NaN where they overflow to +inf."""
        if self.coefficients is None:
            return no_overflow(self.constant)
        return no_overflow(region.support(self.coefficients, self.constant))

    def minimise(self, region: Region) -> tuple[Tensor, Tensor]:
        """The least values (batch, S), and points (batch, S, *shape of the start) of the set that attain them.

        The values are summed in another order than by `least`, and differ from those in the last bits.
        """
        slopes = torch.zeros_like(region.box.lower).unsqueeze(1) if self.coefficients is None else self.coefficients
        value, point = region.minimise(slopes, self.constant)
        return no_overflow(value), point.expand(*value.shape, *point.shape[2:])


def no_overflow(bound: Tensor) -> Tensor:
    """The bounds with +inf replaced by NaN: a lower bound of +inf comes from an overflow and says nothing."""
    return torch.where(bound == torch.inf, torch.full_like(bound, torch.nan), bound)
