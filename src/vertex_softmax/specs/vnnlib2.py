"""VNNLIB 2.0 files about one network with one input and one output, through the package `vnnlib`.

Invariant: the package's parser and type checker have accepted the file, and what they let through or cannot survive is
refused here before: subscripts that are no plain numbers, text after a NUL, forms nested deeper than its stack. The
numbers are read from their text, exactly.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from vertex_softmax.foundation.errors import MissingDependencyError
from vertex_softmax.specs.formula import (
    ONE,
    ZERO,
    Formula,
    Linear,
    Negation,
    PlacedError,
    arithmetic,
    comparison,
    connective,
    constant,
    short,
)
from vertex_softmax.specs.normal_form import NUMBERS, Assertions
from vertex_softmax.specs.property import Property

DEPTH = 100
"""Nested parentheses; the package recurses over them, and some 50,000 end the process."""
TYPES = frozenset(("Real", "F16", "BF16", "F32", "F64"))
_COMMENT = re.compile(r'"[^"\n]*"|;[^\n]*')
_VERSION = re.compile(r"\s*\(vnnlib-version\s+<([0-9.]+)>", re.ASCII)
_FOREIGN = re.compile(r"[^\t\n\f\v -~]")
_SUBSCRIPT = re.compile(r"\[[^\[\]]*+\]?")
_INDICES = re.compile(r"\[\s*+([0-9]{1,9}(\s*+,\s*+[0-9]{1,9})*+\s*+)?\]", re.ASCII)
_REAL = re.compile(r"(\(declare-(?:input|output)\s+\w+\s+)Real\b", re.ASCII)
_LINE = re.compile(r"at line ([0-9]+)", re.ASCII)
_OPERATORS = {
    "Plus": "+",
    "Minus": "-",
    "Negate": "-",
    "Multiply": "*",
    "LessEqual": "<=",
    "LessThan": "<",
    "GreaterEqual": ">=",
    "GreaterThan": ">",
    "Equal": "=",
    "NotEqual": "!=",
    "And": "and",
    "Or": "or",
}


def read(text: str) -> Property:
    """The property; positions of errors are offsets in the text, which has no carriage returns."""
    try:
        library: Any = importlib.import_module("vnnlib")
        parse, refusal = library.parse_query_string, library.VNNLibException
    except (ImportError, AttributeError) as error:  # an older package of the same name has no such functions
        raise MissingDependencyError(
            "the package vnnlib (1.0 or newer) is not installed, and VNNLIB 2.0 files need it: "
            "pip install 'vertex-softmax[vnnlib]'"
        ) from error
    plain = _COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else " " * len(found[0]), text)
    _refuse_what_the_package_cannot(plain)
    starts = [0, *(found.end() for found in re.finditer("\n", plain))]
    try:
        query = parse(_REAL.sub(r"\1real", plain))
    except refusal as error:
        line, message = _explained(str(error))
        raise PlacedError(starts[min(line, len(starts)) - 1], message) from None
    except (ValueError, LookupError, RuntimeError):  # C++'s own, of numbers that its types do not hold
        longest = max(re.finditer(r"[0-9.]+", plain), key=lambda found: len(found[0]))
        raise PlacedError(
            longest.start(), f"the package vnnlib cannot read the number {short(longest[0])}; write a shorter one"
        ) from None
    return _Walk(query, plain, starts).property()


def _refuse_what_the_package_cannot(plain: str) -> None:
    version = _VERSION.match(plain)
    if version and version[1] != "2.0":
        raise PlacedError(version.start(1), f"version {version[1]}; VNNLIB 1.0 and 2.0 are read")
    foreign = _FOREIGN.search(plain)
    if foreign:
        raise PlacedError(foreign.start(), f"the character {foreign[0]!r} outside of a comment; use ASCII there")
    for found in _SUBSCRIPT.finditer(plain):
        if not _INDICES.fullmatch(found[0]):
            raise PlacedError(
                found.start(), f"the subscript {short(found[0])}; write whole numbers from 0, as in [0,3]"
            )
    depth = 0
    for found in re.finditer(r"[()]", plain):
        depth += 1 if found[0] == "(" else -1
        if depth > DEPTH:
            raise PlacedError(found.start(), f"parentheses nest deeper than {DEPTH}, the limit for VNNLIB 2.0 files")


def _explained(report: str) -> tuple[int, str]:
    """The line and the words of the package's report: a sentence, or JSON with a list of errors."""
    try:
        first = json.loads(report)["errors"][0]
        return int(first["line"]), f"{first['message']}: {first['offendingSymbol']}. {first['hint']}"
    except (ValueError, LookupError, TypeError):
        found = _LINE.search(report)
        return int(found[1]) if found else 1, f"the package vnnlib says: {report[:300]}"


