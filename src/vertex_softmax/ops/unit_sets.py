"""The sets that the unknowns of an affine form come from: what a linear function and a product of them can reach.

An affine form is y = centre + G ξ with ξ = radius·z and z in a unit set: the cube |z_p| ≤ 1, or a product of unit balls
in the Euclidean or the ℓ1 norm, each over some of the unknowns. Invariant: `reach` of g is at least |g·z| for every z
of the unit set, and equal to it for one of them, to rounding.
"""

from __future__ import annotations

import dataclasses
import enum
import functools

import torch
from torch import Tensor


class UnitBall(enum.Enum):
    """The balls that a unit set is a product of; its value is the order of the dual norm."""

    INTERVAL = 1.0
    """every unknown for itself: the cube"""
    EUCLIDEAN = 2.0
    CROSS = float("inf")
    """|z|₁ ≤ 1: the cross-polytope"""


@dataclasses.dataclass(frozen=True, eq=False)
class UnitSet:
    """A product of balls of one kind; by default the cube."""

    ball: UnitBall = UnitBall.INTERVAL
    of: Tensor | None = None
    """(inputs,) int64: the ball that each unknown is in, counted from 0; None: all in one, or each in its own"""

    @property
    def cube(self) -> bool:
        """Whether every unknown varies independently of the others."""
        return self.ball is UnitBall.INTERVAL

    @functools.cached_property
    def alone(self) -> Tensor | None:
        """(balls,) bool: the balls of one unknown, which are intervals whatever their kind; None: there are none."""
        if self.of is None:
            return None
        found = self.of.bincount() == 1
        return found if bool(found.any()) else None

    def at(self, places: Tensor) -> Tensor:
        """The ball of each of some unknowns, shaped like `places`."""
        return torch.zeros_like(places) if self.of is None else self.of[places]

    def reach(self, g: Tensor, balls: Tensor) -> Tensor:
        """max of |g·z|: g (..., P), of unknowns in these balls, which broadcast to g → (...)."""
        order = self.ball.value
        if self.cube or bool((balls == balls.flatten()[0]).all()):
            whole: Tensor = torch.linalg.vector_norm(g, ord=order, dim=-1)
            return whole
        total = torch.zeros_like(g[..., 0])
        others = balls.unique()
        if self.alone is not None:
            total = total + torch.where(self.alone[balls], g, torch.zeros_like(g)).abs().sum(-1)
            others = others[~self.alone[others]]
        for ball in others:
            own = torch.where(balls == ball, g, torch.zeros_like(g))
            total = total + torch.linalg.vector_norm(own, ord=order, dim=-1)
        return total


CUBE = UnitSet()
