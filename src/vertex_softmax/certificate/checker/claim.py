"""What a certificate claims, for a reader: which inputs may move and how far, and what then holds of the outputs.

Invariant: what is said here is read from the same arrays as the replay reads, so that it is the claim that the replay
proves; a claim that says little (a single point, a case that no output could satisfy) is said to be one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .file import File, Rejected

Array = NDArray[np.float64]
Box = tuple[Array, Array]
LINES = 6
"""Sentences about a property that are written out, and boxes with properties of their own; the rest is counted."""
TERMS = 8
"""Outputs that are named in one sentence."""
NAME = 200
"""Characters of a name that the file gives."""


class Claim(NamedTuple):
    """`facts` as plain JSON, and `words`: pairs of a heading and a sentence."""

    facts: dict[str, Any]
    words: list[tuple[str, str]]


class Case(NamedTuple):
    """No output y satisfies all rows C y ≤ d; `vacuous`: whatever the network does."""

    C: Array
    d: Array
    vacuous: bool


def cases_of(part: dict[str, Any], file: File, outputs: int) -> list[Case]:
    """The property of one part; every case has rows, and one of them at least is not 0."""
    found = []
    for case in part["property"]:
        d, omega = file.numbers(case["bound"]), file.numbers(case["weights"])
        C = file.numbers(case["rows"], (len(d), outputs))
        if d.ndim != 1 or d.shape != omega.shape or (omega < 0).any() or not (omega > 0).any():
            raise Rejected("a case of the property has no rows, or weights that are not ≥ 0, or all 0")
        if not C.any():
            raise Rejected("a case of the property has rows of zeros alone: it says nothing about the network")
        with np.errstate(all="ignore"):
            used = omega > 0
            vacuous = not C[used].any() or (not (omega @ C).any() and bool(used.sum() > 1))
        found.append(Case(C, d, vacuous))
    if not found:
        raise Rejected("a part has no property: it claims nothing")
    return found


def claim(file: File) -> Claim:
    """Of a certificate that was replayed. Parts that claim the same of the output are told of together."""
    shapes = [tuple(node["shape"]) for node in (file.header["graph"][0], file.header["graph"][-1])]
    outputs = math.prod(shapes[1])
    kinds: dict[object, tuple[list[Case], list[Box]]] = {}
    for part in file.header["parts"]:
        lower, upper = (file.numbers(part[end], shapes[0]) for end in ("lower", "upper"))
        cases = cases_of(part, file, outputs)
        key = tuple((case.C.shape, case.C.tobytes(), case.d.tobytes()) for case in cases)
        kinds.setdefault(key, (cases, []))[1].append((lower, upper))
    model = file.header.get("model")
    model = model if isinstance(model, dict) else {}
    facts = {
        "model": {"file": _plain(model.get("file")), "sha256": _plain(model.get("sha256"))},
        "input_shape": list(shapes[0]),
        "output_shape": list(shapes[1]),
        "boxes": sum(len(boxes) for _, boxes in kinds.values()),
        "claims": [_one(cases, boxes) for cases, boxes in kinds.values()],
    }
    return Claim(facts, _said(facts))


def _one(cases: list[Case], boxes: list[Box]) -> dict[str, Any]:
    """What is claimed of the outputs, and over which inputs."""
    with np.errstate(over="ignore"):
        widths = [(upper - lower).ravel() for lower, upper in boxes]
    counts = [int((width > 0).sum()) for width in widths]
    moving = np.concatenate([width[width > 0] for width in widths])
    ends = (moving.min(), np.median(moving), moving.max()) if len(moving) else ()
    return {
        "boxes": len(boxes),
        "points": sum(count == 0 for count in counts),
        "moving": [min(counts), max(counts)],
        "width": [float(x) if np.isfinite(x) else None for x in ends],
        "range": [float(min(low.min() for low, _ in boxes)), float(max(high.max() for _, high in boxes))],
        "cases": len(cases),
        "vacuous_cases": sum(case.vacuous for case in cases),
        "holds": [_words(line) for line in sentences(cases)],
    }


def _plain(name: Any) -> str | None:
    """A name of the file as text that no terminal takes for anything else."""
    if not isinstance(name, str):
        return None
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name[:NAME])


class Sentence(NamedTuple):
    """Output `greater` exceeds each of `lesser`; or, where there is none, `text`."""

    greater: int
    lesser: list[int]
    text: str


def sentences(cases: list[Case]) -> list[Sentence]:
    """What holds of the output if no case does; comparisons of one output with others are one sentence."""
    found: list[Sentence] = []
    for case in cases:
        pair = _pair(case)
        if pair is not None and found and found[-1].greater == pair[0] and not found[-1].text:
            found[-1].lesser.append(pair[1])
        elif pair is not None:
            found.append(Sentence(pair[0], [pair[1]], ""))
        else:
            found.append(Sentence(-1, [], _excluded(case)))
    return found[:LINES] + ([Sentence(-1, [], f"and {len(found) - LINES} more")] if len(found) > LINES else [])


def _pair(case: Case) -> tuple[int, int] | None:
    """(i, k) if the case is y_i − y_k ≤ 0, up to a positive factor."""
    if len(case.C) != 1 or case.d[0] != 0:
        return None
    at = np.flatnonzero(case.C[0])
    if len(at) != 2 or case.C[0, at].sum() != 0:
        return None
    first, second = (int(k) for k in at)
    return (first, second) if case.C[0, first] > 0 else (second, first)


def _excluded(case: Case) -> str:
    """That not all rows C y ≤ d hold."""
    rows = [_row(C, d) for C, d in zip(case.C[:TERMS], case.d[:TERMS], strict=True)]
    if len(case.C) > TERMS:
        rows.append(f"… ({len(case.C)} in all)")
    text = rows[0] if len(rows) == 1 else f"at least one of these: {'; '.join(rows)}"
    return f"{text} (true of every output: it says nothing about the network)" if case.vacuous else text


def _row(C: Array, d: float) -> str:
    """That C y > d."""
    at = np.flatnonzero(C)
    if len(at) == 1 and abs(C[at[0]]) == 1:
        return f"output {at[0]} > {float(d)!r}" if C[at[0]] > 0 else f"output {at[0]} < {0.0 - float(d)!r}"
    terms = "".join(_term(float(C[k]), int(k), first=i == 0) for i, k in enumerate(at[:TERMS]))
    more = f" + … ({len(at)} terms)" if len(at) > TERMS else ""
    return f"{terms or '0'}{more} > {float(d)!r}"


def _term(c: float, k: int, *, first: bool) -> str:
    sign = ("" if c > 0 else "−") if first else (" + " if c > 0 else " − ")
    return f"{sign}{'' if abs(c) == 1 else f'{abs(c)!r}·'}output {k}"


def _words(sentence: Sentence) -> str:
    if sentence.text:
        return sentence.text
    if len(sentence.lesser) == 1:
        return f"output {sentence.greater} is greater than output {sentence.lesser[0]}"
    named = ", ".join(map(str, sentence.lesser[:TERMS]))
    more = f", … ({len(sentence.lesser)} in all)" if len(sentence.lesser) > TERMS else ""
    return f"output {sentence.greater} is greater than each of outputs {named}{more}"


def _said(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts in sentences."""
    model, claims, numbers = facts["model"], facts["claims"], math.prod(facts["input_shape"])
    outputs = math.prod(facts["output_shape"])
    said = [
        ("model", f"{model['file'] or 'a network that is no file'}, SHA-256 {model['sha256']}"),
        ("of", f"{numbers} input numbers and {outputs} output numbers, both counted from 0"),
    ]
    for number, one in enumerate(claims[:LINES], 1):
        if len(claims) > 1:
            said.append(("claim", f"{number} of {len(claims)}, over {one['boxes']} of the {facts['boxes']} boxes"))
        said += [("inputs", line) for line in _moved(one, numbers)]
        said += [("property", line) for line in one["holds"]]
        if empty := one["vacuous_cases"]:
            share = "ALL of its cases are" if empty == one["cases"] else f"{empty} of its {one['cases']} cases are"
            said.append(("BEWARE", f"{share} excluded whatever the network does"))
    if len(claims) > LINES:
        said.append(("claim", f"and {len(claims) - LINES} more over other boxes"))
    return said


def _moved(one: dict[str, Any], numbers: int) -> list[str]:
    """How the inputs move in the boxes of one claim."""
    boxes, (least, most) = one["boxes"], one["moving"]
    if not one["width"]:
        one_or_more = "the input set is a single point" if boxes == 1 else f"the input set is {boxes} single points"
        return [f"{one_or_more}: none of the {numbers} numbers moves"]
    narrow, half, wide = ("∞" if x is None else f"{x:.6g}" for x in one["width"])
    span = f"{wide} wide" if narrow == wide else f"{narrow} to {wide} wide (half of them at most {half})"
    moves = f"{most}" if least == most else f"{least} to {most}"
    where = "" if boxes == 1 else f"in each of {boxes} boxes "
    fixed = "" if least == numbers else ", and the others are fixed"
    said = [
        f"{where}{moves} of {numbers} numbers move, each within an interval {span}{fixed}",
        f"all of them lie from {one['range'][0]:.6g} to {one['range'][1]:.6g}",
    ]
    if one["points"]:
        said.append(f"{one['points']} of these boxes are single points")
    return said
