"""A certificate, and how one is made for a network, input boxes and a property.

Invariant: a certificate that `check` accepts proves its statement, whatever made it; `prove` returns only such.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.certificate import checker
from vertex_softmax.certificate.prove import ForbiddenCase, Prover, written
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.graph.ir import Graph

RULES: tuple[tuple[str, ...], ...] = (("affine",), ("affine", "vertex"))
"""By which rules boxes are made: if the first are not enough, the second."""

LONGER = 4
"""How many times as many steps are taken where the first were not enough."""


class Part(NamedTuple):
    """A box of inputs of the graph's shape, and the cases that must not happen there."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    cases: Sequence[ForbiddenCase]


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A proof as a file: JSON header and safetensors."""

    data: bytes = dataclasses.field(repr=False)
    margin: float
    """what the checker proved when it was made"""

    def __repr__(self) -> str:
        return f"Certificate(margin {self.margin:.6g}, {len(self.data):,} bytes)"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file, whole or not at all."""
        return write_whole(Path(path), self.data)

    def check(self) -> checker.Verdict:
        """Replay it."""
        return checker.check(self.data)


@dataclasses.dataclass(frozen=True)
class Proof:
    """What came of an attempt."""

    certificate: Certificate | None
    """None if the margin is not positive"""
    margins: tuple[tuple[float, ...], ...]
    """proved, of every case of every part"""
    seconds: dict[str, float]
    """`prove`, and `check`: the replay of what was written"""
    reason: str = ""
    """why there is none, beyond the margin"""

    @property
    def margin(self) -> float:
        """The least of them."""
        return min((x for part in self.margins for x in part), default=-math.inf)


@dataclasses.dataclass(frozen=True)
class Effort:
    """How far to go for a proof."""

    ascent: Ascent = dataclasses.field(default_factory=Ascent)
    pieces: int = 2
    best: bool = False
    """go on to the best bound of the ascent where less would do"""
    search: Search | None = dataclasses.field(default_factory=lambda: Search(seconds=20.0))
    """branch where nothing else is enough; None: do not"""
    deadline: float | None = None
    """on time.perf_counter's clock; kept between steps"""


Report = Callable[[str], None]


def prove(
    graph: Graph,
    parts: Sequence[Part],
    effort: Effort | None = None,
    *,
    about: dict[str, Any] | None = None,
    report: Report | None = None,
) -> Proof:
    """Exclude all cases of all parts, rigorously. `about` goes into the header: the model's hash, its name."""
    begin = time.perf_counter()
    try:
        provers = [_prove(graph, part, effort or Effort(), report or (lambda _: None)) for part in parts]
    except checker.Rejected as error:  # the checker could not bound the network at all
        return Proof(None, ((-math.inf,),), {"prove": time.perf_counter() - begin}, str(error))
    margins = tuple(tuple(float(x) for x in prover.margins) for prover in provers)
    seconds = {"prove": time.perf_counter() - begin}
    if not provers or not min(prover.margin for prover in provers) > 0:
        return Proof(None, margins, seconds)
    data = written(provers, {**_header(), **(about or {})})
    verdict = checker.check(data)
    seconds["check"] = verdict.seconds
    if not verdict.accepted:
        return Proof(None, (*margins, (verdict.margin,)), seconds, verdict.reason)
    return Proof(Certificate(data, verdict.margin), margins, seconds)


def _prove(graph: Graph, part: Part, effort: Effort, report: Report) -> Prover:
    """The best of the ways."""
    best: Prover | None = None
    for rules in RULES:
        if effort.deadline is not None and time.perf_counter() > effort.deadline:
            raise OutOfTimeError("the time is spent before a proof was found")
        prover = Prover(graph, part.lower, part.upper, rules, effort.deadline)
        prover.state(part.cases)
        for rule in ("affine", "vertex"):
            prover.by_rule(rule)
        report(f"boxes proved, {len(prover.open())} of {len(part.cases)} cases open")
        if prover.open() or effort.best:
            prover.by_ascent(effort.ascent, effort.pieces, everything=effort.best)
        if prover.open() and not effort.best:
            longer = dataclasses.replace(effort.ascent, steps=LONGER * effort.ascent.steps)
            prover.by_ascent(longer, effort.pieces)
        if effort.search is not None and rules == RULES[-1] and prover.open():
            report(f"branching, {len(prover.open())} of {len(part.cases)} cases open")
            prover.by_branching(effort.search, effort.pieces)
        if best is None or prover.margin > best.margin:
            best = prover
        if not prover.open():
            break
    if best is None:
        raise OutOfTimeError("the time is spent before a proof was found")
    return best


def _header() -> dict[str, Any]:
    """What every certificate says of itself."""
    from vertex_softmax import __version__

    return {"tool": f"vertex-softmax {__version__}", "statement": checker.STATEMENT}
