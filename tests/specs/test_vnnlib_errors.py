"""VNNLIB files that are wrong, deep, large or hostile, and files written by us."""

from __future__ import annotations

import doctest
import gzip
import math
import os
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest

from tests.specs.vnnlib_cases import MORE, UP, F, only, read, same, text
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, VertexError
from vertex_softmax.specs import normal_form, vnnlib, vnnlib1
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property
from vertex_softmax.specs.vnnlib import read_vnnlib, write_vnnlib

VIT = Path(__file__).parents[3] / "shared" / "data" / "vit" / "vnnlib"


ERRORS = [
    ("(check-sat)\n(assert (<= Y_0 1))", 9, "'assert' after (check-sat) is no part of what is asked"),
    ("(check-sat)\n(get-model)\n(exit)\n(assert\n(<= Y_0 1))", 11, "'assert' after (exit) is no part"),
    ("(exit)\n\n(declare-const Y_9 Real)", 10, "'declare-const' after (exit) is no part"),
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
    ("(asser", 8, "a parenthesis is opened here and never closed"),
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
    model = tmp_path / "model.onnx"
    model.write_bytes(b"\x08\x08\x12\x07pytorch\xff")
    assert same(read_vnnlib(plain), read_vnnlib(str(packed)))
    assert same(read_vnnlib(plain), read_vnnlib(gzip.compress(source.encode())))
    for path, said in (
        (tmp_path / "missing", "is not a file"),
        (tmp_path, "is not a file"),
        (source, "is not a file"),
        (cut, "is a damaged gzip file"),
        (odd, "line 9: not UTF-8"),
        (model, "seems to be a model, not a property"),
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
    files = sorted(VIT.glob("*.vnnlib.gz"))[:60]
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
