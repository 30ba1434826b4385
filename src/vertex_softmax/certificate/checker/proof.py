"""The replay: step by step what a certificate claims is proved again, and accepted only if the margin is positive.

A certificate is a list of steps, each a claim about one node for every input of the set, that follows from the steps
before it: a box (by a backward pass per number), a zonotope (by a parallel pass), a box of the scores less their
weighted means. The last part is the property. It says that no input of the set satisfies all rows C y ≤ d of any of its
cases. A case is excluded by weights ω ≥ 0 and a bound ω·(C y − d) > 0: over the whole set, or over every leaf of a tree
whose every branching cuts the range of one number into x ≤ t and x ≥ t, so that the leaves cover the set.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .file import File, Rejected, read, sha256
from .network import Known, network
from .passes import MOST_COLUMNS, How, Pass, joined, units
from .rounding import MORE, Array, Interval, rounding

WORK = 1 << 22
"""Numbers per objective and node that are handled at once."""
WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError, MemoryError)


class Verdict(NamedTuple):
    """Accepted or not, why not, the margin that was proved (its lower end), and what it proves."""

    accepted: bool
    reason: str
    margin: float
    statement: str
    seconds: float


def check(source: str | os.PathLike[str] | bytes, model: str | os.PathLike[str] | None = None) -> Verdict:
    """Replay a certificate; with a model file, its SHA-256 must be the certificate's."""
    begin = time.perf_counter()
    margin, statement = float("-inf"), ""
    try:
        with np.errstate(all="ignore"):
            file = read(source)
            if model is not None and sha256(model) != file.header["model"]["sha256"]:
                raise Rejected("the certificate is for another model: the SHA-256 of the file is not the one it names")
            margin = replay(file)
            statement = str(file.header.get("statement", ""))
        reason = "" if margin > 0 else f"the bound that was proved is not positive: margin {margin:.3g}"
    except Rejected as error:
        reason = str(error)
    except (*WRONG, OSError, np.linalg.LinAlgError) as error:
        reason = f"the certificate makes no sense: {type(error).__name__}: {error}"
    return Verdict(not reason, reason, margin, statement if not reason else "", time.perf_counter() - begin)


def replay(file: File) -> float:
    """The margin: the least over all cases of the best bound that was proved, or the reason why there is none."""
    nodes = network(file)
    shape = nodes[0].shape
    lower, upper = (file.numbers(file.header["input"][end], shape) for end in ("lower", "upper"))
    if not (lower <= upper).all():
        raise Rejected("the input set is empty: a lower end is above its upper end")
    known = Known(nodes, lower, upper)
    for number, names in file.header["lines"].items():
        place = nodes[nodes[int(number)].inputs[0]].shape
        shapes = [(2, *place) if k in (1, 3, 5, 6) else place for k in range(7)]
        known.lines[int(number)] = tuple(file.numbers(n, s) for n, s in zip(names, shapes, strict=True))
    for step in file.header["steps"]:
        _step(known, step, file)
    known.reach(len(nodes) - 1)
    return _property(known, file)


def _step(known: Known, step: dict[str, Any], file: File) -> None:
    """One claim."""
    kind, number = step["kind"], step["node"]
    at = known.nodes[number].inputs[0] if kind == "centred" else number
    shape = known.nodes[at].shape
    known.reach(at)
    claimed = Interval(*(file.numbers(step[end], shape) for end in ("lower", "upper")))
    if kind == "zonotope":
        found = zonotope(known, at, step["rule"])
        known.zonotopes[at], box = found, found.box()
    elif kind == "centred":
        weights = file.numbers(step["weights"], shape)
        box = centred_box(known, at, weights, step["rule"])
        known.centred[number] = (weights, claimed)
    else:
        entries = file.array(step["entries"], "i") if step["entries"] is not None else np.arange(claimed.lo.size)
        box = box_by_pass(known, at, np.asarray(entries), step["rule"])
    place = known.boxes[at] if kind != "centred" else Interval(-np.inf, np.inf)
    box = box.meet(place)
    if not ((box.lo >= claimed.lo) & (box.hi <= claimed.hi) & (claimed.lo <= claimed.hi)).all():
        raise Rejected(f"node {at}: the box that is claimed ({kind}) does not hold what was proved")
    if kind != "centred":
        known.boxes[at] = claimed.meet(place)
        known.forget(at)


