"""Linear terms and formulas over them, in exact numbers, as a VNNLIB file builds them.

Invariant: every formula made here is true of exactly the inputs and outputs that the file's text is true of, and every
comparison in it bounds one input or relates outputs only; anything else raises `PlacedError`, which says where.

A variable is a number: k ≥ 0 is the output Y_k, ~i < 0 the input X_i.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from vertex_softmax.specs.property import Inequality

DIGITS = 1500
"""Digits of a literal, and the largest exponent; the longest exact float64 has 767 digits and exponent -1074."""
BITS = 1 << 14
"""Bits of a numerator or denominator that sums and products of literals may reach."""
LARGEST = Fraction(sys.float_info.max)
ZERO, ONE = Fraction(0), Fraction(1)
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?", re.ASCII)


class PlacedError(Exception):
    """What is wrong, and the place in the file; the readers turn it into an error that names file and line."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


class Linear:
    """scale · Σ terms[v]·v + constant; the scale is not 0, and no term is."""

    __slots__ = ("constant", "scale", "terms")

    def __init__(self, terms: dict[int, Fraction], constant: Fraction) -> None:
        self.terms, self.constant, self.scale = terms, constant, ONE


class Bound(NamedTuple):
    """X_input ≤ value (upper) or ≥ value; without equality if it is strict. `near` is the float nearest to it."""

    input: int
    upper: bool
    value: Fraction
    near: float
    strict: bool
    position: int


@dataclasses.dataclass(frozen=True, slots=True)
class Junction:
    """All of the parts (none: true), or any one of them (none: false)."""

    every: bool
    parts: Sequence[Formula]


@dataclasses.dataclass(frozen=True, slots=True)
class Negation:
    """The part is not true."""

    part: Formula


Literal = Bound | Inequality
Formula = Literal | Junction | Negation
TRUE, FALSE = Junction(True, ()), Junction(False, ())

COMPARISONS = frozenset(("<=", ">=", "<", ">", "="))
ARITHMETIC = frozenset(("+", "-", "*", "/"))
CONNECTIVES = frozenset(("and", "or", "not", "=>"))


@functools.lru_cache(maxsize=1 << 12)
def number(text: str) -> Fraction | None:
    """The number that the text spells, exactly; None if it spells none, OverflowError if it is too long."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction, power = found.groups("")
    digits = whole + fraction
    if not digits:
        return None
    if len(digits) > DIGITS or len(power) > 9 or abs(int(power or 0)) > DIGITS:
        raise OverflowError
    exponent = int(power or 0) - len(fraction)
    value = -int(digits) if sign == "-" else int(digits)
    return Fraction(value * 10**exponent) if exponent >= 0 else Fraction(value, 10**-exponent)


def constant(text: str, position: int) -> Fraction | None:
    """As `number`; what is too long, or spells infinity or NaN, is said with its place."""
    try:
        value = number(text)
    except OverflowError:
        raise PlacedError(
            position,
            f"the number {short(text)} is too long: up to {DIGITS} digits and exponents up to ±{DIGITS} are read",
        ) from None
    if value is None and text.lower().lstrip("+-") in ("nan", "inf", "infinity", "oo"):
        raise PlacedError(position, f"{short(text)} is not a real number; write a finite one")
    return value


def short(text: str) -> str:
    """The text in quotes, its middle left out if it is long."""
    return repr(text if len(text) <= 40 else f"{text[:30]}…{text[-5:]}")


def _checked(value: Fraction, position: int) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > BITS:
        raise PlacedError(
            position, f"the exact value of this expression has more than {BITS} bits; write shorter numbers"
        )
    return value


def _add(total: Linear, other: Linear, sign: int, position: int) -> Linear:
    """total + sign · other, in the memory of the longer of the two."""
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


def _scaled(term: Linear, factor: Fraction, position: int) -> Linear:
    if not factor:
        return Linear({}, ZERO)
    term.scale, term.constant = _checked(term.scale * factor, position), _checked(term.constant * factor, position)
    return term


def arithmetic(operator: str, terms: Sequence[Linear], position: int) -> Linear:
    """The operator's value; the terms' memory is used up."""
    if not terms:
        raise PlacedError(position, f"{operator!r} has no operands")
    first, *rest = terms
    if operator in ("+", "-"):
        if operator == "-" and not rest:
            return _scaled(first, -ONE, position)
        for term in rest:
            first = _add(first, term, 1 if operator == "+" else -1, position)
        return first
    if operator == "/" and not rest:
        raise PlacedError(position, "'/' has one operand; it divides its first by the others")
    for term in rest:
        factor = term
        if operator == "*" and not first.terms:
            first, factor = term, first
        if factor.terms:
            raise PlacedError(position, "a product or quotient of two variables is not linear, and not supported")
        if operator == "/" and not factor.constant:
            raise PlacedError(position, "a division by 0")
        by = factor.constant
        first = _scaled(first, by if operator == "*" else 1 / by, position)
    return first


def comparison(operator: str, terms: Sequence[Linear], position: int) -> Formula:
    """Each term against the next."""
    if len(terms) < 2:
        raise PlacedError(position, f"{operator!r} compares at least two terms, and has {len(terms)}")
    parts = []
    for a, b in pairwise(terms):
        if operator in ("<=", "<", "="):
            parts.append(_at_most(a, b, operator == "<", position))
        if operator in (">=", ">", "="):
            parts.append(_at_most(b, a, operator == ">", position))
    return parts[0] if len(parts) == 1 else Junction(True, parts)


def _at_most(a: Linear, b: Linear, strict: bool, position: int) -> Formula:
    """a ≤ b, or a < b."""
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
        raise PlacedError(
            position, f"a relation between {what} is not supported: an inequality bounds one input, or relates outputs"
        )
    if None in map(_nearest, (limit, *terms.values())):
        raise PlacedError(position, "a coefficient or limit on the outputs overflows float64; scale the inequality")
    return Inequality(terms, limit, strict)


def bound(index: int, upper: bool, value: Fraction, strict: bool, position: int) -> Bound:
    """A bound on X_index that float64 can hold, rounded."""
    near = _nearest(value)
    if near is None:
        raise PlacedError(position, f"the bound on X_{index} overflows float64; write one that a float holds")
    return Bound(index, upper, value, near, strict, position)


def _nearest(value: Fraction) -> float | None:
    """The float nearest to the value; None if the value is larger than the largest float."""
    try:
        near = value.numerator / value.denominator  # correctly rounded, by Python's promise
    except OverflowError:
        return None
    return None if abs(near) == sys.float_info.max and abs(value) > LARGEST else near


def connective(operator: str, parts: Sequence[Formula], position: int) -> Formula:
    """and, or, not, => of formulas."""
    if not parts:
        raise PlacedError(position, f"{operator!r} has no operands")
    if operator == "not":
        if len(parts) > 1:
            raise PlacedError(position, f"'not' takes one operand, and has {len(parts)}")
        return Negation(parts[0])
    if operator == "=>":
        return Junction(False, [*map(Negation, parts[:-1]), parts[-1]])
    return Junction(operator == "and", parts)


def negated(literal: Literal) -> Literal:
    """True where the literal is not."""
    if isinstance(literal, Bound):
        return literal._replace(upper=not literal.upper, strict=not literal.strict)
    return Inequality({k: -a for k, a in literal.coefficients.items()}, -literal.limit, not literal.strict)
