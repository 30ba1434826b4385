"""Certificates, and how one is made for a network, input sets and a property.

Invariant: a certificate that `check` accepts proves its statement, whoever made it. `prove` returns only certificates
of which every step and every leaf was proved by the checker's own functions, over the numbers that are in the file.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.certificate import checker
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.narrowed_proofs import Narrowing, by_narrowing
from vertex_softmax.certificate.planting import Searched
from vertex_softmax.certificate.prove import Prover, written
from vertex_softmax.certificate.room import require_room
from vertex_softmax.certificate.score_boxes import ScoreProof, are_enough, are_many, are_to_be_centred
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.halving import FEW
from vertex_softmax.methods.options import MOST_ATTENTIONS_BY_PASSES
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rules import RowRule
from vertex_softmax.sets.region import BoxRegion, Region

RULES: tuple[tuple[RowRule, ...], ...] = ((RowRule.AFFINE,), (RowRule.AFFINE, RowRule.VERTEX))
"""The rules by which boxes are made, in the order in which they are tried."""

LONGER = 4
"""The factor on the number of ascent steps in a second attempt."""

BRIEF = Ascent(seconds=20.0)
"""The ascent over the boxes of a forward proof whose form is not enough, after a method of one pass: `crown` has a rule
for rows of attention that the checker does not know, and this reaches as far."""


@dataclasses.dataclass(frozen=True, eq=False)
class CertificatePart:
    """A set of inputs, and the cases that must not happen for any input in it."""

    lower: NDArray[np.float64]
    """(*input shape): of the box, or of a box around the set"""
    upper: NDArray[np.float64]
    cases: Sequence[ForbiddenCase]
    region: Region | None = None
    """the set, a batch of one, if it is not that box; of a kind that `input_sets.checked_set` knows"""
    searches: tuple[Searched, ...] = ()
    """searches over the set, each of which has excluded some of the cases: the proof begins with their trees"""
    numbers: tuple[int, ...] | None = None
    """if this is one of several parts in the place of another (halved_parts.py): which of its cases these are"""

    def weighed(self) -> list[ForbiddenCase]:
        """The cases, with the weights that the searches have used where they have none."""
        weights = {case: own for searched in self.searches for case, own in searched.weights.items()}
        return [
            case._replace(weights=weights[i]) if case.weights is None and i in weights else case
            for i, case in enumerate(self.cases)
        ]

    @property
    def decided(self) -> set[int]:
        """The cases that searches have excluded: by a tree, or over a narrower set."""
        return {case for searched in self.searches for k, case in searched.cases.items() if searched.record.decides(k)}

    @property
    def was_narrowed(self) -> bool:
        """Whether a search has narrowed the set of a case: then so does the proof, before it tries anything else."""
        return any(searched.record.narrowed for searched in self.searches)

    @classmethod
    def over(cls, region: Region, cases: Sequence[ForbiddenCase]) -> CertificatePart:
        """The part of a region of one input."""
        lower, upper = (end[0].cpu().numpy() for end in region.box)
        return cls(lower, upper, cases, region)


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A proof as the bytes of a file: a JSON header and safetensors."""

    data: bytes = dataclasses.field(repr=False)
    margin: float
    """the margin that the checker's functions proved when the certificate was made"""

    def __repr__(self) -> str:
        return f"Certificate(margin {self.margin:.6g}, {len(self.data):,} bytes)"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file atomically, and return its path."""
        return write_whole(Path(path), self.data)

    def check(self) -> checker.Finding:
        """Check the certificate again."""
        return checker.check(self.data)


@dataclasses.dataclass(frozen=True)
class Proof:
    """The result of an attempt to prove a property."""

    certificate: Certificate | None
    """None if there is no proof"""
    margins: tuple[tuple[float, ...], ...]
    """the proved margin of every case of every part"""
    seconds: dict[str, float]
    """the times of the stages: `prove`, and `check` if the file was checked again because a margin is very small"""
    reason: str = ""
    """why there is no certificate, if that is not just a margin that is not positive"""

    @property
    def margin(self) -> float:
        """The least of the margins."""
        return min((x for part in self.margins for x in part), default=-math.inf)


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much work to put into a proof."""

    ascent: Ascent = dataclasses.field(default_factory=Ascent)
    pieces: int = 2
    """into how many pieces the affine rule cuts the range of lse(s)"""
    best: bool = False
    """compute the best bound of the ascent for every case, also where a smaller one is already positive"""
    search: Search | None = dataclasses.field(default_factory=lambda: Search(seconds=20.0))
    """the limits of branch and bound, which is tried last; None: do not branch"""
    deadline: float | None = None
    """when to give up, on the clock of time.perf_counter; it is looked at between steps"""
    memory: Memory = dataclasses.field(default_factory=Memory)
    """what a proof may take; NotEnoughMemoryError if it may need more"""
    brief: bool = False
    """whether it ends where one kind of boxes and one ascent are not enough: whoever asks takes smaller sets then"""
    lean: bool = False
    """whether boxes that take less time are tried first, where there are many scores: proved margins are smaller"""


