"""VNNLIB 2.0 through the package `vnnlib`: the same property as in 1.0; what is not supported has its line."""

from __future__ import annotations

import builtins
import random
import re
import sys
import types
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.specs.test_vnnlib import same
from vertex_softmax.foundation.errors import InvalidValueError, MissingDependencyError, VertexError
from vertex_softmax.specs.property import Property
from vertex_softmax.specs.vnnlib import read_vnnlib

HEAD = """(vnnlib-version <2.0>)
(declare-network net ; one
  (declare-input X float32 [1, 2])
  (declare-output Y float32 [3])
)
"""
BOX = "(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0)))\n(assert (and (>= X[0,1] 0.0) (<= X[0,1] 1.0)))\n"


def read(*asserted: str, head: str = HEAD, box: str = BOX) -> Property:
    return read_vnnlib((head + box + "\n".join(asserted) + "\n").encode())


def test_a_file_and_its_shapes() -> None:
    spec = read(
        "(assert (or (<= (+ Y[0] (* 2.0 Y[1]) (- 1.5)) Y[1]) (!= Y[2] 3.0) (== Y[0] -3.5) (> (- Y[0] 0.1 Y[1]) 0.0)))"
    )
    assert (spec.inputs, spec.outputs, spec.input_shape, spec.output_shape) == (2, 3, (1, 2), (3,))
    assert spec.declared == (("X", "float32"), ("Y", "float32"))
    (case,) = spec.cases
    assert [[(dict(i.coefficients), i.limit, i.strict) for i in c.inequalities] for c in case.conjunctions] == [
        [({0: 1, 1: 1}, Fraction(3, 2), False)],
        [({2: -1}, -3, True)],
        [({2: 1}, 3, True)],
        [({0: 1}, Fraction(-7, 2), False), ({0: -1}, Fraction(7, 2), False)],
        [({0: -1, 1: 1}, Fraction(-1, 10), True)],
    ]


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "bfloat16", "real", "Real"])
def test_element_types(kind) -> None:
    spec = read("(assert (<= (* 2.0 Y[0]) 0.5))", head=HEAD.replace("float32", kind))
    assert spec.declared == (("X", kind.lower()), ("Y", kind.lower()))
    assert spec.cases[0].conjunctions[0].inequalities[0].limit == Fraction(1, 2)


def test_tensors_are_flattened_row_by_row() -> None:
    head = HEAD.replace("[1, 2]", "[2,3,2]").replace("[3]", "[]")
    box = "".join(f"(assert (== X[{a},{b},{c}] {a}{b}{c}.0))\n" for a in range(2) for b in range(3) for c in range(2))
    spec = read("(assert (<= Y 0.0))", head=head, box=box)
    assert spec.cases[0].lower.tolist() == [0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121]
    assert (spec.outputs, spec.output_shape) == (1, ())


def test_numbers_are_exact_and_line_ends_any() -> None:
    source = HEAD + BOX.replace("1.0", "0.1") + "; é\0\n(assert (<= Y[0] 0.30000000000000000000001))"
    spec = read_vnnlib(b"\xef\xbb\xbf" + source.replace("\n", "\r\n").encode())
    assert spec.cases[0].upper[0] > spec.cases[0].inner_upper[0]
    assert spec.cases[0].conjunctions[0].inequalities[0].limit == Fraction(30000000000000000000001, 10**23)


ERRORS = [
    ("(assert (<= Y[0]\n1.0e5))", 9, "syntax error"),
    ("(assert (not (<= Y[0] 1.0)))", 8, "syntax error"),
    ("\n(assert (<= Y[3] 1.0))", 9, "Index 3 is out of bounds"),
    ("(assert (<= Y[0,0] 1.0))", 8, "Too many indices"),
    ("(assert (<= Y[-1] 1.0))", 8, "the subscript '[-1]'"),
    ("(assert (<= Y[0.5] 1.0))", 8, "the subscript '[0.5]'"),
    ("(assert (<= Y[99999999999] 1.0))", 8, "the subscript"),
    ("(assert (<= Y[0] 1))", 8, "Type mismatch"),
    ("(assert (<= Z[0] 1.0))", 8, "Undeclared variable"),
    ("(assert (<= X[0,0] X[0,1]))", 8, "a relation between the inputs X_0, X_1 is not supported"),
    ("(assert (or (<= Y[0] 1.0)\n(<= X[0,1] Y[1])))", 9, "a relation between X_1 and outputs is not supported"),
    ("(assert (<= (* Y[0] Y[1]) 1.0))", 8, "not linear"),
    ("(assert (<= Y[0] " + "9" * 400 + ".0))", 8, "cannot read the number"),
    ("(assert (<= Y[0] 1.0))\n(assert (<= X[0,1] -1.0))", 9, "no input is left"),
    ("(assert (<= X[0,0] 1.0))", 8, "no assertion is about the outputs"),
    ("(assert (<= Y[0] 1.0))\0(assert (<= Y[1] 1.0))", 8, "the character '\\x00'"),
    ("(assert (<= \u00e9[0] 1.0))", 8, "the character '\u00e9'"),
    ("(assert " + "(and " * 99 + "(<= Y[0] 1.0)" + ")" * 100, 8, "nest deeper than 100"),
    ("(assert " + "(and " * 1000000, 8, "nest deeper than 100"),
    ("(assert (<= Y[0] (- 1.0", 8, "syntax error"),
    ("[" * 100_000, 8, "the subscript '['"),
    ("[" + " " * 100_000 + "x]", 8, "the subscript"),
    ("[" + "1, " * 100_000, 8, "the subscript"),
    (";" * 100_000, 7, "no assertion is about the outputs"),
]


