"""Linear terms and formulas over them, in exact rational arithmetic, as a VNNLIB file builds them.

Invariant: a formula is true of exactly the inputs and outputs that the file's text is true of, and each of its
comparisons either bounds one input or relates outputs only; anything else raises `LocatedError` with its position.

A variable is represented by an integer: k ≥ 0 is the output Y_k, and ~i < 0 is the input X_i.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from vertex_softmax.specs.property import Inequality

DIGITS = 1500
"""The most digits of a literal, and its largest exponent; an exact float64 has at most 767 digits, exponent -1074."""
BITS = 1 << 14
"""The most bits of a numerator or denominator in sums and products of literals."""
LARGEST = Fraction(sys.float_info.max)
ZERO, ONE = Fraction(0), Fraction(1)
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?", re.ASCII)


class LocatedError(Exception):
    """A fault in a file, with its position (an offset in the text); `read_vnnlib` converts it to file name and line."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


class LinearTerm:
    """The linear function scale · Σ terms[v]·v + constant of the variables v; neither scale nor a coefficient is 0.

    Mutable: `arithmetic` reuses the memory of its operands.
    """

    __slots__ = ("constant", "scale", "terms")

    def __init__(self, terms: dict[int, Fraction], constant: Fraction) -> None:
        self.terms, self.constant, self.scale = terms, constant, ONE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputBound:
    """The bound X_input ≤ value if `upper`, else X_input ≥ value; strict bounds exclude equality.

    `near` is the float nearest to value, and `position` is where the bound stands in the file.
    """

    input: int
    upper: bool
    value: Fraction
    near: float
    strict: bool
    position: int


@dataclasses.dataclass(frozen=True, slots=True)
class Junction:
    """The conjunction of the parts if `every` (true if there are none), else their disjunction (false if none)."""

    every: bool
    parts: Sequence[Formula]


@dataclasses.dataclass(frozen=True, slots=True)
class Negation:
    """The negation of a formula."""

    part: Formula


Literal = InputBound | Inequality
Formula = Literal | Junction | Negation
TRUE, FALSE = Junction(True, ()), Junction(False, ())

COMPARISONS = frozenset(("<=", ">=", "<", ">", "="))
ARITHMETIC = frozenset(("+", "-", "*", "/"))
CONNECTIVES = frozenset(("and", "or", "not", "=>"))


@functools.lru_cache(maxsize=1 << 12)
def number(text: str) -> Fraction | None:
    """The exact value of a decimal literal; None if the text is not one, OverflowError if it is too long."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, power = match.groups("")
    digits = whole + fraction
    if not digits:
        return None
    if len(digits) > DIGITS or len(power) > 9 or abs(int(power or 0)) > DIGITS:
        raise OverflowError
    exponent = int(power or 0) - len(fraction)
    value = -int(digits) if sign == "-" else int(digits)
    return Fraction(value * 10**exponent) if exponent >= 0 else Fraction(value, 10**-exponent)


def constant(text: str, position: int) -> Fraction | None:
    """As `number`, but a literal that is too long, infinite or NaN raises a `LocatedError`."""
    try:
        value = number(text)
    except OverflowError:
        raise LocatedError(
            position,
            f"the number {short(text)} is too long: up to {DIGITS} digits and exponents up to ±{DIGITS} are read",
        ) from None
    if value is None and text.lower().lstrip("+-") in ("nan", "inf", "infinity", "oo"):
        raise LocatedError(position, f"{short(text)} is not a real number; write a finite one")
    return value


def short(text: str) -> str:
    """The text in quotes, for a message; the middle of a long text is left out."""
    return repr(text if len(text) <= 40 else f"{text[:30]}…{text[-5:]}")


def _checked(value: Fraction, position: int) -> Fraction:
    """The value; an error if it has more than BITS bits."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > BITS:
        raise LocatedError(
            position, f"the exact value of this expression has more than {BITS} bits; write shorter numbers"
        )
    return value


def _add(total: LinearTerm, other: LinearTerm, sign: int, position: int) -> LinearTerm:
    """total + sign · other; the operand with more terms is modified and returned."""
    if len(other.terms) > len(total.terms):
        other.scale, other.constant = sign * other.scale, sign * other.constant
        total, other, sign = other, total, 1
    ratio = sign * other.scale / total.scale
    for variable, factor in other.terms.items():
        value = _checked(total.terms.get(variable, 0) + ratio * factor, position)
        if value:
            total.terms[variable] = value
        else:
            del total.terms[variable]
    total.constant = _checked(total.constant + sign * other.constant, position)
    return total


def _scaled(term: LinearTerm, factor: Fraction, position: int) -> LinearTerm:
    """factor · term; the term is modified."""
    if not factor:
        return LinearTerm({}, ZERO)
    term.scale, term.constant = _checked(term.scale * factor, position), _checked(term.constant * factor, position)
    return term


