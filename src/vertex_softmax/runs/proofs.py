"""Certificates for a batch that was certified: each verdict `verified` is proved, or becomes `unknown`.

Invariant: afterwards only inputs with a certificate that the checker accepted have the verdict `verified`; if
`rigorous`, every bound that is reported was proved.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np
import torch

from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.certificate.certificate import Certificate, CertificatePart, Effort, Proof, prove
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.halved_parts import parts_of
from vertex_softmax.certificate.planting import Searched
from vertex_softmax.graph.identity import graph_identity
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS, method_named
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.classes import Classes
from vertex_softmax.runs.kept_searches import KeptSearches
from vertex_softmax.runs.told import Told
from vertex_softmax.sets.region import Region

THIRD_ORDER = (
    "in networks with norms bab may need zonotopes to third order, and the checker has them to second order "
    "(docs/limits.md): a smaller set may have a certificate"
)
"""What is said where a network with norms has no proof after branch and bound."""


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """The inputs that were certified, and the network that answers for them."""

    graph: Graph
    """in double precision on the CPU"""
    regions: tuple[Region, ...]
    """the input sets, in double precision on the CPU: an input's set is the union of those of all regions"""
    classes: Classes
    """the labels, and the classes that count"""
    file: dict[str, object] = dataclasses.field(default_factory=dict)
    """the name and the identity of the model's file, as it was read, and the inputs of it that are joined; empty if
    the model is not a file"""
    searches: KeptSearches = dataclasses.field(default_factory=KeptSearches)
    """those that have decided: a proof begins with their trees"""

    def parts(self, region: Region, cases: Sequence[ForbiddenCase]) -> list[CertificatePart]:
        """What is to be proved over the set of one input, with the searches over that set; several parts cover it."""
        numbers = {k: k for k in range(len(cases))}
        found = (Searched(each.question, each.rules, each.record, numbers) for each in self.searches.over(region))
        return parts_of(dataclasses.replace(CertificatePart.over(region, cases), searches=tuple(found)))


def with_proofs(found: Certification, batch: Batch, options: Options, told: Told, *, rigorous: bool) -> Certification:
    """The certification with a certificate for each verified input."""
    graph, classes = batch.graph, batch.classes
    effort = Effort(options.ascent or Ascent(steps=0), options.pieces, best=rigorous, memory=options.memory)
    if METHODS[method_named(found.method)].branches:
        effort = dataclasses.replace(effort, search=options.search)
    normal = any(isinstance(node.op, Normalize) for node in graph.nodes())
    may_be_third = normal and METHODS[method_named(found.method)].branches
    about = {"model": batch.file or {"sha256": network_hash(graph)}}
    bounds, verdicts, reasons = found.lower.clone(), list(found.verdicts), list(found.reasons)
    seconds = dict(found.seconds)
    certificates: list[Certificate | None] = [None] * len(verdicts)
    for b, verdict in enumerate(found.verdicts):
        told.stage("proofs", b, len(found.verdicts))
        if verdict is not Verdict.VERIFIED and not (rigorous and verdict is Verdict.UNKNOWN):
            if rigorous:
                bounds[b] = torch.where(bounds[b] == math.inf, math.inf, -math.inf)
            continue
        others = classes.targets[b].tolist()
        like = torch.zeros(1, dtype=torch.float64, device=classes.labels.device)
        rows = classes.at(slice(b, b + 1)).objectives(math.prod(graph.output.shape), like)[0].cpu().numpy()
        cases = [ForbiddenCase(row[None], np.zeros(1), np.ones(1)) for row in rows]
        parts = [part for region in batch.regions for part in batch.parts(region.at(slice(b, b + 1)), cases)]
        begin = time.perf_counter()
        own_effort = effort if verdict is Verdict.VERIFIED else dataclasses.replace(effort, search=None)
        proof = prove(graph, parts, own_effort, about=about)
        seconds["proofs"] = seconds.get("proofs", 0.0) + time.perf_counter() - begin
        if rigorous:
            proved = _over_all(proof, parts, len(others))
            bounds[b, others] = torch.tensor(proved, dtype=bounds.dtype, device=bounds.device)
        certificates[b] = proof.certificate
        verdicts[b], reasons[b] = _judged(proof, verdict, reasons[b])
        if verdict is Verdict.VERIFIED and proof.certificate is None and may_be_third:
            reasons[b] = f"{reasons[b]}; {THIRD_ORDER}"
    seconds["total"] = found.seconds.get("total", 0.0) + seconds.get("proofs", 0.0)
    changed = {"lower": bounds, "verdicts": tuple(verdicts), "reasons": tuple(reasons), "seconds": seconds}
    return dataclasses.replace(found, certificates=tuple(certificates), **changed)  # type: ignore[arg-type]


def _over_all(proof: Proof, parts: Sequence[CertificatePart], cases: int) -> list[float]:
    """What is proved of each case over all parts that have it; −inf if that is not known of some part."""
    lowest = [math.inf] * cases
    for k, part in enumerate(parts):
        numbers = range(cases) if part.numbers is None else part.numbers
        margins = proof.margins[k] if k < len(proof.margins) else ()
        if len(margins) != len(numbers):
            return [-math.inf] * cases
        for number, margin in zip(numbers, margins, strict=True):
            lowest[number] = min(lowest[number], margin)
    return [margin if margin < math.inf else -math.inf for margin in lowest]


def _judged(proof: Proof, verdict: Verdict, reason: str) -> tuple[Verdict, str]:
    """The verdict and the reason of an input after the attempt to prove it."""
    if proof.certificate is not None:
        return Verdict.VERIFIED, ""
    if verdict is Verdict.VERIFIED:
        said = f"unknown (proof margin {proof.margin:.3g}): positive in floating point, but not proved"
        return Verdict.UNKNOWN, f"{said}; {proof.reason}" if proof.reason else said
    return verdict, f"the proved margin {proof.margin:.6g} is not positive" if proof.margins else reason


def network_hash(graph: Graph) -> str:
    """The SHA-256 by which a certificate names a network that was not read from a file: the graph's identity."""
    return graph_identity(graph)