@pytest.mark.parametrize(("added", "line", "said"), ERRORS)
def test_an_error_names_line_and_fault(added, line, said) -> None:
    with pytest.raises(InvalidValueError) as found:
        read(added)
    assert str(found.value).startswith(f"the property, line {line}: ")
    assert said in str(found.value)


HEADS = [
    ("Y float32", "Y foo", 4, "type Unknown"),
    ("<2.0>", "<2.1>", 1, "version 2.1; VNNLIB 1.0 and 2.0 are read"),
    ("<2.0>", "<1.0>", 1, "version 1.0"),
    ("(vnnlib-version <2.0>)", "", 2, "syntax error"),
    ("[1, 2]", "[1, 2.5]", 3, "the subscript"),
    ("[1, 2]", "[1, 0]", 3, "Dimensions must be positive"),
    ("[1, 2]", "[99999, 99999]", 3, "9999800001 elements"),
    ("[3]", "[999999999]", 4, "999999999 elements"),
    ("  (declare-output", "  (declare-input Z float32 [1])\n  (declare-output", 4, "2 inputs"),
    ("[3])", "[3])\n  (declare-output Z float32 [1])", 5, "2 outputs"),
    ("  (declare-output", '  (declare-hidden H float32 [1] "a;(")\n(declare-output', 4, "hidden tensors"),
    (
        "[3])\n)",
        "[3]))\n(declare-network two (declare-input A float32 [1]) (declare-output B float32 [1]))",
        5,
        "2 networks",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "said"), HEADS)
def test_declarations_that_are_not_supported(old, new, line, said) -> None:
    with pytest.raises(InvalidValueError) as found:
        read("(assert (<= Y[0] 1.0))", head=HEAD.replace(old, new))
    assert str(found.value).startswith(f"the property, line {line}: ")
    assert said in str(found.value)


def test_integers_are_not_supported() -> None:
    with pytest.raises(
        InvalidValueError, match="line 3: the input X has elements of type I8; use real or a float type"
    ):
        read("(assert (<= Y[0] 1))", head=HEAD.replace("float32", "int8"), box=BOX.replace(".0", ""))


def test_an_input_without_bounds_is_named_where_it_is_declared() -> None:
    with pytest.raises(InvalidValueError, match="line 3: X_0, X_1, declared here, have no lower or no upper bound"):
        read("(assert (<= Y[0] 1.0))", box="")


@pytest.mark.parametrize("package", [None, types.ModuleType("vnnlib")])
def test_without_the_package(package, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "vnnlib", package)
    with pytest.raises(MissingDependencyError, match=re.escape("pip install 'vertex-softmax[vnnlib]'")):
        read("(assert (<= Y[0] 1.0))")
    assert issubclass(MissingDependencyError, builtins.ImportError)


@pytest.mark.parametrize(("what", "line"), [("inputs", 3), ("outputs", 4)])
def test_names_of_the_models_tensors_are_not_ignored(what, line, monkeypatch) -> None:
    """The package reads such names of hidden tensors only; the standard allows them of inputs and outputs."""
    import vnnlib

    def named(text: str) -> object:
        query = vnnlib.parse_query_string(text)
        (network,) = query.networks
        parts = {part: list(getattr(network, part)) for part in ("inputs", "outputs")}
        tensor = parts[what][0]
        parts[what] = [types.SimpleNamespace(name="T", dtype=tensor.dtype, shape=tensor.shape, onnx_name='"logits"')]
        network = types.SimpleNamespace(hidden=[], **parts)
        return types.SimpleNamespace(networks=[network], assertions=query.assertions)

    fake = types.SimpleNamespace(parse_query_string=named, VNNLibException=vnnlib.VNNLibException)
    monkeypatch.setitem(sys.modules, "vnnlib", fake)
    with pytest.raises(InvalidValueError, match=f"line {line}: the {what[:-1]} T is said to be.*logits.*not compared"):
        read("(assert (<= Y[0] 1.0))")


