"""VNNLIB 2.0 files about one network with one input and one output, through the package `vnnlib`.

Invariant: the package's parser and type checker have accepted the file. Input that they would wrongly accept, or that
would crash them, is refused before: subscripts that are not plain numbers, characters other than printable ASCII (the
package stops at a NUL), and nesting deeper than their stack. Numbers are read from their text, exactly.
"""

from __future__ import annotations

import dataclasses
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
    LinearTerm,
    LocatedError,
    Negation,
    arithmetic,
    comparison,
    connective,
    constant,
    short,
)
from vertex_softmax.specs.normal_form import NUMBERS, Assertions
from vertex_softmax.specs.property import DeclaredTensor, Property

DEPTH = 100
"""The deepest nesting of parentheses; the package is recursive, and about 50,000 levels crash the process."""
TYPES = {"Real": "real", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
"""The package's names of the element types that are read, and the language's."""
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
    """The property that VNNLIB 2.0 text describes; positions in errors are offsets in the text.

    The text has no carriage returns.
    """
    try:
        library: Any = importlib.import_module("vnnlib")
        parse, refusal = library.parse_query_string, library.VNNLibException
    except (ImportError, AttributeError) as error:  # an older package of the same name has no such functions
        raise MissingDependencyError(
            "the package vnnlib (1.0 or newer) is not installed, and VNNLIB 2.0 files need it: "
            "pip install 'vertex-softmax[vnnlib]'"
        ) from error
    plain = _COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else " " * len(match[0]), text)
    _refuse_unsafe(plain)
    starts = [0, *(match.end() for match in re.finditer("\n", plain))]
    try:
        query = parse(_REAL.sub(r"\1real", plain))
    except refusal as error:
        line, message = _explained(str(error))
        raise LocatedError(starts[min(line, len(starts)) - 1], message) from None
    except (ValueError, LookupError, RuntimeError):  # C++ exceptions, of numbers that its types cannot represent
        longest = max(re.finditer(r"[0-9.]+", plain), key=lambda match: len(match[0]))
        raise LocatedError(
            longest.start(), f"the package vnnlib cannot read the number {short(longest[0])}; write a shorter one"
        ) from None
    return _Walk(query, plain, starts).property()


def _refuse_unsafe(plain: str) -> None:
    """Raise for text that the package would wrongly accept or crash on."""
    version = _VERSION.match(plain)
    if version and version[1] != "2.0":
        raise LocatedError(version.start(1), f"version {version[1]}; VNNLIB 1.0 and 2.0 are read")
    foreign = _FOREIGN.search(plain)
    if foreign:
        raise LocatedError(foreign.start(), f"the character {foreign[0]!r} outside of a comment; use ASCII there")
    for subscript in _SUBSCRIPT.finditer(plain):
        if not _INDICES.fullmatch(subscript[0]):
            raise LocatedError(
                subscript.start(), f"the subscript {short(subscript[0])}; write whole numbers from 0, as in [0,3]"
            )
    depth = 0
    for bracket in re.finditer(r"[()]", plain):
        depth += 1 if bracket[0] == "(" else -1
        if depth > DEPTH:
            raise LocatedError(bracket.start(), f"parentheses nest deeper than {DEPTH}, the limit for VNNLIB 2.0 files")


def _explained(report: str) -> tuple[int, str]:
    """(line, message) of an error report of the package, which is a sentence or JSON with a list of errors."""
    try:
        first = json.loads(report)["errors"][0]
        return int(first["line"]), f"{first['message']}: {first['offendingSymbol']}. {first['hint']}"
    except (ValueError, LookupError, TypeError):
        line = _LINE.search(report)
        return int(line[1]) if line else 1, f"the package vnnlib says: {report[:300]}"


def _declared(tensor: Any) -> DeclaredTensor:
    """The name and the type of a tensor of the package's syntax tree, whose type is one of TYPES."""
    return DeclaredTensor(str(tensor.name), TYPES[tensor.dtype.name])


