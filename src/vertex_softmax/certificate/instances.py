"""Certificates for a model file and a VNNLIB property, and whether a certificate's network is a model's.

Invariant: the cases of the certificate hold whenever the property's do: boxes and limits are rounded outward, and rows
are exact, up to a positive factor for each, or refused.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from vertex_softmax.certificate.certificate import Effort, Part, Proof, Report, prove
from vertex_softmax.certificate.checker.file import File
from vertex_softmax.certificate.lowering import lowered
from vertex_softmax.certificate.prove import ForbiddenCase
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.specs.property import Conjunction, Inequality, Row, rounded_up, shown

if TYPE_CHECKING:
    from vertex_softmax.search.verify_files import Instance

PLAIN = (Fraction(2) ** -500, Fraction(2) ** 500)
"""Coefficients of ordinary size."""


def prove_instance(instance: Instance, name: str, effort: Effort, report: Report | None = None) -> Proof:
    """A proof that the property of an instance, whose graph was simplified exactly, holds."""
    shape, prop = instance.graph.input.shape, instance.prop
    parts = [
        Part(
            np.array(case.lower).reshape(shape),
            np.array(case.upper).reshape(shape),
            [_case(conjunction, prop.outputs) for conjunction in case.conjunctions],
        )
        for case in prop.cases
        if case.conjunctions
    ]
    about = {"model": {"sha256": instance.model_hash, "file": name}}
    return prove(instance.graph, parts, effort, about=about, report=report)


def _case(conjunction: Conjunction, outputs: int) -> ForbiddenCase:
    """The rows times positive numbers that make their coefficients exact doubles, the limits rounded up."""
    C = np.zeros((len(conjunction.inequalities), outputs))
    d = np.zeros(len(C))
    for i, inequality in enumerate(conjunction.inequalities):
        row = exact_row(inequality)
        for k, a in row.coefficients.items():
            C[i, k] = a
        d[i] = row.limit
    return ForbiddenCase(C, d, None)


def exact_row(inequality: Inequality) -> Row:
    """The inequality times a positive rational: its coefficients are exact, its limit is rounded up.

    The factor is 1 where every coefficient is a double of ordinary size, else the one that makes them whole numbers
    without a common divisor: 0.1·y ≤ 0.3 is y ≤ 3. Raises where one of those is no double.
    """
    held = {k: Fraction(a) for k, a in inequality.coefficients.items() if a}
    factor = Fraction(1)
    if not all(_is_double(a) and PLAIN[0] <= abs(a) <= PLAIN[1] for a in held.values()):
        whole = math.lcm(*(a.denominator for a in held.values()))
        factor = Fraction(whole, math.gcd(*(int(a * whole) for a in held.values())))
    found = {k: a * factor for k, a in held.items()}
    for k, a in found.items():
        if not _is_double(a):
            raise UnsupportedModelError(
                f"no certificate: the coefficient {shown(held[k])} of output {k} and the others of its inequality "
                "are not multiples of one number by doubles; write them with fewer digits"
            )
    return Row({k: float(a) for k, a in found.items()}, rounded_up(inequality.limit * factor))


def _is_double(value: Fraction) -> bool:
    """Is the number a double precision number, exactly?"""
    try:
        return Fraction(float(value)) == value
    except OverflowError:
        return False


def difference(file: File, graph: Graph) -> str:
    """In what the network written in a certificate is not this graph, simplified exactly; empty if it is the same."""
    ours = lowered(graph)
    theirs = file.header["graph"]
    if len(ours.entries) != len(theirs):
        return f"the model has {len(ours.entries)} nodes and the certificate {len(theirs)}"
    for number, (mine, other) in enumerate(zip(ours.entries, theirs, strict=True)):
        if any(mine.get(key) != other.get(key) for key in ("op", "inputs", "shape", "eps")):
            return f"node {number} is {mine['op']} {mine['shape']} in the model, and another in the certificate"
        if set(mine["arrays"]) != set(other["arrays"]):
            return f"node {number} has other arrays in the certificate"
        for key, name in mine["arrays"].items():
            if not np.array_equal(ours.arrays[name], file.arrays[other["arrays"][key]]):
                return f"the {key} of node {number} ({mine['op']}) is not the model's"
    return ""
