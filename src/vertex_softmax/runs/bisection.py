"""Bisection for the largest ε that holds, of many inputs at once, each at its own ε, on a logarithmic scale.

Invariant of a bracket: `low` is 0 or an ε that was asked about and held; `high` is inf or one that did not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError

CHEAP = "crown"
"""The method whose radii are used as lower bounds for those of STRONGER."""
STRONGER = ("alpha-crown", "hybrid", "joint", "bab")
"""Methods that are never below CHEAP, by construction (methods/combination.py)."""

Holds: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Which of the inputs (n,), by their indices, hold at their ε (n,): (n,) bool."""


@dataclasses.dataclass(frozen=True)
class Bisection:
    """The range and the precision of the search for radii, and the settings of the attack."""

    least: float = 1e-4
    """the smallest ε that is tried: an input that is not certified at it has radius 0"""
    most: float = 0.5
    """the largest ε that is tried"""
    precision: float = 0.05
    """the bisection ends when the least refused ε is at most this much larger than the certified one, relatively"""
    attack_steps: int = 20
    attack_restarts: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.least < self.most < math.inf:
            raise InvalidValueError(f"ε from {self.least} to {self.most}: both must be above 0, the second the larger")
        if not 0 < self.precision <= 10:
            raise InvalidValueError(f"the precision is {self.precision}; choose a number above 0, such as 0.05")


@dataclasses.dataclass
class Bracket:
    """For each of n inputs, the range in which its radius is known to lie."""

    low: Tensor
    """(n,): the largest ε that holds; 0 if none is known"""
    high: Tensor
    """(n,): the least ε that does not hold; inf if none is known"""

    @staticmethod
    def of(count: int) -> Bracket:
        """Nothing is known."""
        return Bracket(torch.zeros(count, dtype=torch.float64), torch.full((count,), math.inf, dtype=torch.float64))

    def narrow(self, how: Bisection, holds: Holds) -> Bracket:
        """Ask until every bracket is narrow enough; returns itself."""
        while bool((rest := self.open(how)).any()):
            which = rest.nonzero().flatten()
            eps = self.middle(how)[which]
            self.learn(eps, holds(which, eps), which)
        return self

    def open(self, how: Bisection) -> Tensor:
        """Which brackets are not narrow enough yet, (n,) bool."""
        untried = (self.low == 0) & (self.high > how.least)
        wide = (self.low > 0) & (self.high > self.low * (1 + how.precision)) & (self.low < how.most)
        return untried | wide

    def middle(self, how: Bisection) -> Tensor:
        """The next ε to try, (n,): `least` if no ε is known to hold, `most` if none is known to fail, else between."""
        between = (self.low * self.high).sqrt().clamp(max=how.most)
        upward = torch.where(self.high == math.inf, torch.full_like(self.low, how.most), between)
        return torch.where(self.low == 0, torch.full_like(self.low, how.least), upward)

    def learn(self, eps: Tensor, holds: Tensor, which: Tensor) -> None:
        """Narrow the brackets of the inputs `which` (indices) by the answers `holds` (bool) at their `eps`."""
        self.low[which] = torch.where(holds, torch.maximum(self.low[which], eps), self.low[which])
        self.high[which] = torch.where(holds, self.high[which], torch.minimum(self.high[which], eps))
