"""Certificates for a model file and a VNNLIB property, and whether a certificate's network is a model's.

Invariant: the cases of the certificate hold whenever the property's do: boxes and limits are rounded outward, and rows
are exact or refused.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from vertex_softmax.certificate.certificate import Effort, Part, Proof, Report, prove
from vertex_softmax.certificate.checker.file import File
from vertex_softmax.certificate.lowering import lowered
from vertex_softmax.certificate.prove import Case
from vertex_softmax.errors import UnsupportedModelError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.specs.property import Conjunction

if TYPE_CHECKING:
    from vertex_softmax.search.verify_files import Instance


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


def _case(conjunction: Conjunction, outputs: int) -> Case:
    """The rows as they are, the limits rounded up."""
    C = np.zeros((len(conjunction.inequalities), outputs))
    d = np.zeros(len(C))
    for i, inequality in enumerate(conjunction.inequalities):
        for k, a in inequality.coefficients.items():
            C[i, k] = float(a)
            if Fraction(float(a)) != a:
                raise UnsupportedModelError(
                    f"no certificate: the coefficient {a} of the property is no double precision number; multiply the "
                    "inequality by its denominator"
                )
        d[i] = float(inequality.limit)
        if Fraction(d[i]) < inequality.limit:
            d[i] = math.nextafter(d[i], math.inf)
    return Case(C, d, None)


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
