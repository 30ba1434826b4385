"""The claim of a certificate in words: which inputs may move and how far, and what then holds for the outputs.

Invariant: the words are made from the same arrays that the replay uses, so they state exactly the claim that the replay
proves. A claim that says little (the input set is a single point, no output could satisfy a case) is marked as such.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .file import File, Rejected

if TYPE_CHECKING:
    from .input_sets import CheckedSet

Array = NDArray[np.float64]
LINES = 6
"""The most sentences that are written out about a property, and the most claims; the rest is counted."""
TERMS = 8
"""The most outputs that are named in one sentence."""
NAME = 200
"""The most characters that are shown of a name which the file gives."""


class Claim(NamedTuple):
    """The claim of a certificate: `facts` as plain JSON, and `words` as pairs of a heading and a sentence."""

    facts: dict[str, Any]
    words: list[tuple[str, str]]


class ClaimedCase(NamedTuple):
    """One case of a property: the claim is that no output y satisfies all rows C y ≤ d.

    `vacuous` means that the claim holds whatever the network does, so that it says nothing about the network.
    """

    C: Array
    """(rows, outputs)"""
    d: Array
    """(rows,)"""
    vacuous: bool


def cases_of(part: dict[str, Any], file: File, outputs: int) -> list[ClaimedCase]:
    """The cases of one part of a certificate; every case has at least one row that is not 0, else it is rejected."""
    cases = []
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
        cases.append(ClaimedCase(C, d, vacuous))
    if not cases:
        raise Rejected("a part has no property: it claims nothing")
    return cases


def claim(file: File) -> Claim:
    """The claim of a certificate that was replayed. Parts with the same cases are described together."""
    from .input_sets import read_set  # it needs python-flint, which reading a model's identity does not

    shapes = [tuple(node["shape"]) for node in (file.header["graph"][0], file.header["graph"][-1])]
    outputs = math.prod(shapes[1])
    kinds: dict[object, tuple[list[ClaimedCase], list[CheckedSet]]] = {}
    for part in file.header["parts"]:
        given = read_set(part, file, shapes[0])
        cases = cases_of(part, file, outputs)
        key = (given.kind, *((case.C.shape, case.C.tobytes(), case.d.tobytes()) for case in cases))
        kinds.setdefault(key, (cases, []))[1].append(given)
    model = file.header.get("model")
    model = model if isinstance(model, dict) else {}
    named: dict[str, Any] = {"file": _printable(model.get("file")), "sha256": _printable(model.get("sha256"))}
    if isinstance(model.get("inputs"), list):
        named["inputs"] = [_printable(name) for name in model["inputs"]]
    facts = {
        "model": named,
        "input_shape": list(shapes[0]),
        "output_shape": list(shapes[1]),
        "boxes": sum(len(sets) for _, sets in kinds.values()),
        "claims": [_facts_of_claim(cases, sets) for cases, sets in kinds.values()],
    }
    return Claim(facts, _in_words(facts))


def _facts_of_claim(cases: list[ClaimedCase], sets: list[CheckedSet]) -> dict[str, Any]:
    """What is claimed about the outputs over these sets of inputs, all of one kind, as plain JSON."""
    boxes = [given.box for given in sets]
    with np.errstate(over="ignore"):
        widths = [(box.hi - box.lo).ravel() for box in boxes]
    counts = [int((width > 0).sum()) for width in widths]
    moving = np.concatenate([width[width > 0] for width in widths])
    ends = (moving.min(), np.median(moving), moving.max()) if len(moving) else ()
    facts: dict[str, Any] = {
        "set": sets[0].kind,
        "boxes": len(sets),
        "points": sum(count == 0 for count in counts),
        "moving": [min(counts), max(counts)],
        "width": [float(x) if np.isfinite(x) else None for x in ends],
        "range": [float(min(box.lo.min() for box in boxes)), float(max(box.hi.max() for box in boxes))],
        "cases": len(cases),
        "vacuous_cases": sum(case.vacuous for case in cases),
        "holds": [_sentence_text(sentence) for sentence in sentences(cases)],
    }
    for given in sets:  # the least and the largest of what is particular to the kind
        for name, (least, most) in given.facts().items():
            low, high = facts.get(name, (least, most))
            facts[name] = [min(low, least), max(high, most)]
    return facts


def _printable(name: Any) -> str | None:
    """A name from the file with control characters escaped, so that no terminal obeys it; None if it is not text."""
    if not isinstance(name, str):
        return None
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name[:NAME])


class Sentence(NamedTuple):
    """A sentence about the output: output `greater` exceeds each output of `lesser`; or `text`, unless it is empty."""

    greater: int
    lesser: list[int]
    text: str


def sentences(cases: list[ClaimedCase]) -> list[Sentence]:
    """What holds for the output if no case does; successive comparisons of one output with others form one sentence."""
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


def _pair(case: ClaimedCase) -> tuple[int, int] | None:
    """The pair (i, k) if the case is y_i − y_k ≤ 0, up to a positive factor; else None."""
    if len(case.C) != 1 or case.d[0] != 0:
        return None
    outputs = np.flatnonzero(case.C[0])
    if len(outputs) != 2 or case.C[0, outputs].sum() != 0:
        return None
    first, second = (int(k) for k in outputs)
    return (first, second) if case.C[0, first] > 0 else (second, first)


def _excluded(case: ClaimedCase) -> str:
    """The statement that at least one row C y ≤ d of the case does not hold, in words."""
    rows = [_negated_row(C, d) for C, d in zip(case.C[:TERMS], case.d[:TERMS], strict=True)]
    if len(case.C) > TERMS:
        rows.append(f"… ({len(case.C)} in all)")
    text = rows[0] if len(rows) == 1 else f"at least one of these: {'; '.join(rows)}"
    return f"{text} (true of every output: it says nothing about the network)" if case.vacuous else text


def _negated_row(C: Array, d: float) -> str:
    """The statement C y > d for one row of coefficients, (outputs,), in words."""
    outputs = np.flatnonzero(C)
    if len(outputs) == 1 and abs(C[outputs[0]]) == 1:
        k = outputs[0]
        return f"output {k} > {float(d)!r}" if C[k] > 0 else f"output {k} < {0.0 - float(d)!r}"
    terms = "".join(_term(float(C[k]), int(k), first=i == 0) for i, k in enumerate(outputs[:TERMS]))
    more = f" + … ({len(outputs)} terms)" if len(outputs) > TERMS else ""
    return f"{terms or '0'}{more} > {float(d)!r}"


def _term(c: float, k: int, *, first: bool) -> str:
    sign = ("" if c > 0 else "−") if first else (" + " if c > 0 else " − ")
    return f"{sign}{'' if abs(c) == 1 else f'{abs(c)!r}·'}output {k}"


def _sentence_text(sentence: Sentence) -> str:
    if sentence.text:
        return sentence.text
    if len(sentence.lesser) == 1:
        return f"output {sentence.greater} is greater than output {sentence.lesser[0]}"
    named = ", ".join(map(str, sentence.lesser[:TERMS]))
    more = f", … ({len(sentence.lesser)} in all)" if len(sentence.lesser) > TERMS else ""
    return f"output {sentence.greater} is greater than each of outputs {named}{more}"


def _in_words(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts of a claim as pairs of a heading and a sentence."""
    model, claims, numbers = facts["model"], facts["claims"], math.prod(facts["input_shape"])
    outputs = math.prod(facts["output_shape"])
    said = [
        ("model", f"{model['file'] or 'a network that was not read from a file'}, SHA-256 {model['sha256']}"),
        ("of", f"{numbers} input numbers and {outputs} output numbers, both counted from 0"),
    ]
    if "inputs" in model:
        joined = ", ".join(str(name) for name in model["inputs"][:LINES])
        said.append(("joined", f"the input numbers are those of the model's inputs {joined}, in this order"))
    noun = "boxes" if all(one["set"] == "box" for one in claims) else "sets"
    for number, one in enumerate(claims[:LINES], 1):
        if len(claims) > 1:
            said.append(("claim", f"{number} of {len(claims)}, over {one['boxes']} of the {facts['boxes']} {noun}"))
        said += [("inputs", line) for line in _input_sentences(one, numbers)]
        said += [("property", line) for line in one["holds"]]
        if empty := one["vacuous_cases"]:
            share = "ALL of its cases are" if empty == one["cases"] else f"{empty} of its {one['cases']} cases are"
            said.append(("BEWARE", f"{share} excluded whatever the network does"))
    if len(claims) > LINES:
        said.append(("claim", f"and {len(claims) - LINES} more over other {noun}"))
    return said