def arithmetic(operator: str, terms: Sequence[LinearTerm], position: int) -> LinearTerm:
    """The value of +, −, * or / applied to terms. The terms are modified and must not be used again."""
    if not terms:
        raise LocatedError(position, f"{operator!r} has no operands")
    first, *rest = terms
    if operator in ("+", "-"):
        if operator == "-" and not rest:
            return _scaled(first, -ONE, position)
        for term in rest:
            first = _add(first, term, 1 if operator == "+" else -1, position)
        return first
    if operator == "/" and not rest:
        raise LocatedError(position, "'/' has one operand; it divides its first by the others")
    for term in rest:
        factor = term
        if operator == "*" and not first.terms:
            first, factor = term, first
        if factor.terms:
            raise LocatedError(position, "a product or quotient of two variables is not linear, and not supported")
        if operator == "/" and not factor.constant:
            raise LocatedError(position, "a division by 0")
        by = factor.constant
        first = _scaled(first, by if operator == "*" else 1 / by, position)
    return first


def comparison(operator: str, terms: Sequence[LinearTerm], position: int) -> Formula:
    """The formula that compares each term with the next by one of COMPARISONS."""
    if len(terms) < 2:
        raise LocatedError(position, f"{operator!r} compares at least two terms, and has {len(terms)}")
    parts = []
    for a, b in pairwise(terms):
        if operator in ("<=", "<", "="):
            parts.append(_at_most(a, b, operator == "<", position))
        if operator in (">=", ">", "="):
            parts.append(_at_most(b, a, operator == ">", position))
    return parts[0] if len(parts) == 1 else Junction(True, parts)


def _at_most(a: LinearTerm, b: LinearTerm, strict: bool, position: int) -> Formula:
    """The formula a ≤ b, or a < b if strict."""
    terms = {v: a.scale * factor for v, factor in a.terms.items()}
    for v, factor in b.terms.items():
        terms[v] = terms.get(v, ZERO) - b.scale * factor
    terms = {v: _checked(factor, position) for v, factor in terms.items() if factor}
    limit = _checked(b.constant - a.constant, position)
    if not terms:
        return TRUE if limit > 0 or (limit == 0 and not strict) else FALSE
    inputs = [~v for v in terms if v < 0]
    if len(inputs) == 1 == len(terms):
        factor = terms[~inputs[0]]
        return bound(inputs[0], factor > 0, limit / factor, strict, position)
    if inputs:
        named = ", ".join(f"X_{i}" for i in sorted(inputs)[:3]) + (", …" if len(inputs) > 3 else "")
        what = f"{named} and outputs" if len(inputs) < len(terms) else f"the inputs {named}"
        raise LocatedError(
            position, f"a relation between {what} is not supported: an inequality bounds one input, or relates outputs"
        )
    if None in map(_nearest, (limit, *terms.values())):
        raise LocatedError(position, "a coefficient or limit on the outputs overflows float64; scale the inequality")
    return Inequality(terms, limit, strict)


def bound(index: int, upper: bool, value: Fraction, strict: bool, position: int) -> InputBound:
    """The bound on input X_index by an exact value, and its nearest float; an error if that overflows."""
    near = _nearest(value)
    if near is None:
        raise LocatedError(position, f"the bound on X_{index} overflows float64; write one that a float holds")
    return InputBound(input=index, upper=upper, value=value, near=near, strict=strict, position=position)


def _nearest(value: Fraction) -> float | None:
    """The float nearest to the value; None if the value is larger than the largest float."""
    try:
        near = value.numerator / value.denominator  # correctly rounded, by Python's promise
    except OverflowError:
        return None
    return None if abs(near) == sys.float_info.max and abs(value) > LARGEST else near


def connective(operator: str, parts: Sequence[Formula], position: int) -> Formula:
    """The formula of one of CONNECTIVES applied to formulas; '=>' with several premises means all of them."""
    if not parts:
        raise LocatedError(position, f"{operator!r} has no operands")
    if operator == "not":
        if len(parts) > 1:
            raise LocatedError(position, f"'not' takes one operand, and has {len(parts)}")
        return Negation(parts[0])
    if operator == "=>":
        return Junction(False, [*map(Negation, parts[:-1]), parts[-1]])
    return Junction(operator == "and", parts)


def negated(literal: Literal) -> Literal:
    """The literal that is true exactly where the given one is false."""
    if isinstance(literal, InputBound):
        return dataclasses.replace(literal, upper=not literal.upper, strict=not literal.strict)
    return Inequality({k: -a for k, a in literal.coefficients.items()}, -literal.limit, not literal.strict)
