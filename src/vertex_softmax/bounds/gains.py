"""What splits have gained so far in a tree, and what a split may be expected to gain.

No bound depends on anything here: gains only decide what is split next.

A candidate's cost says what a bound may lose at it (candidates.py). Each side of a tried split has gained some share of
that cost; the mean share of a number's earlier trials, for each objective and side, foretells the gain of the next one.
A number that was tried often enough is split without a trial. (In mixed-integer programming: reliability branching with
pseudo-costs.)
"""

from __future__ import annotations

import dataclasses
import math

from vertex_softmax.bounds.candidates import Candidate
from vertex_softmax.graph.ir import Node

Key = tuple[int, Node, int, bool]
"""Objective, node, place, and whether the number is an inner one."""


@dataclasses.dataclass
class _Shares:
    """The shares of the cost that the two sides of a split gained, added up over the trials."""

    trials: int = 0
    above: float = 0.0
    below: float = 0.0

    def add(self, above: float, below: float) -> None:
        self.trials += 1
        self.above += above
        self.below += below


class Gains:
    """Shares of the cost that splits have gained, by number and by node."""

    def __init__(self, reliable: int) -> None:
        self.reliable = reliable
        """after so many trials a number's mean share is relied on"""
        self._numbers: dict[Key, _Shares] = {}
        self._nodes: dict[tuple[Node, bool], _Shares] = {}

    def learn(self, objective: int, candidate: Candidate, above: float, below: float) -> None:
        """Note what the two sides of a split gained."""
        if not (candidate.cost > 0 and math.isfinite(above) and math.isfinite(below)):
            return
        key = (objective, candidate.node, candidate.place, candidate.inner)
        shares = above / candidate.cost, below / candidate.cost
        self._numbers.setdefault(key, _Shares()).add(*shares)
        self._nodes.setdefault((candidate.node, candidate.inner), _Shares()).add(*shares)

    def expected(self, objective: int, candidate: Candidate) -> tuple[float, float]:
        """What the two sides may gain: by the number's own trials, else by those of its node, else half the cost."""
        known = self._numbers.get((objective, candidate.node, candidate.place, candidate.inner))
        known = known or self._nodes.get((candidate.node, candidate.inner))
        if known is None:
            return candidate.cost / 2, candidate.cost / 2
        return candidate.cost * known.above / known.trials, candidate.cost * known.below / known.trials

    def is_reliable(self, objective: int, candidate: Candidate) -> bool:
        """Whether the number was tried often enough."""
        known = self._numbers.get((objective, candidate.node, candidate.place, candidate.inner))
        return known is not None and known.trials >= self.reliable
