"""Read and write VNNLIB files, without trusting them.

Invariant: `read_vnnlib` returns a property that is violated by exactly the (input, output) pairs of floats that satisfy
the file's assertions, or raises a `VertexError` that names the file, the line and a remedy. The file is parsed and
never executed, all arithmetic is exact until the ends of the boxes are rounded, and no assertion is ignored.

    >>> text = b"(declare-const X_0 Real) (declare-const Y_0 Real) (assert (<= 0 X_0 0.1)) (assert (>= Y_0 1))"
    >>> spec = read_vnnlib(text)
    >>> spec.broken_by(np.array([0.05]), np.array([1.5]))
    True
"""

from __future__ import annotations

import math
import os
import re
from fractions import Fraction
from pathlib import Path

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.foundation.files import DAMAGED, decompressed, read_whole
from vertex_softmax.specs.formula import DIGITS, LocatedError
from vertex_softmax.specs.property import Case, Conjunction, Property
from vertex_softmax.specs.vnnlib1 import Reader

LIMIT = 1 << 29
"""The most bytes of a decompressed file; reading takes about 10 to 20 times as much memory."""

_VERSION_2 = re.compile(r"(?:[ \t\n\f\v]++|;[^\n]*+)*+\([ \t\n\f\v]*+(?:vnnlib-version|declare-network)\b", re.ASCII)


def read_vnnlib(
    source: str | os.PathLike[str] | bytes, *, inputs: int | None = None, outputs: int | None = None
) -> Property:
    """The property of a VNNLIB 1.0 or 2.0 file, plain or gzip, given by its path or its bytes.

    `inputs`, `outputs`: the numbers of the model; a file that declares other numbers is refused.
    """
    name, text = _text(source)
    try:
        if _VERSION_2.match(text):
            from vertex_softmax.specs.vnnlib2 import read

            spec = read(text)
        else:
            spec = Reader(text).property()
    except LocatedError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidValueError(f"{name}, line {line}: {error}") from None
    for count, declared, what in ((inputs, spec.inputs, "inputs"), (outputs, spec.outputs, "outputs")):
        if count is not None and count != declared:
            raise InvalidValueError(
                f"{name} declares {declared} {what}, and the model has {count}: use the model the file was made for"
            )
    return spec


def _text(source: str | os.PathLike[str] | bytes) -> tuple[str, str]:
    """(name, text): the name of the source for messages, and its text with line feeds at the ends of lines."""
    if isinstance(source, bytes | bytearray):
        name, data = "the property", bytes(source)
    elif isinstance(source, str | os.PathLike):
        path = Path(os.fsdecode(source))
        name = str(path)
        if not path.is_file():
            raise InvalidValueError(f"{name} is not a file; give the path of a .vnnlib file, or its bytes")
        data = read_whole(path, LIMIT, "give a file that can be read")
    else:
        raise InvalidTypeError(
            f"the property is a {type(source).__name__}; give a path to a .vnnlib file, or its bytes"
        )
    try:
        data = decompressed(data, LIMIT + 1)
    except DAMAGED as error:
        raise InvalidValueError(f"{name} is a damaged gzip file: {error}; fetch it again") from error
    if len(data) > LIMIT:
        raise InvalidValueError(f"{name} has more than {LIMIT} bytes; files up to that size are read")
    if not data:
        raise InvalidValueError(f"{name} is empty")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if name.endswith((".onnx", ".onnx.gz")):
            raise InvalidValueError(
                f"{name} seems to be a model, not a property: give the model first, then a .vnnlib file"
            ) from error
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidValueError(f"{name}, line {line}: not UTF-8 text; save the file as UTF-8") from error
    return name, text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def write_vnnlib(spec: Property) -> str:
    """VNNLIB 1.0 text that `read_vnnlib` reads as the same property: the same floats, the same exact inequalities.

    Shapes are not part of such a file. An end of a box that is not a float is written as the midpoint of the two
    floats around it. Cases without conjunctions, which no output violates, are left out.
    """
    declared = [f"(declare-const {v}_{i} Real)" for v, n in (("X", spec.inputs), ("Y", spec.outputs)) for i in range(n)]
    cases = [case for case in spec.cases if case.conjunctions]
    if not cases:
        raise InvalidValueError("nothing breaks this property, and a file cannot say that: give it a conjunction")
    if len(cases) == 1:
        asserted = _bounds(cases[0])
        parts = [_all(_inequalities(c)) for c in cases[0].conjunctions]
    else:
        asserted = []
        parts = [_all(_bounds(case) + _inequalities(c)) for case in cases for c in case.conjunctions]
    asserted.append("(or\n  " + "\n  ".join(parts) + ")")
    return "\n".join([*declared, *(f"(assert {formula})" for formula in asserted)]) + "\n"


def _all(formulas: list[str]) -> str:
    return f"(and {' '.join(formulas)})" if formulas else "true"


def _bounds(case: Case) -> list[str]:
    """The formulas of the bounds of a case, two per input."""
    ends = (case.lower.tolist(), case.inner_lower.tolist(), case.upper.tolist(), case.inner_upper.tolist())
    formulas = []
    for i, (lower, inner_lower, upper, inner_upper) in enumerate(zip(*ends, strict=True)):
        formulas += [f"(>= X_{i} {_between(lower, inner_lower, i)})", f"(<= X_{i} {_between(inner_upper, upper, i)})"]
    return formulas


def _between(below: float, above: float, index: int) -> str:
    """A number whose neighbouring floats are `below` and `above`; the float itself if the two are equal."""
    if not math.isfinite(below) or above not in (below, math.nextafter(below, math.inf)) or math.isinf(above):
        raise InvalidValueError(
            f"input {index} ends between {below!r} and {above!r}; the two are one finite float, or neighbours"
        )
    return _number((Fraction(below) + Fraction(above)) / 2)


def _inequalities(conjunction: Conjunction) -> list[str]:
    """The formulas of the inequalities of a conjunction."""
    formulas = []
    for inequality in conjunction.inequalities:
        terms = [f"(* {_number(a)} Y_{k})" for k, a in inequality.coefficients.items()]
        total = terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})" if terms else "0.0"
        formulas.append(f"({'<' if inequality.strict else '<='} {total} {_number(inequality.limit)})")
    return formulas


def _number(value: Fraction) -> str:
    """The exact number as VNNLIB text: a decimal if it has a finite one of at most DIGITS digits, else a quotient."""
    top, bottom = value.as_integer_ratio()
    twos = (bottom & -bottom).bit_length() - 1
    rest, fives = bottom >> twos, 0
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    places = max(twos, fives, 1)
    sign = "-" if top < 0 else ""
    if rest == 1 and places < DIGITS:
        top, bottom = abs(top) * 10**places // bottom, 1
    if max(top.bit_length(), bottom.bit_length()) > 3.32 * DIGITS:
        raise InvalidValueError(f"a number of the property has more than {DIGITS} digits, which is not read back")
    if bottom > 1:
        return f"(/ {top} {bottom})"
    digits = str(top).zfill(places + 1)
    return f"{sign}{digits[:-places]}.{digits[-places:]}"