def _input_sentences(one: dict[str, Any], numbers: int) -> list[str]:
    """How the `numbers` numbers of an input move in the boxes of one claim, in sentences."""
    boxes, (least, most) = one["boxes"], one["moving"]
    if not one["width"]:
        points = "the input set is a single point" if boxes == 1 else f"the input set is {boxes} single points"
        return [f"{points}: none of the {numbers} numbers moves"]
    narrow, half, wide = ("∞" if x is None else f"{x:.6g}" for x in one["width"])
    span = f"{wide} wide" if narrow == wide else f"{narrow} to {wide} wide (half of them at most {half})"
    moves = f"{most}" if least == most else f"{least} to {most}"
    noun = "boxes" if one["set"] == "box" else "sets"
    where = "" if boxes == 1 else f"in each of {boxes} {noun} "
    fixed = "" if least == numbers else ", and the others are fixed"
    said = [f"{where}{moves} of {numbers} numbers move, each within an interval {span}{fixed}"]
    if one["set"] == "choices":
        said.append(
            f"not the whole box, but choices: in {_span(one['blocks'])} of its blocks the numbers are one of "
            f"{_span(one['vectors'])} vectors, 2^{_span(one['combinations'])} combinations in all"
        )
    elif one["set"] != "box":
        said.append(
            f"not the whole box, but {one['set']} balls: {_span(one['balls'])}, with radii {_span(one['radius'])}, "
            f"cut by the box in {_span(one['cut'])} numbers"
        )
    said.append(f"all of them lie from {one['range'][0]:.6g} to {one['range'][1]:.6g}")
    if one["points"]:
        said.append(f"{one['points']} of these {noun} are single points")
    return said


def _span(ends: list[float]) -> str:
    """The least and the largest of some numbers."""
    least, most = (f"{x:.6g}" for x in ends)
    return least if least == most else f"{least} to {most}"
