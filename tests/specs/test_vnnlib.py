"""VNNLIB 1.0: every spelling means what an independent evaluator says, to the last bit; every mistake has its line."""

from __future__ import annotations

import doctest
import gzip
import math
import os
import random
import re
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs import made, sexpr
from vertex_softmax.errors import InvalidTypeError, InvalidValueError, VertexError
from vertex_softmax.specs import formula, normal_form, vnnlib, vnnlib1
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property
from vertex_softmax.specs.vnnlib import read_vnnlib, write_vnnlib

VIT = Path(__file__).parents[3] / "shared" / "data" / "vit" / "vnnlib"
F = Fraction


def text(*asserted: str, inputs: int = 2, outputs: int = 3, box: bool = True) -> str:
    """A file that declares, bounds every input by 0 and 1, and asserts; the first assertion is on line 8."""
    lines = [f"(declare-const X_{i} Real)" for i in range(inputs)]
    lines += [f"(declare-const Y_{k} Real)" for k in range(outputs)]
    if box:
        lines += [f"(assert (>= X_{i} 0)) (assert (<= X_{i} 1))" for i in range(inputs)]
    return "\n".join([*lines, *asserted]) + "\n"


def read(*asserted: str, **made_with: int) -> Property:
    return read_vnnlib(text(*asserted, **made_with).encode())


def only(spec: Property) -> Inequality:
    """The one inequality of a property that has one."""
    ((inequality,),) = [c.inequalities for case in spec.cases for c in case.conjunctions]
    return inequality


def same(a: Property, b: Property) -> bool:
    ends = ("lower", "upper", "inner_lower", "inner_upper")
    return (a.inputs, a.outputs, len(a.cases)) == (b.inputs, b.outputs, len(b.cases)) and all(
        c.conjunctions == d.conjunctions and all(np.array_equal(getattr(c, e), getattr(d, e)) for e in ends)
        for c, d in zip(a.cases, b.cases, strict=True)
    )


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


UP, DOWN, LARGEST = math.inf, -math.inf, sys.float_info.max
TENTH = math.nextafter(0.1, DOWN)  # 0.1 as a float is a little more than 1/10, so these two are around it
MORE = "0.1000000000000000056"  # more than that float, which is nearest to it too
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


@given(st.fractions(max_denominator=10**25) | st.floats(allow_nan=False, allow_infinity=False).map(F), st.booleans())
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


