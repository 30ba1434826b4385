"""VNNLIB 1.0: every spelling means what an independent evaluator says, to the last bit; every mistake has its line."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.specs import made, sexpr
from tests.specs.vnnlib_cases import DOWN, LARGEST, MORE, UP, F, only, read, same, text
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.specs import formula, normal_form
from vertex_softmax.specs.property import Property
from vertex_softmax.specs.vnnlib import read_vnnlib, write_vnnlib

SPELLINGS = [
    ("(<= Y_0 Y_1)", {0: 1, 1: -1}, 0, False),
    ("(>= Y_0 Y_1)", {0: -1, 1: 1}, 0, False),
    ("(< Y_0 Y_1)", {0: 1, 1: -1}, 0, True),
    ("(> Y_0 Y_1)", {0: -1, 1: 1}, 0, True),
    ("(<= 3 Y_0)", {0: -1}, -3, False),
    ("(>= (+ Y_0 (* -1.0 Y_1)) 0)", {0: -1, 1: 1}, 0, False),
    ("(or (and (>= Y_0 Y_2)))", {0: -1, 2: 1}, 0, False),
    ("(<= Y_0 1e-5)", {0: 1}, F(1, 100000), False),
    ("(<= Y_0 -1.5E+2)", {0: 1}, -150, False),
    ("(<= Y_0 .5)", {0: 1}, F(1, 2), False),
    ("(<= Y_0 5.)", {0: 1}, 5, False),
    ("(<= Y_0 +5)", {0: 1}, 5, False),
    ("(<= Y_0 (- 5))", {0: 1}, -5, False),
    ("(<= Y_0 (/ 1 3))", {0: 1}, F(1, 3), False),
    ("(<= Y_0 (/ 1 3 2))", {0: 1}, F(1, 6), False),
    ("(<= Y_0 (- (/ 1.0 3.0)))", {0: 1}, F(-1, 3), False),
    ("(<= (- Y_0 Y_1 Y_2 1) 2)", {0: 1, 1: -1, 2: -1}, 3, False),
    ("(<= (- Y_0) (- 1 2 3))", {0: -1}, -4, False),
    ("(<= (- (- (- Y_0))) 0)", {0: -1}, 0, False),
    ("(<= (* 2 3 Y_0 0.5) 1)", {0: 3}, 1, False),
    ("(<= (* Y_0 2) 1)", {0: 2}, 1, False),
    ("(<= (* 2 (+ Y_0 (* 3 (- Y_1 1)))) 1)", {0: 2, 1: 6}, 7, False),
    ("(<= (/ Y_0 4) 1)", {0: F(1, 4)}, 1, False),
    ("(<= (/ (+ Y_0 1) (/ 1 2)) 1)", {0: 2}, -1, False),
    ("(<= (+ Y_0 Y_0 Y_1 (- Y_1)) 1)", {0: 2}, 1, False),
    ("(<= (+ Y_0 X_0) (+ 1 X_0))", {0: 1}, 1, False),
    ("(<= (+ Y_0 (* 0 X_0)) 1)", {0: 1}, 1, False),
    ("(<= (+ Y_0) (* 1))", {0: 1}, 1, False),
    ("(<= (- (+ 1 Y_0) (+ Y_1 (* 2 Y_2) 5)) 0)", {0: 1, 1: -1, 2: -2}, 4, False),
    ("(not (<= Y_0 1))", {0: -1}, -1, True),
    ("(not (> Y_0 1))", {0: 1}, 1, False),
    ("(not (not (< Y_0 1)))", {0: 1}, 1, True),
    ("(not (and (>= Y_0 1)))", {0: 1}, 1, True),
    ("(=> (< Y_0 1) false)", {0: -1}, -1, False),
    ("(and (<= 0 1) (<= Y_0 1) (= 2 (+ 1 1)))", {0: 1}, 1, False),
    ("(or (< 1 1) (<= Y_0 1) false)", {0: 1}, 1, False),
    ("(and true (<= Y_0 1))", {0: 1}, 1, False),
    ("(<= Y_0 ; why not ) (\n 1)", {0: 1}, 1, False),
    ("(  <=\tY_0\r\n1 )", {0: 1}, 1, False),
    ("(<= Y_0\f1)", {0: 1}, 1, False),
    ("(<= (* 1e400 Y_0 1e-400) 1)", {0: 1}, 1, False),
    ("(<= (* (- Y_0 -2 Y_0) Y_1) 1)", {1: 2}, 1, False),
]


@pytest.mark.parametrize(("spelled", "terms", "limit", "strict"), SPELLINGS)
def test_spellings_of_an_inequality(spelled, terms, limit, strict) -> None:
    found = only(read(f"(assert {spelled})"))
    assert (dict(found.coefficients), found.limit, found.strict) == (terms, limit, strict)
    assert all(isinstance(n, Fraction) for n in (found.limit, *found.coefficients.values()))


CONJUNCTIONS = [
    ("(= Y_0 1)", [[({0: 1}, 1, False), ({0: -1}, -1, False)]]),
    ("(not (= Y_0 1))", [[({0: -1}, -1, True)], [({0: 1}, 1, True)]]),
    ("(<= Y_0 Y_1 2)", [[({0: 1, 1: -1}, 0, False), ({1: 1}, 2, False)]]),
    ("(not (<= Y_0 Y_1 2))", [[({0: -1, 1: 1}, 0, True)], [({1: -1}, -2, True)]]),
    (
        "(= 1 Y_0 Y_1)",
        [[({0: -1}, -1, False), ({0: 1}, 1, False), ({0: 1, 1: -1}, 0, False), ({0: -1, 1: 1}, 0, False)]],
    ),
    ("(or (<= Y_0 1) (and (<= Y_1 2) (<= Y_2 3)))", [[({0: 1}, 1, False)], [({1: 1}, 2, False), ({2: 1}, 3, False)]]),
    ("(not (and (<= Y_0 1) (<= Y_1 2)))", [[({0: -1}, -1, True)], [({1: -1}, -2, True)]]),
    ("(not (or (<= Y_0 1) (<= Y_1 2)))", [[({0: -1}, -1, True), ({1: -1}, -2, True)]]),
    ("(=> (<= Y_0 1) (<= Y_1 2) (<= Y_2 3))", [[({0: -1}, -1, True)], [({1: -1}, -2, True)], [({2: 1}, 3, False)]]),
    ("(or (<= 0 1) (<= Y_0 1))", [[], [({0: 1}, 1, False)]]),
    (
        "(and (or (<= Y_0 1) (<= Y_1 2)) (<= Y_2 3) (or (<= Y_0 4) (<= Y_1 5)))",
        [
            [({2: 1}, 3, False), ({a: 1}, x, False), ({b: 1}, y, False)]
            for a, x in ((0, 1), (1, 2))
            for b, y in ((0, 4), (1, 5))
        ],
    ),
    (
        "(or (<= Y_2 3) (and (<= Y_0 1) (or (<= Y_1 2) (<= Y_2 9))))",
        [[({2: 1}, 3, False)], [({0: 1}, 1, False), ({1: 1}, 2, False)], [({0: 1}, 1, False), ({2: 1}, 9, False)]],
    ),
]


@pytest.mark.parametrize(("spelled", "expected"), CONJUNCTIONS)
def test_the_disjunctive_normal_form_keeps_the_order(spelled, expected) -> None:
    (case,) = read(f"(assert {spelled})").cases
    found = [[(dict(i.coefficients), i.limit, i.strict) for i in c.inequalities] for c in case.conjunctions]
    assert found == expected


def test_assertions_hold_together() -> None:
    (case,) = read("(assert (<= Y_0 1))", "(assert (or (<= Y_1 2) (<= Y_2 3)))", "(assert (<= Y_0 0))").cases
    assert [[(*i.coefficients, i.limit) for i in c.inequalities] for c in case.conjunctions] == [
        [(0, 1), (0, 0), (1, 2)],
        [(0, 1), (0, 0), (2, 3)],
    ]


TENTH = math.nextafter(0.1, DOWN)  # 0.1 as a float is a little more than 1/10, so these two are around it


BOXES = [
    ("(and (>= X_0 0.1) (<= X_0 0.5))", (TENTH, 0.5, 0.1, 0.5)),
    ("(and (>= X_0 -0.5) (<= X_0 0.1))", (-0.5, 0.1, -0.5, TENTH)),
    ("(= X_0 0.25)", (0.25, 0.25, 0.25, 0.25)),
    ("(= X_0 0.1)", (TENTH, 0.1, 0.1, TENTH)),
    ("(and (> X_0 0.25) (< X_0 0.5))", (0.25, 0.5, math.nextafter(0.25, UP), math.nextafter(0.5, DOWN))),
    ("(and (> X_0 0.1) (< X_0 0.5))", (TENTH, 0.5, 0.1, math.nextafter(0.5, DOWN))),
    ("(and (>= X_0 0) (> X_0 0) (>= X_0 0) (<= X_0 1))", (0, 1, 5e-324, 1)),
    ("(and (>= X_0 1e-400) (<= X_0 1))", (0, 1, 5e-324, 1)),
    ("(and (<= X_0 -1e-400) (>= X_0 -1))", (-1, 0, -1, -5e-324)),
    ("(and (<= 0 X_0) (>= 1 X_0))", (0, 1, 0, 1)),
    ("(<= 0 X_0 1)", (0, 1, 0, 1)),
    ("(and (<= (* -2 X_0) 1) (<= (* 2 X_0) 3))", (-0.5, 1.5, -0.5, 1.5)),
    ("(and (<= (+ X_0 1) (* 2 X_0)) (<= X_0 2))", (1, 2, 1, 2)),
    ("(and (>= X_0 0) (<= X_0 3) (<= X_0 2) (<= X_0 2.5) (>= X_0 -1))", (0, 2, 0, 2)),
    ("(not (or (< X_0 0) (> X_0 1)))", (0, 1, 0, 1)),
    (f"(and (>= X_0 (/ 1 {2**1074})) (<= X_0 1))", (5e-324, 1, 5e-324, 1)),
    (f"(and (>= X_0 {-LARGEST}) (<= X_0 0))", (-LARGEST, 0, math.nextafter(-LARGEST, 0), 0)),  # the text is rounded
    (f"(and (>= X_0 {-int(LARGEST)}) (<= X_0 0))", (-LARGEST, 0, -LARGEST, 0)),
    ("(and (>= X_0 0.1000000000000000055511151231257827021181583404541015625) (<= X_0 1))", (0.1, 1, 0.1, 1)),
    (f"(and (>= X_0 0.1) (>= X_0 {MORE}) (<= X_0 1))", (0.1, 1, math.nextafter(0.1, UP), 1)),
    (f"(and (>= X_0 {MORE}) (>= X_0 0.1) (<= X_0 1))", (0.1, 1, math.nextafter(0.1, UP), 1)),
    (f"(and (<= X_0 0.1) (<= X_0 {MORE}) (>= X_0 0))", (0, 0.1, 0, TENTH)),
    (f"(and (<= X_0 {MORE}) (<= X_0 0.1) (>= X_0 0))", (0, 0.1, 0, TENTH)),
    (f"(<= 0.1 X_0 {MORE})", (TENTH, math.nextafter(0.1, UP), 0.1, 0.1)),
    ("(and (>= X_0 (/ 1 3)) (<= X_0 (/ 2 3)))", (1 / 3, math.nextafter(2 / 3, UP), math.nextafter(1 / 3, UP), 2 / 3)),
]


@pytest.mark.parametrize(("spelled", "ends"), BOXES)
def test_a_box_is_rounded_outward_and_inward(spelled, ends) -> None:
    (case,) = read_vnnlib(text(f"(assert {spelled})", "(assert (<= Y_0 0))", inputs=1, box=False).encode()).cases
    assert (case.lower[0], case.upper[0], case.inner_lower[0], case.inner_upper[0]) == ends


@given(st.fractions(max_denominator=10**25) | st.floats(-1e308, 1e308).map(F), st.booleans())
def test_rounding_is_the_tightest(value, strict) -> None:
    low = formula.bound(0, False, value, strict, 0)
    outer, inner = normal_form.rounded(low)
    assert F(outer) <= value
    assert F(math.nextafter(outer, UP)) > value
    assert F(inner) > value if strict else F(inner) >= value
    below = F(math.nextafter(inner, DOWN))
    assert below <= value if strict else below < value
    top = formula.bound(0, True, -value, strict, 0)
    assert normal_form.rounded(top) == (-outer, -inner)


def test_boxes_of_one_file_are_grouped_and_keep_their_order() -> None:
    spec = read_vnnlib(
        text(
            "(assert (or",
            "  (and (<= X_0 1) (>= X_0 0) (<= X_1 1) (>= X_1 0) (<= Y_0 1))",
            "  (and (<= X_0 2) (>= X_0 0) (<= X_1 1) (>= X_1 0) (<= Y_0 2))",
            "  (and (<= 0 X_1 1) (<= (/ 0 5) X_0 (/ 5 5)) (<= Y_0 3))",
            "  (and (< X_0 1) (>= X_0 0) (<= X_1 1) (>= X_1 0) (<= Y_0 4))",
            "  (and (<= X_0 -1) (>= X_0 0) (<= X_1 1) (>= X_1 0) (<= Y_0 5))))",
            box=False,
        ).encode()
    )
    assert [[c.inequalities[0].limit for c in case.conjunctions] for case in spec.cases] == [[1, 3], [2], [4]]
    assert [case.upper.tolist() for case in spec.cases] == [[1, 1], [2, 1], [1, 1]]
    assert spec.cases[2].inner_upper.tolist() == [math.nextafter(1, 0), 1]


def test_what_holds_throughout_tightens_every_box() -> None:
    spec = read("(assert (or (<= X_0 0.5) (>= X_0 0.75) (<= X_0 7) (>= X_0 2)))", "(assert (<= Y_0 0))")
    assert [(c.lower[0], c.upper[0], len(c.conjunctions)) for c in spec.cases] == [(0, 0.5, 1), (0.75, 1, 1), (0, 1, 1)]


def test_acasxu_property_6_has_two_boxes_of_four() -> None:
    spec = read(
        "(assert (or (and (>= X_0 0.1) (<= X_0 0.2)) (and (>= X_0 0.3) (<= X_0 0.4))))",
        "(assert (or (<= Y_1 Y_0) (<= Y_2 Y_0)))",
    )
    assert [len(case.conjunctions) for case in spec.cases] == [2, 2]


def test_a_box_between_two_floats_is_kept() -> None:
    (case,) = read("(assert (<= 0.1 X_0 0.1))", "(assert (<= Y_0 0))").cases
    assert case.inner_lower[0] > case.inner_upper[0]
    assert not case.contains(np.array([0.1, 0.5]))


def test_a_file_that_is_all_windows_and_has_every_command() -> None:
    lines = (
        "; written by hand ( \u00e9",
        "(set-logic QF_LRA)",
        '(set-info :source "a ""string"" ; with ( everything")',
        "(set-info :status |quoted ) symbol|)",
        "(set-option :produce-models true) (echo (nested (form)) (<= X_0 1))",
        "(declare-fun Y_1 () REAL)",
        "(declare-const X_1 real)",
        "(assert (<= 0 X_0 1)) (assert (<= 0 X_1 1))",
        "(declare-const X_0 Real) (declare-fun Y_0 ( ) Real)",
        "(assert (<= Y_0 Y_1))",
        "(check-sat)",
        "(get-model)",
        "(get-value (X_0))",
        "(exit)",
    )
    spec = read_vnnlib(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert (spec.inputs, spec.outputs) == (2, 2)
    assert same(spec, read_vnnlib("\r".join(lines).encode()))
    assert (spec.input_shape, spec.output_shape) == (None, None)
    with pytest.raises(InvalidValueError, match="line 15: 'wrong' outside of parentheses"):
        read_vnnlib("\r".join((*lines, "wrong")).encode())


@settings(max_examples=150)
@given(made.files(), st.randoms(use_true_random=False))
def test_the_property_is_broken_exactly_where_the_text_is_true(file, rng) -> None:
    source, inputs, outputs = file
    try:
        spec = read_vnnlib(source.encode(), inputs=inputs, outputs=outputs)
    except InvalidValueError as error:
        spec, said = None, str(error)
        never = re.search("never true|no input is left", said)
        if not never and "no assertion is about the outputs" not in said:
            raise
    for _ in range(12):
        x, y = ([rng.choice(made.FLOATS) for _ in range(n)] for n in (inputs, outputs))
        point = {**{f"X_{i}": v for i, v in enumerate(x)}, **{f"Y_{k}": v for k, v in enumerate(y)}}
        if spec is not None:
            assert spec.broken_by(np.array(x), np.array(y)) == sexpr.broken(source, point), source
        elif never:
            assert not sexpr.broken(source, point), source
    if spec is not None and any(c.inequalities for case in spec.cases for c in case.conjunctions):
        assert all((c.lower <= c.inner_lower).all() and (c.upper >= c.inner_upper).all() for c in spec.cases)
        assert same(spec, read_vnnlib(write_vnnlib(spec).encode())) or _merged(spec)


def _merged(spec: Property) -> bool:
    """Two boxes differ in the file and have the same floats, which text of floats cannot tell apart."""
    keys = [tuple(np.concatenate([c.lower, c.upper, c.inner_lower, c.inner_upper])) for c in spec.cases]
    return len(set(keys)) < len(keys)
