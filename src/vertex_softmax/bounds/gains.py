"""What splits have gained so far in a tree, and what a further split may be expected to gain.

No bound depends on anything here: gains only decide what is split next.

A candidate's cost is an estimate of what a bound loses at its number (candidates.py). Each side of a tried split gains
some share of that cost. The mean share over a number's earlier trials, kept for each objective and each side, predicts
the gain of its next split; a number with enough trials is split without another one. In mixed-integer programming this
is called reliability branching with pseudo-costs.
"""

from __future__ import annotations

import dataclasses
import math

from vertex_softmax.bounds.candidates import Candidate
from vertex_softmax.graph.ir import Node

Key = tuple[int, Node, int, bool]
"""A number of the network for one objective: objective, node, flat index, and whether it is an inner number."""


@dataclasses.dataclass
class _Shares:
    """Sums over the trials of a split of the shares of the cost that its two sides gained."""

    trials: int = 0
    above: float = 0.0
    below: float = 0.0

    def add(self, above: float, below: float) -> None:
        self.trials += 1
        self.above += above
        self.below += below


class Gains:
    """The shares of the cost that splits have gained, by number and by node."""

    def __init__(self, reliable: int) -> None:
        self.reliable = reliable
        """after this many trials a number's mean share is relied on"""
        self._numbers: dict[Key, _Shares] = {}
        self._nodes: dict[tuple[Node, bool], _Shares] = {}

    def learn(self, objective: int, candidate: Candidate, above: float, below: float) -> None:
        """Take in what the two sides of a split gained."""
        if not (candidate.cost > 0 and math.isfinite(above) and math.isfinite(below)):
            return
        key = (objective, candidate.node, candidate.place, candidate.inner)
        shares = above / candidate.cost, below / candidate.cost
        self._numbers.setdefault(key, _Shares()).add(*shares)
        self._nodes.setdefault((candidate.node, candidate.inner), _Shares()).add(*shares)

    def expected(self, objective: int, candidate: Candidate) -> tuple[float, float]:
        """The gains to expect on the two sides: from the number's own trials, else from its node's, else half the cost
        each.
        """
        known = self._numbers.get((objective, candidate.node, candidate.place, candidate.inner))
        known = known or self._nodes.get((candidate.node, candidate.inner))
        if known is None:
            return candidate.cost / 2, candidate.cost / 2
        return candidate.cost * known.above / known.trials, candidate.cost * known.below / known.trials

    def is_reliable(self, objective: int, candidate: Candidate) -> bool:
        """Whether the candidate's number was tried often enough to rely on its expected gain."""
        known = self._numbers.get((objective, candidate.node, candidate.place, candidate.inner))
        return known is not None and known.trials >= self.reliable