ERRORS = [
    ("(assert (<= Y_0 nan))", 8, "'nan' is not a real number"),
    ("(assert (<= Y_0 -inf))", 8, "'-inf' is not a real number"),
    ("(assert (<= X_0 Infinity))", 8, "'Infinity' is not a real number"),
    ("(assert (<= Y_0\n1e999999999))", 9, "is too long"),
    ("(assert (<= X_0 1e-1501))", 8, "is too long"),
    ("(assert (<= X_0 " + "9" * 1501 + "))", 8, "is too long"),
    ("(assert (<= Y_0 1e" + "0" * 5000 + "1))", 8, "is too long"),
    ("(assert (<= X_0 1e309))", 8, "the bound on X_0 overflows float64"),
    ("(assert (>= X_0 -1.7976931348623158e308))", 8, "the bound on X_0 overflows float64"),
    ("(assert (<= (* 1e-300 X_0) 1e300))", 8, "the bound on X_0 overflows float64"),
    ("(assert (<= Y_0 1e309))", 8, "overflows float64; scale"),
    ("(assert (<= (* 1e309 Y_0) 1))", 8, "overflows float64; scale"),
    ("(assert (<= (* " + "1e1500 " * 5 + "Y_0) 1))", 8, "more than 16384 bits"),
    ("(assert (<= Y_0 (/ 1" + " 1e1500" * 4 + ")))", 8, "more than 16384 bits"),
    ("(assert (<= (+ " + " ".join(f"(/ 1 {10**300 + i})" for i in range(1, 40)) + ") Y_0))", 8, "more than 16384 bits"),
    ("(assert (<= Y_0 0x10))", 8, "'0x10' is neither a number nor a variable"),
    ("(assert (<= Y_0 1_000))", 8, "'1_000' is neither"),
    ("(assert (<= Y_0 \u0661))", 8, "is neither"),
    ("(assert (<= Y_0 .))", 8, "'.' is neither"),
    ("(assert (<= Y_0 e5))", 8, "'e5' is neither"),
    ("(assert (<= Y_0 x_0))", 8, "'x_0' is neither"),
    ("(assert (<= X_00 1))", 8, "'X_00' is neither"),
    ("(assert\n(and (<= Y_0 1)\n(<= Y_3 1)))", 10, "Y_3 is not declared"),
    ("(assert (<= X_2 1))", 8, "X_2 is not declared"),
    ("(assert (<= X_0 X_1))", 8, "a relation between the inputs X_0, X_1 is not supported"),
    ("(assert (or\n(<= Y_0 1)\n(<= (+ X_0 Y_0) 1)))", 10, "a relation between X_0 and outputs is not supported"),
    ("(assert (<= (* Y_0 Y_1) 1))", 8, "not linear"),
    ("(assert (<= (* 2 Y_0 3 Y_1) 1))", 8, "not linear"),
    ("(assert (<= (/ 1 Y_0) 1))", 8, "not linear"),
    ("(assert (<= (/ Y_0 0) 1))", 8, "a division by 0"),
    ("(assert (<= (/ 1 (- 1 1)) Y_0))", 8, "a division by 0"),
    ("(assert (<= (/ Y_0) 1))", 8, "'/' has one operand"),
    ("(assert (<= (+) 1))", 8, "'+' has no operands"),
    ("(assert (<= Y_0))", 8, "'<=' compares at least two terms, and has 1"),
    ("(assert (<=))", 8, "'<=' compares at least two terms, and has 0"),
    ("(assert (<= Y_0 (<= Y_1 1)))", 8, "'<=' takes terms"),
    ("(assert (<= Y_0 (+ 1 (<= X_0 1))))", 8, "'+' takes terms"),
    ("(assert (<= Y_0 ()))", 8, "'<=' takes terms"),
    ("(assert (and (+ Y_0 1)))", 8, "'and' takes formulas"),
    ("(assert (or Y_0))", 8, "'or' takes formulas, and 'Y_0' is not a formula"),
    ("(assert Y_0)", 8, "'assert' takes formulas"),
    ("(assert ())", 8, "'assert' takes formulas"),
    ('(assert "true")', 8, "'assert' takes formulas"),
    ("(assert (and))", 8, "'and' has no operands"),
    ("(assert (not))", 8, "'not' has no operands"),
    ("(assert (not (<= Y_0 1) (<= Y_1 1)))", 8, "'not' takes one operand, and has 2"),
    ("(assert (=>))", 8, "'=>' has no operands"),
    ("(assert)", 8, "'assert' takes one formula, and has 0"),
    ("(assert (<= Y_0 1) (<= Y_1 1))", 8, "'assert' takes one formula, and has 2"),
    ("(assert (let ((a 1)) (<= Y_0 a)))", 8, "'let' is not supported here"),
    ("(assert (xor (<= Y_0 1) (<= Y_1 1)))", 8, "'xor' is not supported here"),
    ("(assert (assert (<= Y_0 1)))", 8, "'assert' is not supported here"),
    ("(assert ((<= Y_0 1)))", 8, "a form that starts with a form"),
    ("((assert (<= Y_0 1)))", 8, "a form that starts with a form"),
    ("\n(define-fun f () Real 1)", 9, "'define-fun' is not supported here"),
    ("(declare-network n)", 8, "'declare-network' is not supported here"),
    ("(<= Y_0 1)", 8, "'<=' is not supported here"),
    ("(<= X_0 1)", 8, "'<=' is not supported here"),
    ("()", 8, "() says nothing"),
    ("\n\nassert", 10, "'assert' outside of parentheses"),
    ("; it is (\n)", 9, "a closing parenthesis without an opening one"),
    ("(assert (<= Y_0 1)))", 8, "a closing parenthesis without an opening one"),
    ("\n(assert\n (or (<= Y_0 1)\n", 9, "a parenthesis is opened here and never closed"),
    ("(assert", 8, "a parenthesis is opened here and never closed"),
    ("(", 8, "a parenthesis is opened here and never closed"),
    ("(set-info :a (b)", 8, "a parenthesis is opened here and never closed"),
    ('(set-info :a "x)\n(assert (<= Y_0 1))\n(set-info :b "y")', 10, 'a " is opened here and never closed'),
    ("(set-info :a |x)", 8, "a | is opened here and never closed"),
    ("(declare-const X_1 Real)", 8, "X_1 is declared a second time"),
    ("(declare-const Y_0 Real)", 8, "Y_0 is declared a second time"),
    ("(declare-const X_3 Real)", 8, "X_3 is declared and X_2 is not"),
    ("(declare-const Y_999999999 Real)", 8, "Y_999999999 is declared and Y_3 is not"),
    ("(declare-const Z_0 Real)", 8, "'declare-const' declares 'Z_0'"),
    ("(declare-const X_02 Real)", 8, "'declare-const' declares 'X_02'"),
    ("(declare-const X_9999999999 Real)", 8, "declares 'X_9999999999'"),
    ("(declare-const)", 8, "'declare-const' declares nothing"),
    ("(declare-const X_2)", 8, "X_2 is not declared as Real"),
    ("(declare-const X_2 Int)", 8, "X_2 is not declared as Real"),
    ("(declare-const X_2 Real Real)", 8, "X_2 is not declared as Real"),
    ("(declare-const X_2 ())", 8, "X_2 is not declared as Real"),
    ("(declare-fun X_2 Real)", 8, "X_2 is declared with arguments"),
    ("(declare-fun X_2 (Real) Real)", 8, "'Real' is not supported here"),
    ("(assert false)", 8, "never true"),
    ("(assert (and (<= Y_0 1) (< 1 1)))", 8, "never true"),
    ("(assert (not (or (<= Y_0 1) true)))", 8, "never true"),
    ("(assert (and (<= Y_0 0)\n(<= X_0 -0.5)))", 9, "X_0 would have to be ≥ 0.0 and ≤ -0.5, so that no input is left"),
    ("(assert (<= Y_0 0))\n(assert (or (< X_0 0) (> X_0 1)))", 9, "X_0 would have to be ≥ 0.0 and < 0.0"),
    (f"(assert (<= Y_0 0)) (assert (>= X_0 {MORE}))\n(assert (<= X_0 0.1))", 9, "no input is left"),
    ("(assert (<= Y_0 0)) (assert (> X_0 (/ 1 3)))\n(assert (<= X_0 (/ 1 3)))", 9, "no input is left"),
]


