"""VNNLIB 1.0, a part of SMT-LIB: variables X_i and Y_j, assertions about them.

Invariant: a form is reduced to its value at its closing parenthesis, so that nothing recurses and little is kept; what
is not understood raises `PlacedError` at its own place.
"""

from __future__ import annotations

import re

from vertex_softmax.specs.formula import (
    ARITHMETIC,
    COMPARISONS,
    CONNECTIVES,
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Bound,
    Formula,
    Junction,
    Linear,
    Negation,
    PlacedError,
    arithmetic,
    bound,
    comparison,
    connective,
    constant,
    short,
)
from vertex_softmax.specs.normal_form import Assertions
from vertex_softmax.specs.property import Inequality, Property

_WORD = r'[^ \t\r\n\f\v();"|]++'
_TOKEN = re.compile(  # the first is the form that files have hundreds of thousands of, in one step
    rf"\(([<>]=) (X_(?:0|[1-9][0-9]{{0,8}})) ({_WORD})\)"
    rf'|[()]|{_WORD}|;[^\r\n]*|"[^"]*"|\|[^|]*\||["|]'
)
DEPTH = 1 << 20
"""Nested parentheses."""
_VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,8})", re.ASCII)
_IGNORED = frozenset(
    ("set-logic", "set-info", "set-option", "check-sat", "get-model", "get-info", "get-value", "exit", "echo")
)
_OPERATORS = COMPARISONS | ARITHMETIC | CONNECTIVES
_CONSTANTS: dict[str, Formula] = {"true": TRUE, "false": FALSE}
_COMMANDS = frozenset(("declare-const", "declare-fun", "assert"))

Value = str | Linear | Formula | None
"""A word; a term; a formula; `()`."""