def test_the_models_counts() -> None:
    source = (HEAD + BOX + "(assert (<= Y[0] 1.0))").encode()
    assert read_vnnlib(source, inputs=2, outputs=3).outputs == 3
    with pytest.raises(InvalidValueError, match="declares 3 outputs, and the model has 4"):
        read_vnnlib(source, inputs=2, outputs=4)


NUMBERS = st.sampled_from(("0.0", "0.1", "-0.5", "1.0", "(- 0.3)", "(+ 0.1 0.2)", "(* 0.5 -3.0)"))
TERMS = st.recursive(
    NUMBERS | st.sampled_from(("Y[0]", "Y[1]", "Y[2]")),
    lambda inner: (
        st.builds(
            lambda op, parts: f"({op} {' '.join(parts)})",
            st.sampled_from("+-"),
            st.lists(inner, min_size=1, max_size=3),
        )
        | st.builds(lambda number, part: f"(* {number} {part})", NUMBERS, inner)
    ),
    max_leaves=4,
)
COMPARED = st.builds(
    lambda op, parts: f"({op} {' '.join(parts)})",
    st.sampled_from(("<=", ">=", "<", ">", "==", "!=")),
    st.tuples(TERMS, TERMS) | st.tuples(st.sampled_from(("X[0,0]", "X[0,1]")), NUMBERS),
)
FORMULAS = st.recursive(
    COMPARED,
    lambda inner: st.builds(
        lambda op, parts: f"({op} {' '.join(parts)})",
        st.sampled_from(("and", "or")),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@settings(max_examples=150)
@given(st.lists(FORMULAS, min_size=1, max_size=3))
def test_both_versions_read_the_same(formulas) -> None:
    second = HEAD + BOX + "".join(f"(assert {f})\n" for f in formulas) + "(assert (<= Y[0] 9.0))\n"
    body = second.replace(HEAD, "")
    first = "".join(f"(declare-const {v} Real)\n" for v in ("X_0", "X_1", "Y_0", "Y_1", "Y_2"))
    body = re.sub(r"X\[0,(\d)\]", r"X_\1", re.sub(r"Y\[(\d)\]", r"Y_\1", body)).replace("==", "=")
    first += _without_unequal(body)
    found: list[Property | str] = []
    for source in (first, second):
        try:
            found.append(read_vnnlib(source.encode()))
        except InvalidValueError as error:
            found.append(str(error).split(": ", 1)[1])
    if isinstance(found[0], Property) and isinstance(found[1], Property):
        assert same(found[0], found[1])
    else:
        assert found[0] == found[1]


def _without_unequal(source: str) -> str:
    """(!= a b) as (not (= a b))."""
    while (at := source.find("(!=")) >= 0:
        depth, end = 0, at
        while True:
            depth += {"(": 1, ")": -1}.get(source[end], 0)
            end += 1
            if not depth:
                break
        source = f"{source[:at]}(not (={source[at + 3 : end]}){source[end:]}"
    return source


def test_mutated_files_raise_our_errors_only() -> None:
    rng = random.Random(1)
    source = HEAD + BOX + "(assert (or (<= (+ Y[0] (* 2.0 Y[1])) 1.5) (!= Y[2] -3.0)))\n"
    pieces = ("(", ")", "[", "]", ",", "9", "1.5", "Y", ";", '"', "\0", "é", "9" * 30, "(and", "[]", "Real", "-", "\\")
    read_at_all = 0
    for _ in range(1500):
        mutant = source
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(mutant))
            if rng.random() < 0.5:
                mutant = mutant[:at] + mutant[at + rng.choice((1, 1, 3, 20)) :]
            else:
                mutant = mutant[:at] + rng.choice(pieces) + mutant[at:]
        try:
            spec = read_vnnlib(mutant.encode())
            read_at_all += 1
            assert not spec.broken_by(np.zeros(spec.inputs), np.full(spec.outputs, np.nan))
        except VertexError as error:
            assert "line " in str(error)  # noqa: PT017
    assert 20 < read_at_all < 1000
    assert read("(assert (<= Y[0] 1.0))").inputs == 2


def test_more_inputs_than_the_text_could_bound_are_refused_at_once() -> None:
    text = (
        b"(vnnlib-version <2.0>)(declare-network f (declare-input x Real [16777216]) (declare-output y Real [1]))"
        b"(assert (<= y[0] 1.0))"
    )
    with pytest.raises(InvalidValueError, match="the input has 16777216 elements; up to 125 are read in this file"):
        read_vnnlib(text)
