"""Is the property of a certificate the one of a specification? Compared in exact arithmetic, without any tolerance.

Invariant: `missing` is empty only if every input and output that the specification's conjunctions are true of is one of
a box of the certificate, with one of its cases true: so a certificate that was accepted proves the specification.

A conjunction is covered by a part whose box contains the specification's and one of whose cases follows from the
conjunction: every row of the case is a positive multiple of one of its inequalities, with a limit no lower. The
certificate may say more than is asked: wider boxes, higher limits, fewer rows, other parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from vertex_softmax.certificate.checker.claim import cases_of
from vertex_softmax.certificate.checker.file import File, Rejected
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.specs.property import Case, Conjunction, Floats, Inequality, Property, shown

Direction: TypeAlias = tuple[tuple[int, Fraction], ...]
"""A row's coefficients, divided by the size of the first: equal for positive multiples."""
Rows: TypeAlias = dict[Direction, Fraction]
"""The limit of each row, divided by the same."""


class _Part:
    """A box, and its cases by the directions of their rows."""

    def __init__(self, lower: Floats, upper: Floats, cases: Sequence[Rows]) -> None:
        self.lower, self.upper, self.cases = lower, upper, cases
        self.known: dict[frozenset[Direction], list[Rows]] = {}
        for case in cases:
            self.known.setdefault(frozenset(case), []).append(case)

    def contains(self, case: Case) -> bool:
        """The specification's box lies in this one; its ends are the next floats outside, and these here are floats."""
        return bool((self.lower <= case.lower).all() and (case.upper <= self.upper).all())

    def excludes(self, rows: Rows) -> bool:
        """One of the cases follows from these rows."""
        same = self.known.get(frozenset(rows), [])
        return any(_follows(case, rows) for case in same) or any(_follows(case, rows) for case in self.cases)


def missing(file: File, prop: Property) -> str:
    """What of a specification a certificate does not speak of; empty if it covers all of it."""
    graph = file.header["graph"]
    try:
        prop.require(graph[0]["shape"], graph[-1]["shape"])
    except InvalidValueError as error:
        return f"the certificate is of another question: {error}"
    try:
        parts = [_read(part, file, prop) for part in file.header["parts"]]
    except Rejected as error:
        return str(error)
    for number, case in enumerate(prop.cases, 1):
        here = f"box {number} of {len(prop.cases)} of the specification"
        around = [part for part in parts if part.contains(case)]
        if case.conjunctions and not around:
            return f"no part of the certificate contains {here}: {_outside(case, parts)}"
        for at, conjunction in enumerate(case.conjunctions, 1):
            rows = _rows(conjunction.inequalities)
            if not any(part.excludes(rows) for part in around):
                what = f"conjunction {at} of {len(case.conjunctions)}" if len(case.conjunctions) > 1 else "the property"
                return f"in {here}, the certificate does not exclude {what}: {_told(conjunction)}"
    return ""


def _read(part: dict[str, object], file: File, prop: Property) -> _Part:
    lower, upper = (file.numbers(part[end]).reshape(-1) for end in ("lower", "upper"))
    cases = []
    for case in cases_of(part, file, prop.outputs):
        listed = [
            Inequality({int(k): Fraction(float(C[k])) for k in np.flatnonzero(C)}, Fraction(float(d)))
            for C, d in zip(case.C, case.d, strict=True)
        ]
        cases.append(_rows(listed))
    return _Part(lower, upper, cases)


def _rows(inequalities: Sequence[Inequality]) -> Rows:
    """The lowest limit of every direction. Strictness is left out: without it a row says less, and follows."""
    found: Rows = {}
    for inequality in inequalities:
        held = sorted((k, Fraction(a)) for k, a in inequality.coefficients.items() if a)
        size = abs(held[0][1]) if held else Fraction(1)
        direction, limit = tuple((k, a / size) for k, a in held), inequality.limit / size
        found[direction] = min(limit, found.get(direction, limit))
    return found


def _follows(case: Rows, rows: Rows) -> bool:
    """Whatever satisfies `rows` satisfies all rows of the case."""
    return all(direction in rows and rows[direction] <= limit for direction, limit in case.items())


def _outside(case: Case, parts: Sequence[_Part]) -> str:
    """An input that leaves the part that comes nearest."""
    out = [(case.lower < part.lower) | (case.upper > part.upper) for part in parts]
    best = min(range(len(parts)), key=lambda i: int(out[i].sum()))
    k = int(np.flatnonzero(out[best])[0])
    ours, theirs = (f"[{float(box.lower[k])!r}, {float(box.upper[k])!r}]" for box in (case, parts[best]))
    return f"input {k} may be in {ours} there, and in {theirs} in the certificate"


def _told(conjunction: Conjunction) -> str:
    """The conjunction in words, if it is short."""
    told = []
    for inequality in conjunction.inequalities[:4]:
        terms = " + ".join(f"{shown(Fraction(a))}·Y_{k}" for k, a in list(inequality.coefficients.items())[:6])
        more = " + …" if len(inequality.coefficients) > 6 else ""
        told.append(f"{terms or 0}{more} {'<' if inequality.strict else '≤'} {shown(Fraction(inequality.limit))}")
    return " and ".join(told) + (" and …" if len(conjunction.inequalities) > 4 else "") if told else "it is always true"