class _Walk:
    """The package's tree of the file."""

    def __init__(self, query: Any, plain: str, starts: Sequence[int]) -> None:
        self.query, self.plain, self.starts = query, plain, starts
        if len(query.networks) != 1:
            second = [found.start() for found in re.finditer(r"\(declare-network", plain)][1]
            raise PlacedError(second, f"{len(query.networks)} networks; properties of one network are supported")
        network = query.networks[0]
        if network.hidden:
            raise PlacedError(self._place("hidden"), "hidden tensors are not supported; leave them out")
        self.input, self.output = self._only("input", network.inputs), self._only("output", network.outputs)

    def _place(self, what: str, number: int = 0) -> int:
        found = [match.start() for match in re.finditer(rf"\(declare-{what}\b", self.plain)]
        return found[number] if number < len(found) else 0

    def _only(self, what: str, declared: Sequence[Any]) -> tuple[int, ...]:
        """The shape of the one tensor."""
        if len(declared) != 1:
            raise PlacedError(self._place(what, 1), f"{len(declared)} {what}s; networks with one {what} are supported")
        kind, shape = declared[0].dtype.name, tuple(declared[0].shape)
        if kind not in TYPES:
            raise PlacedError(
                self._place(what),
                f"the {what} {declared[0].name} has elements of type {kind}; use real or a float type",
            )
        if any(n < 1 for n in shape):
            raise PlacedError(self._place(what), f"the {what} has shape {list(shape)}; every size is 1 or more")
        most = min(NUMBERS, len(self.plain)) if what == "input" else NUMBERS  # every input has bounds in the text
        if math.prod(shape) > most:
            raise PlacedError(
                self._place(what), f"the {what} has {math.prod(shape)} elements; up to {most} are read in this file"
            )
        return shape

    def property(self) -> Property:
        """What the whole file says."""
        assertions = Assertions()
        for assertion in self.query.assertions:
            position, formula = self._formula(assertion.expr)
            assertions.add(formula, position)
        inputs = dict.fromkeys(range(math.prod(self.input)), self._place("input"))
        found = assertions.property(inputs, math.prod(self.output), len(self.plain.rstrip()))
        return Property(found.cases, found.inputs, found.outputs, self.input, self.output)

    def _formula(self, node: Any) -> tuple[int, Formula]:
        """Where it starts, and what it says."""
        operator = _OPERATORS.get(type(node).__name__, "")
        if operator in ("and", "or"):
            positions, formulas = zip(*map(self._formula, node.args), strict=True)
            return positions[0], connective(operator, formulas, positions[0])
        if operator not in ("<=", "<", ">=", ">", "=", "!="):
            raise PlacedError(0, f"a formula of the kind {type(node).__name__} is not supported")
        position, left = self._term(node.lhs)
        terms = (left, self._term(node.rhs)[1])
        if operator == "!=":
            return position, Negation(comparison("=", terms, position))
        return position, comparison(operator, terms, position)

    def _term(self, node: Any) -> tuple[int, Linear]:
        kind = type(node).__name__
        if kind in ("Plus", "Minus", "Negate", "Multiply"):
            positions, terms = zip(*map(self._term, node.children()), strict=True)
            return positions[0], arithmetic(_OPERATORS[kind], terms, positions[0])
        position = self.starts[node.line - 1]
        if kind != "Var":
            value = constant(node.lexeme, position) if kind in ("Float", "Int") else None
            if value is None:
                raise PlacedError(position, f"a term of the kind {kind} is not supported")
            return position, Linear({}, value)
        is_input = node.kind.name == "Input"
        shape, index = self.input if is_input else self.output, 0
        for size, i in zip(shape, node.indices, strict=True):
            index = index * size + i
        return position, Linear({~index if is_input else index: ONE}, ZERO)
