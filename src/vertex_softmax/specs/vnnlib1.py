"""VNNLIB 1.0, a subset of SMT-LIB: declarations of variables X_i and Y_j, and assertions about them.

Invariant: a form is reduced to its value at its closing parenthesis, without recursion and with little memory; an
unknown form raises `LocatedError` with its own position.
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
    Formula,
    InputBound,
    Junction,
    LinearTerm,
    LocatedError,
    Negation,
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
_TOKEN = re.compile(  # the first alternative matches a whole bound, of which files have hundreds of thousands
    rf"\(([<>]=) (X_(?:0|[1-9][0-9]{{0,8}})) ({_WORD})\)"
    rf'|[()]|{_WORD}|;[^\r\n]*|"[^"]*"|\|[^|]*\||["|]'
)
DEPTH = 1 << 20
"""The deepest nesting of parentheses."""
_VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,8})", re.ASCII)
_IGNORED = frozenset(
    ("set-logic", "set-info", "set-option", "check-sat", "get-model", "get-info", "get-value", "exit", "echo")
)
_ENDS = frozenset(("check-sat", "exit"))
"""The commands after which nothing can be added to the question."""
_OPERATORS = COMPARISONS | ARITHMETIC | CONNECTIVES
_CONSTANTS: dict[str, Formula] = {"true": TRUE, "false": FALSE}
_COMMANDS = frozenset(("declare-const", "declare-fun", "assert"))

Value = str | LinearTerm | Formula | None
"""The value of a form: a word, a term, a formula, or None for `()`."""


class Reader:
    """Reads VNNLIB 1.0 text in one pass over its tokens; a form is reduced to its value at its closing parenthesis."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.assertions = Assertions()
        self.inputs: dict[int, int] = {}  # index of a variable → position of its declaration
        self.outputs: dict[int, int] = {}
        self.undeclared: dict[str, int] = {}  # name of a variable → position of its first use

    def property(self) -> Property:
        """The property that the text describes."""
        self._read()
        end = len(self.text.rstrip())
        for variables, letter, what in ((self.inputs, "X", "inputs"), (self.outputs, "Y", "outputs")):
            if not variables:
                raise LocatedError(
                    end, f"the file declares no {what}; they are declared as (declare-const {letter}_0 Real)"
                )
            last = max(variables)
            if last >= len(variables):
                gap = next(i for i in range(last) if i not in variables)
                raise LocatedError(
                    variables[last],
                    f"{letter}_{last} is declared and {letter}_{gap} is not; {what} are numbered from 0 without gaps",
                )
        for variable, position in self.undeclared.items():
            index = int(variable[2:])
            if index not in (self.inputs if variable[0] == "X" else self.outputs):
                raise LocatedError(position, f"{variable} is not declared; add (declare-const {variable} Real)")
        return self.assertions.property(self.inputs, len(self.outputs), end)

    def _read(self) -> None:
        stack: list[tuple[str | None, int, list[Value]]] = []
        operator: str | None = None
        start = 0
        values: list[Value] = []
        asked = ""
        tokens = _TOKEN.finditer(self.text)
        for match in tokens:
            word = match.group()
            if match.lastindex:
                if operator is None:
                    raise LocatedError(match.start(), f"{match[1]!r} is not supported here; assert it")
                values.append(self._bound(match))
            elif word == "(":
                if operator is None and stack:
                    raise LocatedError(start, "a form that starts with a form; an operator is expected after '('")
                if len(stack) == DEPTH:
                    raise LocatedError(match.start(), f"parentheses nest deeper than {DEPTH}; flatten the formula")
                stack.append((operator, start, values))
                operator, start, values = None, match.start(), []
            elif word == ")":
                if not stack:
                    raise LocatedError(match.start(), "a closing parenthesis without an opening one")
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
                raise LocatedError(match.start(), f"{short(word)} outside of parentheses")
            elif len(stack) == 1 and word in _IGNORED:
                asked = word if word in _ENDS else asked
                depth = 1
                for inner in tokens:
                    depth += {"(": 1, ")": -1}.get(inner.group(), 0)
                    if inner.group() in ('"', "|"):
                        raise LocatedError(inner.start(), f"a {inner.group()} is opened here and never closed")
                    if not depth:
                        break
                else:
                    raise LocatedError(start, "a parenthesis is opened here and never closed")
                operator, start, values = stack.pop()
            elif word in (_COMMANDS if len(stack) == 1 else _OPERATORS):
                if asked and len(stack) == 1:
                    raise LocatedError(
                        start, f"{word!r} after ({asked}) is no part of what is asked; move it up, or leave it out"
                    )
                operator = word
            elif not self.text[match.end() :].strip():  # a word that may be cut off
                raise LocatedError(start, "a parenthesis is opened here and never closed")
            else:
                known = ", ".join(sorted(_COMMANDS if len(stack) == 1 else _OPERATORS))
                raise LocatedError(match.start(), f"{short(word)} is not supported here; known are {known}")
        if stack:
            raise LocatedError(
                start if len(stack) == 1 else stack[1][1], "a parenthesis is opened here and never closed"
            )

    def _close(self, operator: str | None, start: int, values: list[Value], depth: int) -> Value:
        """The value of a form that is closed; a command (depth 1) is executed and has the value None."""
        if operator is None:
            if depth == 1:
                raise LocatedError(start, "() says nothing; leave it out")
            return None
        if depth == 1:
            if operator == "assert":
                formulas = self._formulas(operator, values, start)
                if len(formulas) != 1:
                    raise LocatedError(start, f"'assert' takes one formula, and has {len(formulas)}")
                self.assertions.add(formulas[0], start)
            else:
                self._declare(operator, values, start)
            return None
        if operator in CONNECTIVES:
            return connective(operator, self._formulas(operator, values, start), start)
        terms = [value for value in values if isinstance(value, LinearTerm)]
        if len(terms) < len(values):
            raise LocatedError(start, f"{operator!r} takes terms, and one of its operands is not a term")
        if operator in COMPARISONS:
            return comparison(operator, terms, start)
        return arithmetic(operator, terms, start)

    def _formulas(self, operator: str, values: list[Value], start: int) -> list[Formula]:
        """The operands of a connective or assertion as formulas; an error if one is not a formula."""
        formulas: list[Formula] = []
        for value in values:
            formula = _CONSTANTS.get(value) if isinstance(value, str) else value
            if not isinstance(formula, InputBound | Inequality | Junction | Negation):
                what = short(value) if isinstance(value, str) else "one of its operands"
                raise LocatedError(start, f"{operator!r} takes formulas, and {what} is not a formula")
            formulas.append(formula)
        return formulas

    def _declare(self, operator: str, values: list[Value], start: int) -> None:
        """Execute declare-const or declare-fun."""
        name, *kind = values or [None]
        match = _VARIABLE.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            what = short(name) if isinstance(name, str) else "nothing"
            raise LocatedError(
                start, f"{operator!r} declares {what}; variables are called X_0, X_1, … (inputs) and Y_0, … (outputs)"
            )
        if operator == "declare-fun":
            if kind[:1] != [None]:
                raise LocatedError(start, f"{name} is declared with arguments; write (declare-const {name} Real)")
            kind = kind[1:]
        if len(kind) != 1 or not isinstance(kind[0], str) or kind[0].lower() != "real":
            raise LocatedError(start, f"{name} is not declared as Real, the only type supported")
        variables = self.inputs if match[1] == "X" else self.outputs
        if int(match[2]) in variables:
            raise LocatedError(start, f"{name} is declared a second time; leave one of the two out")
        variables[int(match[2])] = start

    def _bound(self, match: re.Match[str]) -> Formula:
        """The formula of (<= X_i word) or (>= X_i word), from a match of the first alternative of _TOKEN."""
        operator, name, word = match.groups()
        value = constant(word, match.start(3))
        index = int(name[2:])
        if value is None or index not in self.inputs:
            terms = [self._term(name, match.start(2)), self._term(word, match.start(3))]
            return comparison(operator, terms, match.start())
        return bound(index, operator == "<=", value, False, match.start())

    def _term(self, word: str, position: int) -> LinearTerm:
        """The term of a number or a variable."""
        value = constant(word, position)
        if value is not None:
            return LinearTerm({}, value)
        match = _VARIABLE.fullmatch(word)
        if match is None:
            raise LocatedError(position, f"{short(word)} is neither a number nor a variable X_0, X_1, … or Y_0, Y_1, …")
        index = int(match[2])
        if index not in (self.inputs if match[1] == "X" else self.outputs):
            self.undeclared.setdefault(word, position)
        return LinearTerm({~index if match[1] == "X" else index: ONE}, ZERO)