def _chunks(known: Known, number: int, count: int) -> int:
    widest = max(known.work(k) for k in range(number + 1))
    return max(1, min(count, WORK // widest))


def bounds(known: Known, number: int, A: Array, how: How) -> Array:
    """At most Σ A·node over the set, (S, *shape) → (S,), in parts."""
    size = _chunks(known, number, len(A))
    return np.concatenate([Pass(known, number, A[i : i + size], how).bound() for i in range(0, len(A), size)])


def box_by_pass(known: Known, number: int, entries: NDArray[Any], rule: str) -> Interval:
    """A box of a node, by passes for some of its numbers."""
    shape, old = known.nodes[number].shape, known.boxes[number]
    lo, hi = old.lo.ravel().copy(), old.hi.ravel().copy()
    size = _chunks(known, number, 2 * len(entries))
    for i in range(0, len(entries), size):
        part = entries[i : i + size]
        A = units(lo.size, part).reshape(-1, *shape)
        lo[part] = np.fmax(lo[part], bounds(known, number, A, How(rule)))
        hi[part] = np.fmin(hi[part], -bounds(known, number, -A, How(rule)))
    return Interval(lo.reshape(shape), hi.reshape(shape))


def centred_box(known: Known, number: int, weights: Array, rule: str) -> Interval:
    """A box of s − ω·s along the last dimension; the rounding of 1 − ω is paid for."""
    shape = known.nodes[number].shape
    lo, hi = np.empty(known.boxes[number].lo.size), np.empty(known.boxes[number].lo.size)
    size = _chunks(known, number, 2 * len(lo))
    wide = np.broadcast_to(weights, shape)
    for i in range(0, len(lo), size):
        part = np.arange(i, min(i + size, len(lo)))
        unit = units(len(lo), part).reshape(-1, *shape)
        A = unit - unit.sum(-1, keepdims=True) * wide
        lost = rounding(2) * (np.abs(A) * known.boxes[number].size).reshape(len(A), -1).sum(-1) * MORE
        lo[part] = bounds(known, number, A, How(rule)) - lost
        hi[part] = -bounds(known, number, -A, How(rule)) + lost
    return Interval(lo.reshape(shape), hi.reshape(shape))


def zonotope(known: Known, number: int, rule: str) -> Any:
    """Of every number of a node, by parallel passes."""
    shape = known.nodes[number].shape
    count = int(np.prod(shape))
    room = MOST_COLUMNS // count - known.boxes[0].lo.size
    if room < 0 or rule != "affine":
        raise Rejected(f"node {number}: its zonotope is too large, or its rule is not affine")
    size = _chunks(known, number, count)
    how = How("affine", parallel=True, columns=room)
    parts = [np.arange(i, min(i + size, count)) for i in range(0, count, size)]
    return joined([Pass(known, number, units(count, part).reshape(-1, *shape), how) for part in parts], shape)


def _property(known: Known, file: File) -> float:
    """Every case, by a pass over the whole set or by a tree."""
    output = known.nodes[-1].shape
    cases = []
    for case in file.header["property"]:
        d = file.numbers(case["bound"])
        C = file.numbers(case["rows"], (*d.shape, int(np.prod(output))))
        omega = file.numbers(case["weights"], d.shape)
        if d.ndim != 1 or not len(d) or (omega < 0).any() or not (omega > 0).any():
            raise Rejected("a case of the property has no rows, or weights that are not ≥ 0, or all 0")
        A = omega @ C
        paid = rounding(len(d)) * ((omega @ np.abs(C)) @ known.boxes[len(known.nodes) - 1].size.ravel()) * MORE
        cases.append((A.reshape(output), float((Interval(omega) * d).sum().hi), float(paid)))
    margins = np.full(len(cases), -np.inf)
    for proof in file.header["proofs"]:
        which = proof["cases"]
        if not all(type(i) is int and 0 <= i < len(cases) for i in which):
            raise Rejected("a proof of a case that there is not")
        A = np.stack([cases[i][0] for i in which])
        found = _tree(known, A, proof["tree"], file)
        for k, i in enumerate(which):
            margins[i] = np.fmax(margins[i], np.nextafter(found[k] - cases[i][1], -np.inf) - cases[i][2])
    if not cases:
        raise Rejected("the property is empty")
    return float(margins.min())


def _tree(known: Known, A: Array, tree: list[dict[str, Any]], file: File) -> Array:
    """The least bound over the leaves; branchings come before their branches."""
    best = np.full(len(A), np.inf)
    open_ = [(0, known)]
    while open_:
        at, here = open_.pop()
        entry = tree[at]
        if "split" in entry:
            if not all(at < k < len(tree) for k in (entry["left"], entry["right"])):
                raise Rejected("a branching does not come before its branches")
            open_ += [(entry[side], here.part(entry["split"], side == "left")) for side in ("left", "right")]
            continue
        chosen = {int(k): {n: file.numbers(v) for n, v in of.items()} for k, of in entry["chosen"].items()}
        how = How(entry["rule"], entry["pieces"], chosen)
        best = np.minimum(best, bounds(here, len(known.nodes) - 1, A, how) if not chosen else together(here, A, how))
    return best


def together(known: Known, A: Array, how: How) -> Array:
    """All objectives at once: what was chosen is chosen for each of them."""
    return Pass(known, len(known.nodes) - 1, A, how).bound()