HALF = Ascent(steps=20)
"""The ascent over one of many small boxes: another half is sooner bounded than another forty steps are done."""
DEEPEST = 20
"""How often a part over a box of a search is halved again at most."""

Report = Callable[[str], None]
"""Called with a sentence about the progress of a proof."""


@full_precision()
def prove(
    graph: Graph,
    parts: Sequence[CertificatePart],
    effort: Effort | None = None,
    *,
    about: dict[str, Any] | None = None,
    report: Report | None = None,
) -> Proof:
    """Try to prove that no case of any part happens. `about` goes into the header: the model's hash and name.

    Raises NotEnoughMemoryError before anything is computed if that may need more than `Effort.memory`.
    """
    begin, effort = time.perf_counter(), effort or Effort()
    require_room(graph, effort.memory, forward=forward_first(graph), search=effort.search)
    try:
        proved = [_prove_halved(graph, part, effort, report or (lambda _: None)) for part in parts]
    except checker.Rejected as error:  # the checker could not bound the network at all
        return Proof(None, ((-math.inf,),), {"prove": time.perf_counter() - begin}, str(error))
    margins = tuple(
        tuple(min(cases) for cases in zip(*(prover.margins.tolist() for prover in each), strict=True))
        for each in proved
    )
    provers = [prover for each in proved for prover in each]
    seconds = {"prove": time.perf_counter() - begin}
    if not provers or not min(prover.margin for prover in provers) > 0:
        return Proof(None, margins, seconds)
    data = written(provers, {**_header(), **(about or {})})
    margin = min(prover.margin for prover in provers)
    if not all(prover.sure for prover in provers):
        finding = checker.check(data)
        seconds["check"], margin = finding.seconds, finding.margin
        if not finding.accepted:
            return Proof(None, (*margins, (margin,)), seconds, finding.reason)
    return Proof(Certificate(data, margin), margins, seconds)


def _prove_halved(graph: Graph, part: CertificatePart, effort: Effort, report: Report) -> list[Prover]:
    """The provers of boxes that together cover a part, usually of the part alone.

    A part that a search has cut out of a larger one (`numbers`) is bounded by the search otherwise than by the checker,
    and as near to its goal as was enough. So it is cut into halves, and these again, until the checker has each of them
    proved. The same is done to a box in which few numbers vary, if its bounds alone do not prove it.
    """
    search = effort.search
    if search is None or part.searches or not (part.numbers is not None or _is_to_be_halved(part, search)):
        return [_prove(graph, part, effort, report)]
    provers: list[Prover] = []
    if part.numbers is None:
        provers = [_prove(graph, part, dataclasses.replace(effort, search=None), report)]
        if not provers[0].open():
            return provers
        report(f"halving the input, {len(provers[0].open())} of {len(part.cases)} cases open")
    halves = _halves(graph, part, effort, search, report)
    if part.numbers is None and any(prover.open() for prover in halves):
        return [_prove(graph, part, effort, report)]
    return halves