class _Walk:
    """A walk over the package's syntax tree of a file with one network, one input and one output.

    `input` and `output` are their shapes; `starts` are the offsets of the lines in the text `plain`.
    """

    def __init__(self, query: Any, plain: str, starts: Sequence[int]) -> None:
        self.query, self.plain, self.starts = query, plain, starts
        if len(query.networks) != 1:
            second = [match.start() for match in re.finditer(r"\(declare-network", plain)][1]
            raise LocatedError(second, f"{len(query.networks)} networks; properties of one network are supported")
        network = query.networks[0]
        if network.hidden:
            raise LocatedError(self._position("hidden"), "hidden tensors are not supported; leave them out")
        self.input, self.output = self._only("input", network.inputs), self._only("output", network.outputs)
        self.declared = (_declared(network.inputs[0]), _declared(network.outputs[0]))

    def _position(self, what: str, number: int = 0) -> int:
        """The offset of a declaration of this kind, counted from 0; 0 if there is none."""
        starts = [match.start() for match in re.finditer(rf"\(declare-{what}\b", self.plain)]
        return starts[number] if number < len(starts) else 0

    def _only(self, what: str, declared: Sequence[Any]) -> tuple[int, ...]:
        """The shape of the only declared input (or output); an error if there are several, or one has an ONNX name."""
        if len(declared) != 1:
            raise LocatedError(
                self._position(what, 1), f"{len(declared)} {what}s; networks with one {what} are supported"
            )
        named = getattr(declared[0], "onnx_name", None)
        if named is not None:
            raise LocatedError(
                self._position(what),
                f"the {what} {declared[0].name} is said to be the model's tensor {short(str(named))}, which is not "
                "compared with the model; leave the name out if the model has no other",
            )
        kind, shape = declared[0].dtype.name, tuple(declared[0].shape)
        if kind not in TYPES:
            raise LocatedError(
                self._position(what),
                f"the {what} {declared[0].name} has elements of type {kind}; use real or a float type",
            )
        if any(n < 1 for n in shape):
            raise LocatedError(self._position(what), f"the {what} has shape {list(shape)}; every size is 1 or more")
        most = min(NUMBERS, len(self.plain)) if what == "input" else NUMBERS  # every input has bounds in the text
        if math.prod(shape) > most:
            raise LocatedError(
                self._position(what), f"the {what} has {math.prod(shape)} elements; up to {most} are read in this file"
            )
        return shape

    def property(self) -> Property:
        """The property that the file describes."""
        assertions = Assertions()
        for assertion in self.query.assertions:
            position, formula = self._formula(assertion.expr)
            assertions.add(formula, position)
        inputs = dict.fromkeys(range(math.prod(self.input)), self._position("input"))
        spec = assertions.property(inputs, math.prod(self.output), len(self.plain.rstrip()))
        return dataclasses.replace(spec, input_shape=self.input, output_shape=self.output, declared=self.declared)

    def _formula(self, node: Any) -> tuple[int, Formula]:
        """(position, formula) of a node of the tree."""
        operator = _OPERATORS.get(type(node).__name__, "")
        if operator in ("and", "or"):
            positions, formulas = zip(*map(self._formula, node.args), strict=True)
            return positions[0], connective(operator, formulas, positions[0])
        if operator not in ("<=", "<", ">=", ">", "=", "!="):
            raise LocatedError(0, f"a formula of the kind {type(node).__name__} is not supported")
        position, left = self._term(node.lhs)
        terms = (left, self._term(node.rhs)[1])
        if operator == "!=":
            return position, Negation(comparison("=", terms, position))
        return position, comparison(operator, terms, position)

    def _term(self, node: Any) -> tuple[int, LinearTerm]:
        """(position, term) of a node of the tree."""
        kind = type(node).__name__
        if kind in ("Plus", "Minus", "Negate", "Multiply"):
            positions, terms = zip(*map(self._term, node.children()), strict=True)
            return positions[0], arithmetic(_OPERATORS[kind], terms, positions[0])
        position = self.starts[node.line - 1]
        if kind != "Var":
            value = constant(node.lexeme, position) if kind in ("Float", "Int") else None
            if value is None:
                raise LocatedError(position, f"a term of the kind {kind} is not supported")
            return position, LinearTerm({}, value)
        is_input = node.kind.name == "Input"
        shape, index = self.input if is_input else self.output, 0
        for size, i in zip(shape, node.indices, strict=True):
            index = index * size + i
        return position, LinearTerm({~index if is_input else index: ONE}, ZERO)
