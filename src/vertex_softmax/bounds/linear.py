"""What a backward pass adds up: constant + coefficients·start, and what that may be off by."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.registry import Interval, sum_to


@dataclasses.dataclass
class Linear:
    """Constant + coefficients·start, and under parallel rules what it may be off by."""

    constant: Tensor
    """(batch, S)"""
    coefficients: Tensor | None = None
    """(batch, S, *shape of the start)"""
    error: Tensor | None = None
    noise: list[Tensor] = dataclasses.field(default_factory=list)
    """(batch, S, columns) of the ops with parallel rules that were met first"""
    size: Tensor | None = None
    """(batch, S), if asked for: Σ |coefficients|·|box| over all nodes, of which rounding is a share"""
    held: dict[Node, tuple[Tensor, Tensor]] = dataclasses.field(default_factory=dict)
    """the multipliers of boxes that were used, (batch, S, *shape) each"""

    def add(
        self, constant: Tensor | None = None, *, coefficients: Tensor | None = None, error: Tensor | None = None
    ) -> None:
        """Add what one op gives."""
        if constant is not None:
            self.constant = self.constant + constant.flatten(1)
        if coefficients is not None:
            self.coefficients = coefficients if self.coefficients is None else self.coefficients + coefficients
        if error is not None:
            self.error = error.flatten(1) if self.error is None else self.error + error.flatten(1)

    def least(self, box: Interval) -> tuple[Tensor, Tensor]:
        """The least values (batch, S) over the start's box, and the corners (batch, S, *shape) that have them.

        A corner's numbers are the box's own ends, not rounded, and its centre's where a coefficient is 0. A value that
        is inf is none, and NaN.
        """
        centre, radius = box.centre.unsqueeze(1), box.radius.unsqueeze(1)
        slopes = torch.zeros_like(centre) if self.coefficients is None else self.coefficients
        value = self.constant + (slopes * centre).flatten(2).sum(-1) - (slopes.abs() * radius).flatten(2).sum(-1)
        value = torch.where(value == torch.inf, torch.full_like(value, torch.nan), value)
        lower, upper = (end.unsqueeze(1) for end in box)
        corner = torch.where(slopes > 0, lower, torch.where(slopes < 0, upper, centre))
        return value, corner.expand(*value.shape, *centre.shape[2:])

    def weigh(self, parts: list[Part], box: Interval) -> None:
        """Add a node's terms to the size."""
        most = torch.maximum(box.lower.abs(), box.upper.abs()).unsqueeze(1)
        for part in parts:
            terms = sum_to(part.A.abs() * most, part.keep).flatten(1)
            self.size = terms if self.size is None else self.size + terms

    def hear(self, noise: Tensor, columns: int) -> None:
        """Add an op's columns, as long as there are at most `columns`; beyond that they are error."""
        if sum(part.shape[-1] for part in self.noise) + noise.shape[-1] <= columns:
            self.noise.append(noise)
        else:
            self.add(error=noise.abs().sum(-1))
