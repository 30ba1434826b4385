"""A certificate covers a specification only if whatever breaks the specification is one of its cases, exactly."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vertex_softmax.certificate.checker.file import File
from vertex_softmax.certificate.comparison import missing
from vertex_softmax.certificate.instances import exact_row
from vertex_softmax.foundation.errors import UnsupportedModelError, VertexError
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property

SMALL = st.integers(-3, 3)
ENDS = st.tuples(SMALL, SMALL).map(sorted)
ROWS = st.lists(st.tuples(st.tuples(SMALL, SMALL).filter(any), SMALL), min_size=1, max_size=3)
PARTS = st.lists(st.tuples(ENDS, st.lists(ROWS, min_size=1, max_size=3)), min_size=1, max_size=3)
"""A box of one input, and cases of rows (C, d) over two outputs."""


def certificate(parts: list[Any]) -> File:
    arrays: dict[str, Any] = {}

    def keep(value: Any) -> str:
        arrays[str(len(arrays))] = np.array(value, dtype=np.float64)
        return str(len(arrays) - 1)

    listed = [
        {
            "lower": keep([low]),
            "upper": keep([high]),
            "property": [
                {
                    "rows": keep([C for C, _ in rows]),
                    "bound": keep([d for _, d in rows]),
                    "weights": keep([1] * len(rows)),
                }
                for rows in cases
            ],
        }
        for (low, high), cases in parts
    ]
    return File({"graph": [{"shape": [1]}, {"shape": [2]}], "parts": listed}, arrays)


def specification(parts: list[Any], strict: bool = False) -> Property:
    cases = []
    for (low, high), conjunctions in parts:
        ends = [np.array([float(x)]) for x in (low, high)]
        held = [
            Conjunction(tuple(Inequality(dict(enumerate(map(Fraction, C))), Fraction(d), strict) for C, d in rows))
            for rows in conjunctions
        ]
        cases.append(Case(*ends, *ends, tuple(held)))
    return Property(tuple(cases), 1, 2)


GRID = [Fraction(n, 2) for n in range(-7, 8)]


@settings(max_examples=400, deadline=None)
@given(PARTS, PARTS, st.booleans())
def test_what_is_covered_is_covered(asked: list[Any], proved: list[Any], strict: bool) -> None:
    """Points of a grid that break the specification are in a box of the certificate, with a case true of them."""
    if missing(certificate(proved), specification(asked, strict)):
        return
    for (low, high), conjunctions in asked:
        for x, y0, y1 in itertools.product(GRID[::2], GRID, GRID):
            if not low <= x <= high:
                continue
            for rows in conjunctions:
                values = [(C[0] * y0 + C[1] * y1, d) for C, d in rows]
                if not all(v < d or (v == d and not strict) for v, d in values):
                    continue
                assert any(
                    ends[0] <= x <= ends[1] and any(all(C[0] * y0 + C[1] * y1 <= d for C, d in case) for case in cases)
                    for ends, cases in proved
                )


@settings(max_examples=100, deadline=None)
@given(PARTS, st.randoms(use_true_random=False))
def test_more_than_is_asked_covers_it(asked: list[Any], chance: Any) -> None:
    """Wider boxes, multiples, higher limits, fewer rows, another order, other parts: all of it still covers."""
    proved = []
    for (low, high), conjunctions in asked:
        cases = []
        for rows in conjunctions:
            kept = chance.sample(rows, chance.randint(1, len(rows)))
            factors = [chance.choice((0.5, 1, 3)) for _ in kept]
            cases.append(
                [([c * f for c in C], d * f + chance.choice((0, 1))) for (C, d), f in zip(kept, factors, strict=True)]
            )
        chance.shuffle(cases)
        proved.append(((low - chance.choice((0, 1)), high), cases))
    proved.append(((50, 60), [[((1, 1), 0)]]))
    chance.shuffle(proved)
    assert missing(certificate(proved), specification(asked)) == ""


ONE = [((0, 1), [[((1, -1), 0), ((0, 2), 4)]])]
WRONG: dict[str, tuple[list[Any], str]] = {
    "a row more": ([((0, 1), [[((1, -1), 0), ((0, 2), 4), ((1, 0), 9)]])], "does not exclude the property"),
    "a lower limit": ([((0, 1), [[((1, -1), math.nextafter(0, -1))]])], "does not exclude"),
    "the other sign": ([((0, 1), [[((-1, 1), 0)]])], "does not exclude"),
    "a narrower box": ([((0, math.nextafter(1, 0)), ONE[0][1])], "no part of the certificate contains box 1 of 1"),
    "two halves and a gap": (
        [((0, 0.5), ONE[0][1]), ((math.nextafter(0.5, 1), 1), ONE[0][1])],
        "input 0 may be in [0.0, 1.0] in the specification",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_missing_is_named(name: str) -> None:
    proved, said = WRONG[name]
    assert missing(certificate(ONE), specification(ONE)) == ""
    assert said in missing(certificate(proved), specification(ONE))


def test_a_conjunction_that_is_always_true_is_never_covered() -> None:
    asked = Property((Case(*(np.zeros(1),) * 4, (Conjunction(()),)),), 1, 2)
    assert "it is always true" in missing(certificate([((0, 0), [[((1, 0), 0)]])]), asked)


def test_other_shapes_are_another_question() -> None:
    asked = specification(ONE)
    assert "another specification" in missing(certificate(ONE), Property(asked.cases, 1, 3))
    assert "another specification" in missing(certificate(ONE), Property(asked.cases, 1, 2, (1,), (2, 1)))


EXTREME = st.builds(
    lambda top, digits, power: Fraction(top, 10**digits) * Fraction(10) ** power,
    st.integers(-(10**6), 10**6), st.integers(0, 6), st.sampled_from((0, 0, -330, 330, 20)),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.integers(0, 1), EXTREME, min_size=1), EXTREME)
def test_rows_of_certificates_are_exact(coefficients: dict[int, Fraction], limit: Fraction) -> None:
    """Decimals become whole numbers; what is written covers what was asked, and nothing is 0 that was not."""
    assume(any(coefficients.values()))
    inequality = Inequality(coefficients, limit)
    try:
        row = exact_row(inequality)
    except (UnsupportedModelError, VertexError):
        powers = [
            math.log10(abs(a.numerator)) - math.log10(a.denominator) for a in (*coefficients.values(), limit) if a
        ]
        assert max(powers) - min(powers) > 15
        return
    held = {k: a for k, a in coefficients.items() if a}
    factors = {Fraction(row.coefficients[k]) / a for k, a in held.items()}
    assert row.coefficients.keys() == held.keys()
    assert len(factors) == 1
    factor = factors.pop()
    assert factor > 0
    assert Fraction(row.limit) >= limit * factor
    assert Fraction(math.nextafter(row.limit, -math.inf)) < limit * factor
    C = [row.coefficients.get(k, 0.0) for k in range(2)]
    asked = Property((Case(*(np.zeros(1),) * 4, (Conjunction((inequality,)),)),), 1, 2)
    assert missing(certificate([((0, 0), [[(C, row.limit)]])]), asked) == ""
