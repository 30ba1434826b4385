"""Comparison of a certificate's property with a specification, in exact arithmetic, without any tolerance.

Invariant: `missing` returns an empty text only if every input and output for which one of the specification's
conjunctions is true lies in a set of the certificate and makes one of its cases true. So an accepted certificate proves
the specification.

A conjunction is covered by a part whose set contains the specification's box, or by several whose boxes cover it, each
with a case that follows from the conjunction: every row of the case is a positive multiple of one of the inequalities,
with a limit that is not lower.
The certificate may prove more than the specification asks: wider boxes, higher limits, fewer rows, other parts.

Certificates are compared with sets as well (`not_covered`): at every point of the set that is asked about, each case of
the certificate is excluded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.certificate.checker.claim import cases_of
from vertex_softmax.certificate.checker.file import File, Rejected
from vertex_softmax.certificate.checker.input_sets import CheckedSet, read_set
from vertex_softmax.certificate.containment import are_covering, contains, contains_box
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property, shown

Direction: TypeAlias = tuple[tuple[int, Fraction], ...]
"""The coefficients of a row (output, coefficient), divided by the size of the first: equal for positive multiples."""
Limits: TypeAlias = dict[Direction, Fraction]
"""A conjunction of rows: for each direction, its limit, divided by the same number as the coefficients."""


class _CoveredPart:
    """A part of a certificate: its set, a box around it (inputs,), and its cases, indexed by their directions."""

    def __init__(self, given: CheckedSet, cases: Sequence[Limits]) -> None:
        self.given, self.cases = given, cases
        self.lower, self.upper = given.lower.reshape(-1), given.upper.reshape(-1)
        self.by_directions: dict[frozenset[Direction], list[Limits]] = {}
        for case in cases:
            self.by_directions.setdefault(frozenset(case), []).append(case)

    def contains(self, case: Case) -> bool:
        """Whether the specification's box lies in the part's set. Its ends were rounded outward to floats."""
        return contains_box(self.given, case.lower, case.upper)

    def excludes(self, rows: Limits) -> bool:
        """Whether one of the cases follows from these rows."""
        same = self.by_directions.get(frozenset(rows), [])
        return any(_follows(case, rows) for case in same) or any(_follows(case, rows) for case in self.cases)


def missing(file: File, prop: Property) -> str:
    """Which part of a specification a certificate does not cover, in words; empty if it covers all of it."""
    graph = file.header["graph"]
    try:
        prop.require(graph[0]["shape"], graph[-1]["shape"])
    except InvalidValueError as error:
        return f"the certificate is for another specification: {error}"
    try:
        parts = [_read(part, file, prop.outputs) for part in file.header["parts"]]
    except Rejected as error:
        return str(error)
    for number, case in enumerate(prop.cases, 1):
        box = f"box {number} of {len(prop.cases)} of the specification"
        containing = [part for part in parts if part.contains(case)]
        if case.conjunctions and not containing and not _are_covering(parts, case.lower, case.upper):
            return f"no part of the certificate contains {box}: {_outside(case, parts)}"
        count = len(case.conjunctions)
        for index, conjunction in enumerate(case.conjunctions, 1):
            rows = _limits(conjunction.inequalities)
            if any(part.excludes(rows) for part in containing):
                continue
            if not _are_covering([part for part in parts if part.excludes(rows)], case.lower, case.upper):
                what = f"conjunction {index} of {count}" if count > 1 else "the property"
                return f"in {box}, the certificate does not exclude {what}: {_in_words(conjunction)}"
    return ""


def _are_covering(parts: Sequence[_CoveredPart], lower: NDArray[np.float64], upper: NDArray[np.float64]) -> bool:
    """Whether those of the parts that are boxes cover a box together."""
    boxes = [part for part in parts if part.given.kind == "box"]
    if not boxes:
        return False
    lowers, uppers = np.stack([box.lower for box in boxes]), np.stack([box.upper for box in boxes])
    return are_covering(lower.reshape(-1), upper.reshape(-1), lowers, uppers)


def not_covered(file: File, asked: CheckedSet) -> str:
    """Why a certificate does not exclude all of its cases over a set of one input; empty if it does.

    `asked` is the set in the checker's words, its numbers exactly those that are meant.
    """
    graph = file.header["graph"]
    shape = tuple(graph[0]["shape"])
    if asked.lower.shape != shape:
        return f"the certificate is for inputs of shape {shape}, and the set has {asked.lower.shape}"
    try:
        parts = [_read(part, file, math.prod(graph[-1]["shape"])) for part in file.header["parts"]]
    except Rejected as error:
        return str(error)
    reasons = [contains(part.given, asked) for part in parts]
    containing = [part for part, reason in zip(parts, reasons, strict=True) if not reason]
    if not parts or (not containing and not (asked.kind == "box" and _are_covering(parts, asked.lower, asked.upper))):
        return f"no part of the certificate contains the set: {reasons[0] if reasons else 'none'}"
    for rows in {frozenset(case.items()): case for part in parts for case in part.cases}.values():
        if any(part.excludes(rows) for part in containing):
            continue
        having = [part for part in parts if part.excludes(rows)]
        if asked.kind != "box" or not _are_covering(having, asked.lower, asked.upper):
            return "a case of the certificate is excluded over other inputs, and not over all of the set"
    return ""


def _read(part: dict[str, Any], file: File, outputs: int) -> _CoveredPart:
    """A part of the certificate's header, with its arrays."""
    given = read_set(part, file, tuple(file.header["graph"][0]["shape"]))
    cases = []
    for case in cases_of(part, file, outputs):
        listed = [
            Inequality({int(k): Fraction(float(C[k])) for k in np.flatnonzero(C)}, Fraction(float(d)))
            for C, d in zip(case.C, case.d, strict=True)
        ]
        cases.append(_limits(listed))
    return _CoveredPart(given, cases)


