"""The conjunctions of a property that have to be excluded, and what is known of each.

A conjunction C y ≤ d is excluded by one row, or by a mix λ ≥ 0 of rows, with λ·C y > λ·d everywhere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vertex_softmax.graph.ir import Graph
from vertex_softmax.specs.property import Property


class Target:
    """One conjunction of one case. Bounds only rise, and so does the guard that they have to clear."""

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
        """the weights (m,) of rows that are mixes of the others, in their order after the others"""
        self.guard = 0.0
        """how far above 0 the best bound has to be: more than rounding can have added"""

    @property
    def excluded(self) -> bool:
        """Whether the conjunction is true nowhere in the box of its case."""
        return self.best > self.guard

    def learn(self, bounds: Tensor) -> None:
        """Take lower bounds (m,) of C y into account; NaN and infinities are no bounds."""
        known = torch.where(bounds.isfinite(), bounds - self.d, torch.full_like(bounds, -torch.inf))
        self.rows = torch.maximum(self.rows, known)
        self.learn_best(max(self.rows.tolist(), default=-math.inf))

    def learn_best(self, bound: float) -> None:
        """Take a lower bound of C y − d of some row, or of λ·C y − λ·d of a mix, into account."""
        self.best = max(self.best, bound)

    def require(self, guard: float) -> None:
        """Ask for at least this much above 0."""
        self.guard = max(self.guard, guard)

    def weights_of(self, row: int) -> Tensor:
        """A row as a mix of the conjunction's own rows: weights (m,) ≥ 0."""
        own = len(self.d) - len(self.mixes)
        if row >= own:
            return self.mixes[row - own]
        return torch.eye(own, dtype=self.d.dtype, device=self.d.device)[row]

    def add_mix(self, weights: Tensor) -> None:
        """Add the mix of the rows by weights (m,) as a row of its own, of which nothing is known yet."""
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
