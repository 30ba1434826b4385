"""Random VNNLIB files for hypothesis, and points at which they are hard to read right."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import strategies as st

NUMBERS = (
    *("0", "1", "-1", "0.1", "-0.1", "0.3", "2.5", "1e-1", "1E+0", "-3e-2", "+0.7", ".5", "-.25", "3.", "0.0", "-0.0"),
    *("0.1000000000000000055511151231257827021181583404541015625", "0.10000000000000000555", "0.1000000000000000056"),
    *("(/ 1 3)", "(- 0.5)", "(/ -2 3)", "(- (/ 1 10))", "(* 0.1 3)", "(+ 0.1 0.2)", "(- 1 0.7)", "(/ 1 4 2)"),
)


def spoilt(draw: st.DrawFn, words: list[str]) -> str:
    """The words in parentheses, with any blanks between them."""
    if draw(st.booleans()):
        return f"({' '.join(words)})"
    blank = draw(st.sampled_from((" ", "  ", "\n", "\t", " ; a note ) (\n", "\r\n")))
    return "(" + blank + blank.join(words) + blank + ")"


@st.composite
def term(draw: st.DrawFn, outputs: int) -> str:
    """Linear in the outputs."""
    kind = draw(st.integers(0, 6))
    variable = f"Y_{draw(st.integers(0, outputs - 1))}"
    number = draw(st.sampled_from(NUMBERS))
    if kind == 0:
        return number
    if kind <= 2:
        return variable
    if kind == 3:
        return spoilt(draw, ["*", *draw(st.permutations([number, variable]))])
    if kind == 4:
        return spoilt(draw, ["/", variable, draw(st.sampled_from(("3", "-0.5", "(/ 1 7)")))])
    parts = draw(st.lists(term(outputs), min_size=1, max_size=3))
    if kind == 5:
        return spoilt(draw, ["+", *parts])
    return spoilt(draw, ["-", *parts])


@st.composite
def bound(draw: st.DrawFn, inputs: int) -> str:
    """On one input, spelled in any way."""
    name = f"X_{draw(st.integers(0, inputs - 1))}"
    number = draw(st.sampled_from(NUMBERS))
    operator = draw(st.sampled_from(("<=", ">=", "<=", ">=", "<", ">", "=")))
    kind = draw(st.integers(0, 4))
    if kind <= 1:
        return spoilt(draw, [operator, name, number])
    if kind == 2:
        return spoilt(draw, [operator, number, name])
    if kind == 3:
        return spoilt(draw, [operator, f"(* -2 {name})", number])
    return spoilt(draw, [operator, f"(- {name} {number})", f"(+ (* 3 {name}) 0.1)"])


def formula(inputs: int, outputs: int) -> st.SearchStrategy[str]:
    """Of bounds and inequalities, nested."""

    @st.composite
    def compared(draw: st.DrawFn) -> str:
        operator = draw(st.sampled_from(("<=", ">=", "<", ">", "=")))
        return spoilt(draw, [operator, *draw(st.lists(term(outputs), min_size=2, max_size=3))])

    def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        @st.composite
        def junction(draw: st.DrawFn) -> str:
            operator = draw(st.sampled_from(("and", "or", "or", "not", "=>")))
            parts = draw(st.lists(inner, min_size=1, max_size=1 if operator == "not" else 3))
            return spoilt(draw, [operator, *parts])

        return junction()

    leaf = st.one_of(bound(inputs), compared(), compared(), st.sampled_from(("true", "false")))
    return st.recursive(leaf, nested, max_leaves=8)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, int, int]:
    """A text, and how many inputs and outputs it declares."""
    inputs, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    names = [f"X_{i}" for i in range(inputs)] + [f"Y_{k}" for k in range(outputs)]
    declared = [
        draw(st.sampled_from(("(declare-const {} Real)", "(declare-fun {} () real)", "( declare-const\n{} REAL )")))
        for _ in names
    ]
    lines = [line.format(name) for line, name in zip(declared, draw(st.permutations(names)), strict=True)]
    for i in range(inputs):
        low, high = draw(st.sampled_from((("-1", "1"), ("0.1", "0.3"), ("-0.1", "(/ 1 3)"), ("0.1", "0.1"))))
        spelled = (
            "(<= {0} X_{2} {1})",
            "(and (>= X_{2} {0}) (<= X_{2} {1}))",
            "(not (or (< X_{2} {0}) (> X_{2} {1})))",
        )
        lines.append(f"(assert {draw(st.sampled_from(spelled)).format(low, high, i)})")
    lines += [f"(assert {f})" for f in draw(st.lists(formula(inputs, outputs), min_size=1, max_size=3))]
    return "\n".join(lines) + "\n", inputs, outputs


FLOATS: list[float] = [k / 8 for k in range(-12, 13)]
"""On the numbers above, beside them, and between."""
for _text in ("0", "0.1", "-0.1", "0.3", "1", "-1", "1/3", "0.5", "-0.5", "2.5", "0.7", "0.03", "-0.05", "0.55"):
    _near = float(Fraction(_text))
    FLOATS += [_near, math.nextafter(_near, math.inf), math.nextafter(_near, -math.inf), 2 * _near]
