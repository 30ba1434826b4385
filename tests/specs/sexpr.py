"""A second, slow reading of VNNLIB 1.0: formulas are evaluated at a point, by recursion, in exact numbers."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

_COMPARED = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq}


def parsed(text: str) -> list[Any]:
    """All forms, as nested lists of words."""
    words = re.sub(r";.*", "", text).replace("(", " ( ").replace(")", " ) ").split()
    stack: list[list[Any]] = [[]]
    for word in words:
        if word == "(":
            stack.append([])
        elif word == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(word)
    (forms,) = stack
    return forms


def _word(word: str) -> Fraction:
    text = word.lower()
    mantissa, _, power = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = Fraction(int((whole + fraction) or "0"))
    return digits / 10 ** len(fraction) * Fraction(10) ** int(power or 0)


def value(form: Any, point: Mapping[str, float]) -> Any:
    """The form's number or truth at the point."""
    if isinstance(form, str):
        if form in ("true", "false"):
            return form == "true"
        return Fraction(point[form]) if form in point else _word(form)
    head, *rest = form
    values = [value(part, point) for part in rest]
    if head in _COMPARED:
        return all(_COMPARED[head](a, b) for a, b in pairwise(values))
    match head:
        case "and":
            return all(values)
        case "or":
            return any(values)
        case "not":
            return not values[0]
        case "=>":
            return not all(values[:-1]) or values[-1]
        case "+":
            return sum(values, Fraction(0))
        case "-":
            return values[0] - sum(values[1:], Fraction(0)) if rest[1:] else -values[0]
        case "*":
            product = Fraction(1)
            for factor in values:
                product *= factor
            return product
        case "/":
            quotient = values[0]
            for divisor in values[1:]:
                quotient /= divisor
            return quotient
    raise AssertionError(head)


def broken(text: str, point: Mapping[str, float]) -> bool:
    """Are all assertions true at the point?"""
    return all(value(form[1], point) for form in parsed(text) if form[0] == "assert")