def _is_to_be_halved(part: CertificatePart, search: Search) -> bool:
    """Whether a part that is still whole is a box in which so few numbers vary that halving it ends."""
    is_box = part.region is None or isinstance(part.region, BoxRegion)
    return search.halving > 0 and is_box and 0 < int((part.lower < part.upper).sum()) <= FEW


def _halves(graph: Graph, part: CertificatePart, effort: Effort, search: Search, report: Report) -> list[Prover]:
    """The provers of boxes that cover a part, cut until none is open; if it comes to no end, the last one is open."""
    ascent = HALF if effort.ascent.steps else effort.ascent
    brief = dataclasses.replace(effort, search=None, best=False, ascent=ascent, brief=True)
    until = math.inf if search.seconds is None else time.perf_counter() + search.halving * search.seconds
    left, provers = [(part.lower, part.upper, 0)], list[Prover]()
    for number in itertools.count(1):
        if not left:
            break
        lower, upper, depth = left.pop()
        prover = _prove(graph, dataclasses.replace(part, lower=lower, upper=upper, region=None), brief, report)
        edge = int((upper - lower).argmax())
        middle = lower.flat[edge] + (upper.flat[edge] - lower.flat[edge]) / 2
        spent = number >= search.domains or time.perf_counter() > until or depth >= DEEPEST
        if not prover.open() or spent or not lower.flat[edge] < middle < upper.flat[edge]:
            provers.append(prover)
            if prover.open():  # there is no proof, whatever becomes of the others
                break
            continue
        below, above = upper.copy(), lower.copy()
        below.flat[edge] = above.flat[edge] = middle
        left += [(lower, below, depth + 1), (above, upper, depth + 1)]
    return provers


def _prove(graph: Graph, part: CertificatePart, effort: Effort, report: Report) -> Prover:
    """The prover with a forward proof over one part, if there is one; else of those that RULES give the best.

    After a forward proof no passes are made for boxes: they reach less far, and take minutes to say so.
    """
    best = _prove_forward(graph, part, effort, report) if forward_first(graph) else None
    if best is not None:
        return best
    if effort.lean and not effort.best and are_many(graph):
        best = _prove_lean(graph, part, effort, report)
        if not best.open():
            return best
    for rules in RULES[:1] if effort.brief else RULES:
        if effort.deadline is not None and time.perf_counter() > effort.deadline:
            raise OutOfTimeError("the time is spent before a proof was found")
        prover = Prover(graph, part.lower, part.upper, rules, effort.deadline, region=part.region)
        prover.memory = effort.memory
        prover.state(part.weighed())
        for rule in (RowRule.AFFINE, RowRule.VERTEX):
            prover.by_rule(rule)
        report(f"boxes proved, {len(prover.open())} of {len(part.cases)} cases open")
        _by_search(prover, part, report)
        if part.was_narrowed:
            _by_narrowing(prover, part, effort, report, search=rules == RULES[-1])
        if prover.open() or effort.best:
            prover.by_ascent(effort.ascent, effort.pieces, everything=effort.best)
        if prover.open() and not (effort.best or effort.brief):
            longer = dataclasses.replace(effort.ascent, steps=LONGER * effort.ascent.steps)
            prover.by_ascent(longer, effort.pieces)
        if not part.was_narrowed:
            _by_narrowing(prover, part, effort, report, search=rules == RULES[-1])
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


