"""The searches of a run that may become proofs: branch and bound over the box of one input, with its trees.

Invariant: a search that is kept is believed by nobody: whoever writes a certificate proves every leaf of its trees.
"""

from __future__ import annotations

import dataclasses

import torch

from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import Record
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops.rules import Rules
from vertex_softmax.sets.region import BoxRegion, Region


@dataclasses.dataclass(frozen=True, eq=False)
class KeptSearch:
    """A search for all margins of one input, in the order of its targets."""

    question: Question
    rules: Rules
    record: Record


@dataclasses.dataclass(frozen=True, eq=False)
class KeptSearches:
    """All of them."""

    found: list[KeptSearch] = dataclasses.field(default_factory=list)

    def record(self, graph: Graph, bounded: Graph, region: Region) -> Record | None:
        """What a search over a set is told to; None if its tree would be of no use to a proof about the graph.

        bounded: the graph that the search is about. A proof has the nodes of the graph itself, on the CPU.
        """
        alone = isinstance(region, BoxRegion) and len(region.box.lower) == 1
        return Record() if alone and bounded is graph and graph.device.type == "cpu" else None

    def add(self, question: Question, rules: Rules, record: Record) -> None:
        """Keep a search that has ended."""
        self.found.append(KeptSearch(question.on_parts(), rules, record))

    def over(self, region: Region) -> list[KeptSearch]:
        """Those over this box, of one input."""
        if not isinstance(region, BoxRegion):
            return []
        return [each for each in self.found if _is_same(each.question.given, region)]


def _is_same(one: Region, other: BoxRegion) -> bool:
    return isinstance(one, BoxRegion) and all(torch.equal(*ends) for ends in zip(one.box, other.box, strict=True))
