"""A certificate, and how one is made for a network, an input box and a property.

Invariant: a certificate that `check` accepts proves its statement, whatever made it; `prove` returns only such.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.bounds.optimize import Ascent
from vertex_softmax.certificate import checker
from vertex_softmax.certificate.prove import Case, Prover
from vertex_softmax.errors import OutOfTimeError
from vertex_softmax.files import write_whole
from vertex_softmax.graph.ir import Graph
from vertex_softmax.search.branch_and_bound import Search

RULES: tuple[tuple[str, ...], ...] = (("affine",), ("affine", "vertex"))
"""By which rules boxes are made: if the first are not enough, the second."""

STATEMENT = (
    "For every real input x with lower ≤ x ≤ upper, number by number, the network written in this file (graph: its ops "
    "in order, each number standing for all reals within 2^-46 of it relatively, evaluated in real arithmetic; masked "
    "keys have weight 0) has an output y for which none of the cases of `property` holds: in every case some row has "
    "rows y > bound. The network is what Vertex reads from the model file of the given SHA-256; that reading, not this "
    "proof, is what connects the two."
)


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A proof as a file: JSON header and safetensors."""

    data: bytes = dataclasses.field(repr=False)
    margin: float
    """what the checker proved when it was made"""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        write_whole(Path(path), self.data)

    def check(self) -> checker.Verdict:
        """Replay it."""
        return checker.check(self.data)


@dataclasses.dataclass(frozen=True)
class Proof:
    """What came of an attempt."""

    certificate: Certificate | None
    """None if the margin is not positive"""
    margins: tuple[float, ...]
    """proved, of every case"""
    seconds: float

    @property
    def margin(self) -> float:
        """The least of them."""
        return min(self.margins, default=-math.inf)


def prove(
    graph: Graph,
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
    cases: Sequence[Case],
    *,
    ascent: Ascent | None = None,
    pieces: int = 2,
    best: bool = False,
    search: Search | None = None,
    deadline: float | None = None,
    about: dict[str, Any] | None = None,
) -> Proof:
    """Exclude all cases over a box of inputs of the graph's shape, rigorously.

    `search`: branch where nothing else is enough. `best`: go on to the best bound of the ascent where less would do.
    `deadline`, on time.perf_counter's clock, is kept between steps. `about` goes into the header: the model's hash, its
    name, how it was asked for.
    """
    begin = time.perf_counter()
    tried: list[Prover] = []
    for rules in RULES:
        if deadline is not None and time.perf_counter() > deadline:
            raise OutOfTimeError("the time is spent before a proof was found")
        prover = Prover(graph, lower, upper, rules, deadline)
        prover.state(cases)
        for rule in ("affine", "vertex"):
            prover.by_rule(rule)
        if prover.open() or best:
            prover.by_ascent(ascent or Ascent(), pieces, everything=best)
        if search is not None and rules == RULES[-1]:
            prover.by_branching(search, pieces)
        tried.append(prover)
        if not prover.open():
            break
    chosen = max(tried, key=lambda prover: min(prover.margins, default=-math.inf))
    margins = tuple(float(x) for x in chosen.margins)
    certificate = None
    if margins and min(margins) > 0:
        data = chosen.certificate(**header(), **(about or {}))
        verdict = checker.check(data)
        margins = margins if verdict.accepted else (*margins, verdict.margin)
        certificate = Certificate(data, verdict.margin) if verdict.accepted else None
    return Proof(certificate, margins, time.perf_counter() - begin)


def header() -> dict[str, Any]:
    """What every certificate says of itself."""
    from vertex_softmax import __version__

    return {"tool": f"vertex-softmax {__version__}", "statement": STATEMENT}
