"""How the boxes of the scores of attentions are proved, and whether the cheapest are enough for a search's trees.

Invariant: nothing is proved here: a trial says only whether a proof is worth its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops.attention import Attention

if TYPE_CHECKING:
    from vertex_softmax.certificate.planting import Searched
    from vertex_softmax.certificate.prove import Prover

TRIED = 4
"""About so many leaves of a tree are tried."""
FEW = 32
"""Of a tree of so many leaves all are tried: their bounds are the proof, if they are enough."""
MANY = 64
"""A tree of more leaves takes so long to prove that scores are centred for it at once."""


class ScoreProof(IntEnum):
    """Each takes longer than the one before."""

    INTERVALS = 0
    """from the boxes of the factors"""
    CENTRED = 1
    """the same, and by passes less their means"""
    ALL = 2
    """by passes, both themselves and less their means"""


def are_many(graph: Graph) -> bool:
    """Whether passes for all scores take a large share of the time that boxes take: there are many beside values."""
    attentions = [node for node in graph.nodes() if isinstance(node.op, Attention)]
    return any(2 * node.inputs[0].shape[-1] > node.shape[-1] for node in attentions)


def are_to_be_centred(prover: Prover, searches: Sequence[Searched]) -> bool:
    """Whether passes are worth their time for the scores, whose boxes are intervals, less their means."""
    large = any(len(each.record.leaves) > MANY for each in searches)
    return bool(prover.open()) and (large or not are_enough(prover, searches))


def are_enough(prover: Prover, searches: Sequence[Searched]) -> bool:
    """Whether every case that is open has a tree, some leaves of which prove it over the boxes that are proved now.

    Not for searches that have narrowed the set: their rounds begin with one bound of the whole.
    """
    trees = {case: (each, k) for each in searches for k, case in each.cases.items() if k not in each.record.narrowed}
    return all(case in trees and _proves(prover, *trees[case], case) for case in prover.open())


def _proves(prover: Prover, searched: Searched, objective: int, case: int) -> bool:
    """Whether a tree proves its case, as far as some of its leaves tell; all of them, if they are few."""
    planted = prover.planter.planted(searched, objective, case, len(prover.header["proofs"]))
    if planted is None:
        return False
    count = len(planted.ordered)
    some = range(0, count, 1 if count <= FEW else max(1, count // TRIED))
    known = [None if k in some else math.inf for k in range(count)]
    whole = {**planted.tree, "fitted": {}}  # to fit ellipsoids takes longer
    bounds = prover.leaf_bounds(whole, planted.arrays, case, known)
    if len(some) == count and not planted.tree["fitted"]:
        planted.bounds.update((id(leaf), bound) for leaf, bound in zip(planted.ordered, bounds, strict=True))
    return min(bounds) > float(prover.limits_of([case])[0])