class Reader:
    """VNNLIB 1.0: one pass over the tokens; a form is reduced to its value at its closing parenthesis."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.assertions = Assertions()
        self.inputs: dict[int, int] = {}  # the index of a variable → where it is declared
        self.outputs: dict[int, int] = {}
        self.undeclared: dict[str, int] = {}  # its name → where it is used first

    def property(self) -> Property:
        """What the whole text says."""
        self._read()
        end = len(self.text.rstrip())
        for variables, letter, what in ((self.inputs, "X", "inputs"), (self.outputs, "Y", "outputs")):
            if not variables:
                raise PlacedError(
                    end, f"the file declares no {what}; they are declared as (declare-const {letter}_0 Real)"
                )
            last = max(variables)
            if last >= len(variables):
                gap = next(i for i in range(last) if i not in variables)
                raise PlacedError(
                    variables[last],
                    f"{letter}_{last} is declared and {letter}_{gap} is not; {what} are numbered from 0 without gaps",
                )
        for variable, position in self.undeclared.items():
            index = int(variable[2:])
            if index not in (self.inputs if variable[0] == "X" else self.outputs):
                raise PlacedError(position, f"{variable} is not declared; add (declare-const {variable} Real)")
        return self.assertions.property(self.inputs, len(self.outputs), end)

    def _read(self) -> None:
        stack: list[tuple[str | None, int, list[Value]]] = []
        operator: str | None = None
        start = 0
        values: list[Value] = []
        tokens = _TOKEN.finditer(self.text)
        for match in tokens:
            word = match.group()
            if match.lastindex:
                if operator is None:
                    raise PlacedError(match.start(), f"{match[1]!r} is not supported here; assert it")
                values.append(self._bound(match))
            elif word == "(":
                if operator is None and stack:
                    raise PlacedError(start, "a form that starts with a form; an operator is expected after '('")
                if len(stack) == DEPTH:
                    raise PlacedError(match.start(), f"parentheses nest deeper than {DEPTH}; flatten the formula")
                stack.append((operator, start, values))
                operator, start, values = None, match.start(), []
            elif word == ")":
                if not stack:
                    raise PlacedError(match.start(), "a closing parenthesis without an opening one")
                value = self._close(operator, start, values, len(stack))
                operator, start, values = stack.pop()
                if stack:
                    values.append(value)
            elif word[0] == ";":
                continue
            elif operator in COMPARISONS or operator in ARITHMETIC:
                values.append(self._term(word, match.start()))
            elif operator is not None:
                values.append(word)
            elif not stack:
                raise PlacedError(match.start(), f"{short(word)} outside of parentheses")
            elif len(stack) == 1 and word in _IGNORED:
                depth = 1
                for inner in tokens:
                    depth += {"(": 1, ")": -1}.get(inner.group(), 0)
                    if inner.group() in ('"', "|"):
                        raise PlacedError(inner.start(), f"a {inner.group()} is opened here and never closed")
                    if not depth:
                        break
                else:
                    raise PlacedError(start, "a parenthesis is opened here and never closed")
                operator, start, values = stack.pop()
            elif word in (_COMMANDS if len(stack) == 1 else _OPERATORS):
                operator = word
            else:
                known = ", ".join(sorted(_COMMANDS if len(stack) == 1 else _OPERATORS))
                raise PlacedError(match.start(), f"{short(word)} is not supported here; known are {known}")
        if stack:
            raise PlacedError(
                start if len(stack) == 1 else stack[1][1], "a parenthesis is opened here and never closed"
            )

    def _close(self, operator: str | None, start: int, values: list[Value], depth: int) -> Value:
        if operator is None:
            if depth == 1:
                raise PlacedError(start, "() says nothing; leave it out")
            return None
        if depth == 1:
            if operator == "assert":
                formulas = self._formulas(operator, values, start)
                if len(formulas) != 1:
                    raise PlacedError(start, f"'assert' takes one formula, and has {len(formulas)}")
                self.assertions.add(formulas[0], start)
            else:
                self._declare(operator, values, start)
            return None
        if operator in CONNECTIVES:
            return connective(operator, self._formulas(operator, values, start), start)
        terms = [value for value in values if isinstance(value, Linear)]
        if len(terms) < len(values):
            raise PlacedError(start, f"{operator!r} takes terms, and one of its operands is not a term")
        if operator in COMPARISONS:
            return comparison(operator, terms, start)
        return arithmetic(operator, terms, start)

    def _formulas(self, operator: str, values: list[Value], start: int) -> list[Formula]:
        formulas: list[Formula] = []
        for value in values:
            formula = _CONSTANTS.get(value) if isinstance(value, str) else value
            if not isinstance(formula, Bound | Inequality | Junction | Negation):
                what = short(value) if isinstance(value, str) else "one of its operands"
                raise PlacedError(start, f"{operator!r} takes formulas, and {what} is not a formula")
            formulas.append(formula)
        return formulas

    def _declare(self, operator: str, values: list[Value], start: int) -> None:
        name, *kind = values or [None]
        match = _VARIABLE.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            what = short(name) if isinstance(name, str) else "nothing"
            raise PlacedError(
                start, f"{operator!r} declares {what}; variables are called X_0, X_1, … (inputs) and Y_0, … (outputs)"
            )
        if operator == "declare-fun":
            if kind[:1] != [None]:
                raise PlacedError(start, f"{name} is declared with arguments; write (declare-const {name} Real)")
            kind = kind[1:]
        if len(kind) != 1 or not isinstance(kind[0], str) or kind[0].lower() != "real":
            raise PlacedError(start, f"{name} is not declared as Real, the only type supported")
        variables = self.inputs if match[1] == "X" else self.outputs
        if int(match[2]) in variables:
            raise PlacedError(start, f"{name} is declared a second time; leave one of the two out")
        variables[int(match[2])] = start

    def _bound(self, match: re.Match[str]) -> Formula:
        """(<= X_i word) or (>= X_i word)."""
        operator, name, word = match.groups()
        value = constant(word, match.start(3))
        index = int(name[2:])
        if value is None or index not in self.inputs:
            terms = [self._term(name, match.start(2)), self._term(word, match.start(3))]
            return comparison(operator, terms, match.start())
        return bound(index, operator == "<=", value, False, match.start())

    def _term(self, word: str, position: int) -> Linear:
        value = constant(word, position)
        if value is not None:
            return Linear({}, value)
        match = _VARIABLE.fullmatch(word)
        if match is None:
            raise PlacedError(position, f"{short(word)} is neither a number nor a variable X_0, X_1, … or Y_0, Y_1, …")
        index = int(match[2])
        if index not in (self.inputs if match[1] == "X" else self.outputs):
            self.undeclared.setdefault(word, position)
        return Linear({~index if match[1] == "X" else index: ONE}, ZERO)
