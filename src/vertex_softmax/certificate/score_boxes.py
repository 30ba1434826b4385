"""How the boxes of the scores of attentions are proved, and whether the cheapest are enough for a search's trees.

Invariant: nothing is proved here: a trial says only whether a proof is worth its time.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vertex_softmax.certificate.planting import Searched
    from vertex_softmax.certificate.prove import Prover

TRIED = 12
"""About so many leaves of a tree are tried."""


class ScoreBoxes(IntEnum):
    """Each takes longer than the one before."""

    INTERVALS = 0
    """from the boxes of the factors"""
    CENTRED = 1
    """the same, and by passes less their means"""
    ALL = 2
    """by passes, both themselves and less their means"""


def are_enough(prover: Prover, searched: Searched) -> bool:
    """Whether some leaves of the tree of every open case prove it over the boxes that are proved now.

    Not for searches that have narrowed the set: their rounds begin with one bound of the whole.
    """
    for objective, case in searched.only(prover.open()).cases.items():
        leaves = [leaf for leaf in searched.record.leaves if leaf.objective == objective]
        if not leaves or objective in searched.record.narrowed:
            return False
        tree, arrays = prover.planter.tree(searched, leaves, "tried")
        some = range(0, len(leaves), max(1, len(leaves) // TRIED))
        known = [None if k in some else math.inf for k in range(len(leaves))]
        bounds = prover.leaf_bounds({**tree, "fitted": {}}, arrays, case, known)  # to fit ellipsoids takes longer
        if not min(bounds) > float(prover.limits_of([case])[0]):
            return False
    return True