@pytest.mark.parametrize(("added", "line", "said"), ERRORS)
def test_an_error_names_file_line_and_fault(added, line, said, tmp_path) -> None:
    path = tmp_path / "wrong.vnnlib"
    path.write_text(text(added))
    with pytest.raises(InvalidValueError) as found:
        read_vnnlib(path)
    assert str(found.value).startswith(f"{path}, line {line}: "), str(found.value)[:300]
    assert said in str(found.value)
    assert len(str(found.value)) < 600


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ("; nothing\n\n", 1, "declares no inputs"),
        ("(declare-const Y_0 Real)\n(assert (<= Y_0 1))\n\n", 2, "declares no inputs"),
        ("(declare-const X_0 Real)\n(assert (<= 0 X_0 1))", 2, "declares no outputs"),
        (text(box=False), 5, "the file asserts nothing"),
        (text(), 7, "no assertion is about the outputs"),
        (text("(assert (or (<= Y_0 Y_0) (<= X_0 0.5)))"), 8, "no assertion is about the outputs"),
        (text("(assert (<= Y_0 1))", box=False), 1, "X_0, X_1, declared here, have no lower or no upper bound"),
        (
            text("(assert (<= Y_0 1)) (assert (<= 0 X_0 1)) (assert (<= X_1 1))", box=False),
            2,
            "X_1, declared here, has",
        ),
        (
            text("(assert (<= Y_0 1)) (assert (<= 0 X_0 1)) (assert (>= X_1 1))", box=False),
            2,
            "X_1, declared here, has",
        ),
        (
            text("(assert (<= Y_0 1)) (assert (<= 0 X_0 1)) (assert (or (<= 0 X_1 1) (<= 3 X_1)))", box=False),
            2,
            "X_1, declared here, has no lower or no upper bound in box 2 of 2",
        ),
        (text("(assert (<= Y_0 1))", inputs=9, box=False), 1, "X_0, X_1, X_2, X_3, X_4 and 4 others, declared here"),
    ],
)
def test_what_is_missing_is_named(source, line, said) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(f"the property, line {line}: ")) as found:
        read_vnnlib(source.encode())
    assert said in str(found.value)


