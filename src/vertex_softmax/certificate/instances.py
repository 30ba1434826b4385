"""Certificates for a model file and a VNNLIB property, and the comparison of a certificate's network with a model.

Invariant: an output that makes one of the property's conjunctions true makes one of the certificate's cases true, so
that excluding the cases proves the property. Boxes and limits are rounded outward; rows are exact up to a positive
factor, or refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from vertex_softmax.certificate.certificate import CertificatePart, Effort, Proof, Report, prove
from vertex_softmax.certificate.checker.file import File
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.halved_parts import parts_of
from vertex_softmax.certificate.lowering import lowered
from vertex_softmax.certificate.planting import Searched
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Row, rounded_up, shown

if TYPE_CHECKING:
    from vertex_softmax.search.answers import CaseSearch
    from vertex_softmax.search.verify_files import Instance

PLAIN = (Fraction(2) ** -500, Fraction(2) ** 500)
"""The least and the largest size of coefficients that are used without scaling."""


def prove_instance(
    instance: Instance,
    name: str,
    effort: Effort,
    report: Report | None = None,
    searches: Sequence[CaseSearch] = (),
) -> Proof:
    """Try to prove the property of an instance, whose graph was simplified exactly; `name` is the model file's name.

    `searches`: those that have excluded conjunctions of the property, whose trees are proved.
    """
    shape, prop = instance.graph.input.shape, instance.prop
    parts: list[CertificatePart] = []
    for i, case in enumerate(prop.cases):
        if case.conjunctions:
            cases = [_case(conjunction, prop.outputs) for conjunction in case.conjunctions]
            found = tuple(_searched(search, case, cases) for search in searches if search.case == i)
            lower, upper = (np.array(end).reshape(shape) for end in (case.lower, case.upper))
            parts += parts_of(CertificatePart(lower, upper, cases, searches=found))
    about = {"model": {"sha256": instance.model_hash, "file": name}}
    return prove(instance.graph, parts, effort, about=about, report=report)


def _searched(search: CaseSearch, case: Case, cases: Sequence[ForbiddenCase]) -> Searched:
    """A search of the cascade as one for the cases of a certificate, whose rows may have other factors."""
    weights = {}
    for number, mixed in search.excluded.values():
        asked = case.conjunctions[number].matrix(cases[number].rows.shape[1])[0].numpy()
        rows = cases[number].rows
        size = np.square(rows).sum(-1)
        factors = (asked * rows).sum(-1) / np.where(size > 0, size, 1.0)
        weights[number] = np.maximum(mixed.double().cpu().numpy() * factors, 0.0)
    numbers = {objective: number for objective, (number, _) in search.excluded.items()}
    return Searched(search.question, search.rules, search.record, numbers, weights)


def _case(conjunction: Conjunction, outputs: int) -> ForbiddenCase:
    """The conjunction as a case: rows are scaled so that their coefficients are doubles; limits are rounded up."""
    C = np.zeros((len(conjunction.inequalities), outputs))
    d = np.zeros(len(C))
    for i, inequality in enumerate(conjunction.inequalities):
        row = exact_row(inequality)
        for k, a in row.coefficients.items():
            C[i, k] = a
        d[i] = row.limit
    return ForbiddenCase(C, d, None)


def exact_row(inequality: Inequality) -> Row:
    """The inequality times a positive rational factor: its coefficients are exact, its limit is rounded up.

    The factor is 1 where every coefficient is a double of ordinary size. Else it makes the coefficients integers
    without a common divisor: 0.1·y ≤ 0.3 becomes y ≤ 3. Raises where one of these integers is not a double.
    """
    exact = {k: Fraction(a) for k, a in inequality.coefficients.items() if a}
    factor = Fraction(1)
    if not all(_is_double(a) and PLAIN[0] <= abs(a) <= PLAIN[1] for a in exact.values()):
        denominator = math.lcm(*(a.denominator for a in exact.values()))
        factor = Fraction(denominator, math.gcd(*(int(a * denominator) for a in exact.values())))
    scaled = {k: a * factor for k, a in exact.items()}
    for k, a in scaled.items():
        if not _is_double(a):
            raise UnsupportedModelError(
                f"no certificate: the coefficients of an inequality, such as {shown(exact[k])} of output {k}, have no "
                "common factor by which all of them become doubles; write them with fewer digits"
            )
    return Row({k: float(a) for k, a in scaled.items()}, rounded_up(inequality.limit * factor))


def _is_double(value: Fraction) -> bool:
    """Whether the number is exactly a double-precision number."""
    try:
        return Fraction(float(value)) == value
    except OverflowError:
        return False


def difference(file: File, graph: Graph) -> str:
    """How the network in a certificate differs from this graph, simplified exactly; empty if they are the same."""
    ours = lowered(graph)
    theirs = file.header["graph"]
    if len(ours.entries) != len(theirs):
        return f"the model has {len(ours.entries)} nodes and the certificate {len(theirs)}"
    for number, (mine, other) in enumerate(zip(ours.entries, theirs, strict=True)):
        if any(mine.get(key) != other.get(key) for key in ("op", "inputs", "shape", "eps")):
            return f"node {number} is {mine['op']} {mine['shape']} in the model, and a different op in the certificate"
        if set(mine["arrays"]) != set(other["arrays"]):
            return f"node {number} has different arrays in the certificate"
        for key, name in mine["arrays"].items():
            if not np.array_equal(ours.arrays[name], file.arrays[other["arrays"][key]]):
                return f"the {key} of node {number} ({mine['op']}) is not the model's"
    return ""
