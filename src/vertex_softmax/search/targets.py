"""The conjunctions of a property that have to be excluded, and the bounds known for each.

Invariant: a conjunction C y ≤ d is excluded over a box if one row of it, or one mix λ ≥ 0 of its rows, has λ·C y > λ·d
everywhere in the box.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vertex_softmax.graph.ir import Graph
from vertex_softmax.specs.property import Property


class Target:
    """One conjunction of one case, with m rows; its bounds only rise, and so does the guard they have to exceed."""

    def __init__(self, case: int, number: int, C: Tensor, d: Tensor) -> None:
        self.case, self.number = case, number
        self.C = C
        """(m, *output shape)"""
        self.d = d
        """(m,)"""
        self.rows = torch.full_like(d, -torch.inf)
        """(m,): lower bounds of C y − d"""
        self.best = -math.inf
        """the best lower bound of λ·C y − λ·d over all rows and mixes"""
        self.mixes: list[Tensor] = []
        """the weights (m,) of the rows that are mixes; these rows follow the conjunction's own, in this order"""
        self.guard = 0.0
        """how far above 0 the best bound has to be, which is more than rounding can have added"""

    @property
    def excluded(self) -> bool:
        """Whether the conjunction is proved to hold nowhere in the box of its case."""
        return self.best > self.guard

    def learn(self, bounds: Tensor) -> None:
        """Take in lower bounds (m,) of C y; NaN and infinite ones are ignored."""
        known = torch.where(bounds.isfinite(), bounds - self.d, torch.full_like(bounds, -torch.inf))
        self.rows = torch.maximum(self.rows, known)
        self.learn_best(max(self.rows.tolist(), default=-math.inf))

    def learn_best(self, bound: float) -> None:
        """Take in a lower bound of C y − d of some row, or of λ·C y − λ·d of a mix."""
        self.best = max(self.best, bound)

    def require(self, guard: float) -> None:
        """Raise the guard to at least this value."""
        self.guard = max(self.guard, guard)

    def weights_of(self, row: int) -> Tensor:
        """The weights (m,) ≥ 0 of the conjunction's own rows that make a row."""
        own = len(self.d) - len(self.mixes)
        if row >= own:
            return self.mixes[row - own]
        return torch.eye(own, dtype=self.d.dtype, device=self.d.device)[row]

    def add_mix(self, weights: Tensor) -> None:
        """Add the mix of the rows by weights (m,) as a row of its own, without a bound yet."""
        self.mixes.append(weights)
        self.C = torch.cat([self.C, torch.tensordot(weights, self.C, 1).unsqueeze(0)])
        self.d = torch.cat([self.d, (weights @ self.d).unsqueeze(0)])
        self.rows = torch.cat([self.rows, torch.full_like(self.rows[:1], -torch.inf)])


def targets_of(prop: Property, graph: Graph) -> list[Target]:
    """Every conjunction of every case, with rows shaped like the graph's output, in its precision on its device."""
    found = []
    for i, case in enumerate(prop.cases):
        for j, conjunction in enumerate(case.conjunctions):
            C, d = (x.to(graph.device) for x in conjunction.matrix(prop.outputs, graph.dtype))
            found.append(Target(i, j, C.reshape(-1, *graph.output.shape), d))
    return found