def _limits(inequalities: Sequence[Inequality]) -> Limits:
    """The lowest limit of every direction. Strict inequalities count as not strict, which they imply."""
    limits: Limits = {}
    for inequality in inequalities:
        coefficients = sorted((k, Fraction(a)) for k, a in inequality.coefficients.items() if a)
        size = abs(coefficients[0][1]) if coefficients else Fraction(1)
        direction, limit = tuple((k, a / size) for k, a in coefficients), inequality.limit / size
        limits[direction] = min(limit, limits.get(direction, limit))
    return limits


def _follows(case: Limits, rows: Limits) -> bool:
    """Whether every output that satisfies `rows` satisfies all rows of the case."""
    return all(direction in rows and rows[direction] <= limit for direction, limit in case.items())


def _outside(case: Case, parts: Sequence[_CoveredPart]) -> str:
    """An input that may leave the part of which the fewest inputs can leave, in words."""
    if not any(part.given.kind == "box" for part in parts):
        kinds = " and ".join(dict.fromkeys(part.given.kind for part in parts))
        return f"it is about another kind of set ({kinds}), which leaves out points of the box"
    parts = [part for part in parts if part.given.kind == "box"]
    out = [(case.lower < part.lower) | (case.upper > part.upper) for part in parts]
    best = min(range(len(parts)), key=lambda i: int(out[i].sum()))
    k = int(np.flatnonzero(out[best])[0])
    ours, theirs = (f"[{float(box.lower[k])!r}, {float(box.upper[k])!r}]" for box in (case, parts[best]))
    return f"input {k} may be in {ours} in the specification, and in {theirs} in the certificate"


def _in_words(conjunction: Conjunction) -> str:
    """The conjunction as text; a long one is shortened."""
    rows = []
    for inequality in conjunction.inequalities[:4]:
        terms = " + ".join(f"{shown(Fraction(a))}·Y_{k}" for k, a in list(inequality.coefficients.items())[:6])
        more = " + …" if len(inequality.coefficients) > 6 else ""
        rows.append(f"{terms or 0}{more} {'<' if inequality.strict else '≤'} {shown(Fraction(inequality.limit))}")
    return " and ".join(rows) + (" and …" if len(conjunction.inequalities) > 4 else "") if rows else "it is always true"
