"""The parts of a certificate over the boxes into which a search has cut the input (bounds/halving.py).

Invariant: for each case, the sets of the parts that have it cover the set of the part that was asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from vertex_softmax.bounds.halving import ClosedBox
from vertex_softmax.certificate.certificate import CertificatePart
from vertex_softmax.certificate.containment import are_covering
from vertex_softmax.certificate.planting import Searched
from vertex_softmax.sets.region import BoxRegion


def parts_of(whole: CertificatePart) -> list[CertificatePart]:
    """The part itself, or in its place a part for each box over which a search has decided some of its cases.

    The cases that no search has decided in this way stay in a part over the whole set.
    """
    halved = _halved(whole)
    if not halved:
        return [whole]
    weighed = whole.weighed()
    left = [case for case in range(len(whole.cases)) if case not in halved]
    parts = []
    if left:
        searches = tuple(_renumbered(searched, left) for searched in whole.searches)
        cases = [whole.cases[case] for case in left]
        parts.append(dataclasses.replace(whole, cases=cases, searches=searches, numbers=tuple(left)))
    decided: dict[int, tuple[ClosedBox, list[int]]] = {}
    for case, closed in halved.items():
        for box in closed:
            decided.setdefault(id(box), (box, []))[1].append(case)
    for box, numbers in decided.values():
        lower, upper = (end.double().numpy().reshape(whole.lower.shape) for end in (box.lower, box.upper))
        parts.append(CertificatePart(lower, upper, [weighed[case] for case in numbers], numbers=tuple(numbers)))
    return parts


def _halved(whole: CertificatePart) -> dict[int, list[ClosedBox]]:
    """By case: the boxes over which a search has decided it, if they cover the set, which has to be a box."""
    found: dict[int, list[ClosedBox]] = {}
    if whole.region is not None and not isinstance(whole.region, BoxRegion):
        return found
    for searched in whole.searches:
        for objective, case in searched.cases.items():
            closed = searched.record.halves.get(objective, [])
            if closed and case not in found and _are_covering(closed, whole):
                found[case] = closed
    return found


def _are_covering(closed: Sequence[ClosedBox], whole: CertificatePart) -> bool:
    lowers, uppers = (
        np.stack([end.double().numpy().reshape(-1) for end in ends])
        for ends in ([box.lower for box in closed], [box.upper for box in closed])
    )
    return are_covering(whole.lower.reshape(-1), whole.upper.reshape(-1), lowers, uppers)


def _renumbered(searched: Searched, left: Sequence[int]) -> Searched:
    """A search whose cases are counted among those that are left."""
    number = {case: k for k, case in enumerate(left)}
    cases = {objective: number[case] for objective, case in searched.cases.items() if case in number}
    weights = {number[case]: weights for case, weights in searched.weights.items() if case in number}
    return dataclasses.replace(searched, cases=cases, weights=weights)