def _prove_lean(graph: Graph, part: CertificatePart, effort: Effort, report: Report) -> Prover:
    """The prover over boxes that take less time, with what was found already: nothing is searched again.

    Scores are centred only where intervals are not enough, and a tree is proved only where some of its leaves prove.
    """
    prover = Prover(
        graph,
        part.lower,
        part.upper,
        deadline=effort.deadline,
        scores=ScoreProof.INTERVALS,
        shared=not part.was_narrowed,  # what was narrowed was so by boxes that wider ones do not reach
        region=part.region,
    )
    prover.memory = effort.memory
    prover.state(part.weighed())
    prover.by_rule(RowRule.AFFINE)
    report(f"lean boxes proved, {len(prover.open())} of {len(part.cases)} cases open")
    centred = are_to_be_centred(prover, part.searches)
    if centred:
        prover.centre_scores()
        prover.by_rule(RowRule.AFFINE)
        report(f"scores centred, {len(prover.open())} of {len(part.cases)} cases open")
    if part.was_narrowed:
        _by_narrowing(prover, part, effort, report, search=False, again=False)
    if prover.open() and (not centred or are_enough(prover, part.searches)):  # else that was tried already
        _by_search(prover, part, report)
    elif effort.ascent.steps > 0 and set(prover.open()) - part.decided:
        prover.by_ascent(effort.ascent, effort.pieces)
    return prover


def _by_search(prover: Prover, part: CertificatePart, report: Report) -> None:
    """The cases that are open and that a search has excluded, by its trees."""
    if not part.searches or not prover.open():
        return
    for searched in part.searches:
        prover.by_search(searched.only(prover.open()))
    report(f"trees proved, {len(prover.open())} of {len(part.cases)} cases open")


# Six: whose cases, how much work, who hears of it, and what is done besides what searches have done.
def _by_narrowing(
    prover: Prover, part: CertificatePart, effort: Effort, report: Report, *, search: bool, again: bool = True
) -> None:
    """The cases that are open, in rounds over narrower sets; what they leave is searched anew only if that is said.

    again: whether sets are narrowed anew where no search has done it, or where what it did does not prove.
    """
    if effort.search is None or not prover.open():
        return
    count = len(prover.cases)
    report(f"narrowing, {len(prover.open())} of {count} cases open")
    trees = {case: tree for searched in part.searches for case, tree in searched.narrowed_trees().items()}
    own = effort.search if search else None
    by_narrowing(prover, Narrowing(effort.ascent, effort.pieces, own, trees, part.searches, again))
    report(f"narrowed, {len(prover.open())} of {count} cases open")


def forward_first(graph: Graph) -> bool:
    """Whether forward proofs reach farther than passes: with norms, and with many attentions (docs/norms.md)."""
    ops = [node.op for node in graph.nodes()]
    many = sum(isinstance(op, Attention) for op in ops) > MOST_ATTENTIONS_BY_PASSES
    return many or any(isinstance(op, Normalize) for op in ops)


def _prove_forward(graph: Graph, part: CertificatePart, effort: Effort, report: Report) -> Prover | None:
    """The prover with a forward proof; None if the checker cannot make one."""
    try:
        prover = Prover(graph, part.lower, part.upper, deadline=effort.deadline, forward=True, region=part.region)
    except checker.Rejected:
        return None
    prover.memory = effort.memory
    prover.state(part.weighed())
    prover.by_form()
    prover.by_last_norm()
    still = f"{len(prover.open())} of {len(part.cases)} cases open"
    report(f"boxes proved from the input on, margin {prover.margin:.4g}, {still}")
    if prover.open():
        prover.by_rule(RowRule.AFFINE)
    _by_search(prover, part, report)
    if effort.best or prover.open():  # a pass is quick beside the forward proof
        ascent = effort.ascent if effort.best or effort.ascent.steps > 0 else BRIEF
        prover.by_ascent(ascent, effort.pieces, everything=effort.best)
    if prover.open() and effort.ascent.steps > 0 and effort.search is not None:  # not after a method of one pass
        _by_narrowing(prover, part, effort, report, search=True)
    if prover.open() and effort.ascent.steps > 0 and effort.search is not None:
        report(f"branching, {len(prover.open())} of {len(part.cases)} cases open")
        prover.by_branching(effort.search, effort.pieces)
    return prover


def _header() -> dict[str, Any]:
    """The entries that the header of every certificate has."""
    from vertex_softmax import __version__

    return {"tool": f"vertex-softmax {__version__}", "statement": checker.STATEMENT}