def test_an_empty_disjunct_is_dropped_before_its_bounds_are_asked_for() -> None:
    spec = read_vnnlib(
        text("(assert (or (<= 0 X_0 1) (and (<= X_0 0) (>= X_0 1)) (and (< X_0 0) (= X_0 0))))",
             "(assert (<= Y_0 1))", inputs=1, box=False).encode()
    )  # fmt: skip
    assert len(spec.cases) == 1


@pytest.mark.parametrize(
    ("counts", "said"), [((3, None), "2 inputs, and the model has 3"), ((2, 4), "3 outputs, and the")]
)
def test_the_models_counts(counts, said) -> None:
    source = text("(assert (<= Y_0 1))").encode()
    assert read_vnnlib(source, inputs=2, outputs=3).inputs == 2
    with pytest.raises(InvalidValueError, match=said):
        read_vnnlib(source, inputs=counts[0], outputs=counts[1])


def test_files(tmp_path, monkeypatch) -> None:
    source = text("(assert (<= Y_0 1))")
    plain, packed, cut, odd = (tmp_path / name for name in ("a.vnnlib", "a.vnnlib.gz", "cut.gz", "odd.vnnlib"))
    plain.write_text(source)
    packed.write_bytes(gzip.compress(source.encode()))
    cut.write_bytes(gzip.compress(source.encode())[:-12])
    odd.write_bytes(source.encode() + b"; \xff\n")
    assert same(read_vnnlib(plain), read_vnnlib(str(packed)))
    assert same(read_vnnlib(plain), read_vnnlib(gzip.compress(source.encode())))
    for path, said in (
        (tmp_path / "missing", "is not a file"),
        (tmp_path, "is not a file"),
        (source, "is not a file"),
        (cut, "is a damaged gzip file"),
        (odd, "line 9: not UTF-8"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            read_vnnlib(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidValueError, match="is not a file"):
        read_vnnlib(tmp_path / "pipe")
    with pytest.raises(InvalidValueError, match="is empty"):
        read_vnnlib(b"")
    with pytest.raises(InvalidValueError, match="damaged gzip"):
        read_vnnlib(b"\x1f\x8bnot")
    with pytest.raises(InvalidTypeError, match="the property is a int"):
        read_vnnlib(7)  # type: ignore[arg-type]
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(InvalidValueError, match=r"cannot be read \(Permission denied\)"):
        read_vnnlib(plain)
    monkeypatch.undo()
    monkeypatch.setattr(vnnlib, "LIMIT", 100)
    for path, said in (
        (plain, f"has {len(source)} bytes"),
        (packed, "more than 100"),
        (source.encode(), "more than 100"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            read_vnnlib(path)


def test_the_disjunctive_normal_form_is_limited(monkeypatch) -> None:
    two = "(assert (or (<= Y_0 1) (<= Y_1 1)))"
    with pytest.raises(InvalidValueError, match=r"line 26: with this assertion .* 524288 disjuncts"):
        read(*[two] * 19, "(assert (<= Y_2 0))")
    monkeypatch.setattr(normal_form, "DISJUNCTS", 32)
    nested = "(and " + "(or (<= Y_0 1) (<= Y_1 1)) " * 30 + ")"
    with pytest.raises(InvalidValueError, match=r"line 8: with this assertion .* has 64 disjuncts"):
        read(f"(assert (or (<= Y_0 1) {nested}))")
    monkeypatch.setattr(normal_form, "DISJUNCTS", 4)
    assert len(read(two, two).cases[0].conjunctions) == 4
    with pytest.raises(InvalidValueError, match="has 8 disjuncts"):
        read(two, two, two)
    with pytest.raises(InvalidValueError, match="has 5 disjuncts and 5 inequalities"):
        read("(assert (or " + "(<= Y_0 1)" * 5 + "))")
    monkeypatch.setattr(normal_form, "LITERALS", 7)
    with pytest.raises(InvalidValueError, match="has 4 disjuncts and 8 inequalities"):
        read(two, two)
    with pytest.raises(InvalidValueError, match="has 2 disjuncts and 8 inequalities"):
        read(*["(assert (<= Y_2 1))"] * 4, two)
    monkeypatch.setattr(normal_form, "NUMBERS", 3)
    with pytest.raises(InvalidValueError, match="line 9: 2 boxes of 2 inputs are more than 3 numbers"):
        read("(assert (<= Y_0 1))", "(assert (or (<= X_0 0.5) (>= X_0 0.5)))")


@pytest.mark.parametrize(
    ("before", "inside", "after", "holds"),
    [
        ("(and ", "(<= Y_0 1)", ")", True),
        ("(or ", "(<= Y_0 1)", ")", True),
        ("(not ", "(<= Y_0 1)", ")", True),
        ("(not (or ", "(<= Y_0 1)", "))", True),
        ("(and (<= Y_0 1) ", "(<= Y_0 1)", ")", True),
        ("(or (<= Y_0 1) ", "(<= Y_0 1)", ")", True),
        ("(=> ", "(<= Y_0 1)", ")", True),
    ],
)
def test_deep_formulas(before, inside, after, holds) -> None:
    depth = 100_000 if before in ("(and ", "(not ") else 20_000
    spec = read("(assert " + before * depth + inside + after * depth + ")")
    assert spec.broken_by(np.array([0.5, 0.5]), np.array([0.0, 0, 0])) == holds


def test_deep_terms() -> None:
    depth, outputs = 20_000, 500
    wide = "(+ " + " ".join(f"Y_{k}" for k in range(outputs)) + ")"
    found = only(read("(assert (<= " + "(- " * depth + wide + ")" * depth + " 1))", outputs=outputs))
    assert set(found.coefficients.values()) == {1}
    found = only(read("(assert (<= " + "(+ 1 " * depth + "Y_0" + ")" * depth + " 1))"))
    assert found.limit == 1 - depth


def test_nothing_backtracks() -> None:
    start = time.process_time()
    for source in (";" * 100_000 + "\n" + text("(assert (<= Y_0 1))"), text("(assert (<= Y_0 1))", "; " * 100_000)):
        assert read_vnnlib(source.encode()).inputs == 2
    for rest in ('"' * 99_999, "|" * 99_999, "(set-info " + '"' * 99_999, "(assert (<= X_0 " + "1" * 99_999 + "x))"):
        with pytest.raises(InvalidValueError, match="line 8"):
            read(rest)
    inequality, several = "(<= Y_0 1)", "(or false (<= Y_0 1)) " * 3000
    nested = f"(or {inequality} (and {inequality} " * 300 + inequality + "))" * 300
    assert len(read(f"(assert {nested})").cases[0].conjunctions) == 301
    assert len(read(f"(assert (or {inequality} (and {several})))").cases[0].conjunctions[1].inequalities) == 3000
    assert time.process_time() - start < 5  # 0.5 s alone


def test_nesting_is_limited(monkeypatch) -> None:
    monkeypatch.setattr(vnnlib1, "DEPTH", 4)
    assert read("(assert (and (and (<= Y_0 1))))").inputs == 2
    with pytest.raises(InvalidValueError, match="line 9: parentheses nest deeper than 4"):
        read("(assert (and (and (and", "(<= Y_0 1)))))")


def test_parentheses_alone() -> None:
    with pytest.raises(InvalidValueError, match="line 8"):
        read("(" * 50_000)
    with pytest.raises(InvalidValueError, match="line 8"):
        read("(assert " + "(and " * 50_000)


def test_a_large_file_is_quick() -> None:
    inputs = 20_000
    lines = [f"(assert (<= X_{i} {i * 0.001 + 0.3!r}))\n(assert (>= X_{i} {i * 0.001!r}))" for i in range(inputs)]
    source = text(*lines, "(assert (<= Y_0 Y_1))", inputs=inputs, box=False).encode()
    start = time.process_time()
    spec = read_vnnlib(source)
    assert time.process_time() - start < 4  # 0.5 s alone
    assert spec.cases[0].lower[-1] <= 19.999 <= spec.cases[0].inner_lower[-1]


def test_written_numbers() -> None:
    third = Conjunction((Inequality({0: F(-1, 3), 1: F(10) ** 20}, F(3, 5**9), True), Inequality({}, F(0))))
    ends = np.array([5e-324, -1.5, 0.1])
    spec = Property((Case(ends, ends + 1, ends, ends + 1, (third, Conjunction(()))),), 3, 2)
    source = write_vnnlib(spec)
    assert "(* (/ -1 3) Y_0) (* 100000000000000000000.0 Y_1)" in source
    again = read_vnnlib(source.encode())
    assert again.cases[0].conjunctions[0].inequalities == third.inequalities[:1]  # 0 ≤ 0 vanishes
    assert again.cases[0].conjunctions[1].inequalities == ()
    assert np.array_equal(again.cases[0].lower, ends)
    assert np.array_equal(again.cases[0].inner_upper, ends + 1)


def test_what_cannot_be_written() -> None:
    ends, wide = np.array([0.0]), np.array([1.0])
    fine = Conjunction((Inequality({0: F(1)}, F(0)),))
    for spec, said in (
        (Property((), 1, 1), "nothing breaks"),
        (Property((Case(ends, wide, ends, wide, ()),), 1, 1), "nothing breaks"),
        (Property((Case(ends, wide, wide, wide, (fine,)),), 1, 1), "input 0 ends between 0.0 and 1.0"),
        (Property((Case(ends, ends + np.inf, ends, ends + np.inf, (fine,)),), 1, 1), "input 0 ends between inf"),
        (
            Property((Case(ends, wide, ends, wide, (Conjunction((Inequality({0: F(1, 3**4000)}, F(0)),)),)),), 1, 1),
            "1500",
        ),
    ):
        with pytest.raises(InvalidValueError, match=said):
            write_vnnlib(spec)


def test_the_example() -> None:
    found = doctest.testmod(vnnlib, extraglobs={"np": np})
    assert (found.attempted > 0, found.failed) == (True, 0)


def test_mutated_files_raise_our_errors_only() -> None:
    rng = random.Random(0)
    source = text(
        "(assert (or (and (<= X_0 0.5) (>= Y_0 (* 2 Y_1))) (not (= Y_2 1e-3)))) ; note",
        "(assert (=> (< (- Y_0 (/ 1 3)) 1) (<= 0 Y_1 1)))",
    ).encode()
    pieces = (
        b"(",
        b")",
        b"(and",
        b"(<= X_0 0.1)",
        b"X_1",
        b"1e999",
        b"/",
        b";",
        b'"',
        b"|",
        b"\xff",
        b"\0",
        b"-",
        b"()",
        b"=",
    )
    read_at_all = 0
    for _ in range(2500):
        mutant = bytearray(source)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(mutant))
            if rng.random() < 0.5:
                del mutant[at : at + rng.choice((1, 1, 3, 20))]
            else:
                mutant[at:at] = rng.choice((*pieces, rng.randbytes(2), bytes(mutant[at - 30 : at])))
        try:
            read_at_all += isinstance(read_vnnlib(bytes(mutant)), Property)
        except VertexError as error:
            assert "line " in str(error)  # noqa: PT017
    assert 25 < read_at_all < 1500


@pytest.mark.skipif(not VIT.is_dir(), reason="the VNN-COMP files are not here")
def test_the_vision_transformers_of_vnncomp() -> None:
    files = sorted(VIT.glob("*.vnnlib.gz"))
    assert len(files) == 60
    for path in files:
        spec = read_vnnlib(path, inputs=3072, outputs=10)
        (case,) = spec.cases
        assert len(case.conjunctions) == 9
        source = gzip.decompress(path.read_bytes()).decode()
        label = int(re.search(r"label: (\d+)", source)[1])
        assert [sorted(c.inequalities[0].coefficients) for c in case.conjunctions] == [
            sorted((k, label)) for k in range(10) if k != label
        ]
        for sign, ends, inner in ((">=", case.lower, case.inner_lower), ("<=", case.upper, case.inner_upper)):
            found = re.findall(rf"\({sign} X_(\d+) ([-+.e0-9]+)\)", source)
            assert [int(i) for i, _ in found] == list(range(3072))
            for i, number in found[:: 7 if path == files[0] else 307]:
                low, exact, high = sorted((F(ends[int(i)]), F(number), F(inner[int(i)])))
                assert exact == F(number)
                assert high in (low, F(math.nextafter(float(low), UP)))
