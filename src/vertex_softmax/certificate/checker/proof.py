"""The replay: step by step what a certificate claims is proved again, and accepted only if the margin is positive.

For every box of inputs there is a list of steps, each a claim about one node for every input of the box, that follows
from the steps before it: a box (by a backward pass per number), a zonotope (by a parallel pass), a box of the scores
less their weighted means. The last part is the property. It says that no input satisfies all rows C y ≤ d of any of its
cases. A case is excluded by weights ω ≥ 0 and a bound ω·(C y − d) > 0: over the whole box, or over every leaf of a tree
whose every branching cuts the range of one number into x ≤ t and x ≥ t, so that the leaves cover the box.
"""

from __future__ import annotations

import time
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .claim import Claim, cases_of, claim
from .file import File, Path, Rejected, place, read
from .model import identity_of_file
from .network import Known, Node, network
from .passes import LOST, MOST_COLUMNS, How, Pass, joined, wanted
from .rounding import MORE, Array, Interval, rounding
from .zonotopes import Zonotope

STATEMENT = (
    "What is proved. Let N be the network that is written in this file: its operations in their order, applied to its "
    "stored numbers, in real arithmetic, without any rounding; every stored number stands for each real number within "
    "2^-46 of it, relatively, and what follows holds whichever of these it is. Let x be an input of which every number "
    "lies between the numbers of 'lower' and 'upper' of a part of this file, both included, and let y be the output of "
    "N at x. Then no case of that part's property is true of y: in every case there is a row of 'rows' whose product "
    "with y is greater than its number in 'bound'. A masked key of an attention has weight 0 where its additive mask "
    "is minus infinity; where the mask is finite, the proof shows that the weight is below e^-2000, and counts it. "
    "On what assumptions. That the checker, Python, numpy, python-flint and the machine they run on do what they are "
    "specified to do. Nothing that the file claims is assumed: every claim is proved again from its numbers. "
    "What is not proved. That N is a certain model: the file names one by SHA-256, and whether N is what Vertex reads "
    "from it is compared by 'vertex check', not by this proof. How far a program that runs the model in floating point "
    "is from N. Anything about inputs outside of the parts. That this property is the one that is wanted: compare it "
    "with the specification."
)
SECONDS = 3600.0
"""The longest that a check takes, unless more is asked for."""
WORK = 1 << 22
"""Numbers per objective and node that are handled at once."""
WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError, MemoryError)
UNREADABLE = (*WRONG, OSError, EOFError, zlib.error, np.linalg.LinAlgError, Rejected)
"""What a file raises that is no certificate."""


class Verdict(NamedTuple):
    """Accepted or not, why not, the margin that was proved (its lower end), and what it proves."""

    accepted: bool
    reason: str
    margin: float
    statement: str
    seconds: float
    claim: Claim | None = None
    """what exactly is proved, if it is accepted"""


def check(source: Path | bytes | File, model: Path | None = None, seconds: float = SECONDS) -> Verdict:
    """Replay a certificate; with a model file, its identity (model.py) must be the certificate's.

    `seconds`: a certificate that takes longer is rejected. The clock is looked at between passes and before the box of
    each node, so that the last of these may go on for a while.
    """
    begin = time.perf_counter()
    margin, statement, claimed = float("-inf"), "", None
    try:
        with np.errstate(all="ignore"):
            if not (np.full(64, 5e-324) * 1.0 > 0).all():
                raise Rejected(
                    "this process flushes small numbers to zero: nextafter and sums are not IEEE's; use another"
                )
            if not seconds > 0:
                raise Rejected(f"there is no time for a check: {seconds} seconds")
            file = source if isinstance(source, File) else read(source)
            if model is not None and identity_of_file(model) != file.header["model"]["sha256"]:
                raise Rejected("the certificate is for another model: the SHA-256 of the file is not the one it names")
            if file.header["statement"] != STATEMENT:
                raise Rejected("the certificate claims to prove something else than a certificate can")
            margin, statement = replay(file, time.monotonic() + seconds), STATEMENT
            claimed = claim(file)
        reason = "" if margin > 0 else f"the bound that was proved is not positive: margin {margin:.3g}"
    except UNREADABLE as error:
        reason = why(error)
    took = time.perf_counter() - begin
    return Verdict(False, reason, margin, "", took) if reason else Verdict(True, "", margin, statement, took, claimed)


def why(error: Exception) -> str:
    """The reason for which a certificate that raised this is rejected."""
    return (
        str(error)
        if isinstance(error, Rejected)
        else f"the certificate makes no sense: {type(error).__name__}: {error}"
    )


def replay(file: File, ends: float = float("inf")) -> float:
    """The margin: the least over all boxes and cases of the best bound that was proved. `ends`: by time.monotonic."""
    nodes, spent = network(file), [0]
    return min(_part(nodes, part, file, spent, ends) for part in file.header["parts"])


def _part(nodes: list[Node], part: dict[str, Any], file: File, spent: list[int], ends: float) -> float:
    """The margin over one box of inputs."""
    lower, upper = (file.numbers(part[end], nodes[0].shape) for end in ("lower", "upper"))
    if not (lower <= upper).all():
        raise Rejected("the input set is empty: a lower end is above its upper end")
    known = Known(nodes, lower, upper, spent, ends)
    for number, names in part["lines"].items():
        shape = nodes[int(number)].shape
        shapes = [(2, *shape) if k in (1, 3, 5, 6) else shape for k in range(7)]
        known.lines[int(number)] = tuple(file.numbers(n, s) for n, s in zip(names, shapes, strict=True))
    for step in part["steps"]:
        _step(known, step, file)
    known.reach(len(nodes) - 1)
    return _property(known, part, file)


def _step(known: Known, step: dict[str, Any], file: File) -> None:
    """One claim: what is proved here must lie inside it."""
    kind, number = step["kind"], place(step["node"], len(known.nodes))
    at = known.nodes[number].inputs[0] if kind == "centred" else number
    shape = known.nodes[at].shape
    known.reach(at)
    old, weights = known.boxes[at], None
    claimed = Interval(*(file.numbers(step[end], shape) for end in ("lower", "upper")))
    if kind == "zonotope":
        known.zonotopes[at] = zonotope(known, at)
        box = known.zonotopes[at].box().meet(old)
    elif kind == "centred":
        weights = file.numbers(step["weights"], shape)
        box = box_by_pass(known, at, np.arange(claimed.lo.size), step["rule"], weights)
        known.centred[number] = (weights, claimed)
    else:
        box = box_by_pass(known, at, file.array(step["entries"], "i").ravel(), step["rule"])
    if not ((box.lo >= claimed.lo) & (box.hi <= claimed.hi)).all():
        raise Rejected(f"node {at}: the box that is claimed ({kind}) does not hold what was proved")
    if weights is None:
        known.boxes[at] = claimed.meet(old)
    known.forget(at)


def bounds(known: Known, number: int, A: Array, how: How) -> Array:
    """At most Σ A·node over the set, (S, *shape) → (S,); in parts, unless something was chosen for each objective."""
    size = len(A) if how.chosen else at_once(known, number)
    return np.concatenate([Pass(known, number, A[i : i + size], how).bound() for i in range(0, len(A), size)])


def at_once(known: Known, number: int) -> int:
    """How many objectives on a node are handled at once."""
    return max(1, WORK // max(known.work(k) for k in range(number + 1)))


def units(known: Known, number: int, entries: NDArray[Any]) -> Array:
    """Unit objectives on a node, (S, *shape)."""
    shape = known.nodes[number].shape
    found = np.zeros((len(entries), int(np.prod(shape))))
    found[np.arange(len(entries)), entries] = 1
    return found.reshape(-1, *shape)


def box_by_pass(known: Known, number: int, entries: NDArray[Any], rule: str, weights: Array | None = None) -> Interval:
    """A box of a node, by passes for some of its numbers; with weights ω of s − ω·s along the last dimension."""
    old = known.boxes[number] if weights is None else Interval(np.full(known.nodes[number].shape, -np.inf), np.inf)
    lo, hi = (np.array(np.broadcast_to(end, old.lo.shape)).ravel() for end in (old.lo, old.hi))
    size = at_once(known, number)
    for i in range(0, len(entries), size):
        part = entries[i : i + size]
        A, lost = units(known, number, part), np.zeros(len(part))
        if weights is not None:  # 1 − ω is rounded
            A = A - A.sum(-1, keepdims=True) * weights
            lost = rounding(2) * (np.abs(A) * known.boxes[number].size).reshape(len(A), -1).sum(-1) * MORE
        lo[part] = np.fmax(lo[part], bounds(known, number, A, How(rule)) - lost)
        hi[part] = np.fmin(hi[part], lost - bounds(known, number, -A, How(rule)))
    return Interval(lo.reshape(old.lo.shape), hi.reshape(old.lo.shape))


def zonotope(known: Known, number: int) -> Zonotope:
    """Of every number of a node, by parallel passes."""
    shape = known.nodes[number].shape
    count, size = int(np.prod(shape)), at_once(known, number)
    room = MOST_COLUMNS // count - known.boxes[0].lo.size
    if room < 0:
        raise Rejected(f"node {number}: its zonotope is too large")
    parts = [units(known, number, np.arange(i, min(i + size, count))) for i in range(0, count, size)]
    return joined([Pass(known, number, A, How(parallel=True, columns=room)) for A in parts], shape)


def _property(known: Known, part: dict[str, Any], file: File) -> float:
    """Every case, by a pass over the whole box or by a tree."""
    shape, last = known.nodes[-1].shape, len(known.nodes) - 1
    rows, limits = [], []
    for case, (C, d, _) in zip(part["property"], cases_of(part, file, int(np.prod(shape))), strict=True):
        omega = file.numbers(case["weights"])
        rows.append((omega @ C).reshape(shape))
        size = known.boxes[last].size.ravel()
        paid = rounding(len(d)) * ((omega @ np.abs(C)) @ size) * MORE + LOST * size.sum()
        limits.append(float((Interval(omega) * d).sum().hi + paid))
    margins = np.full(len(rows), -np.inf)
    for proof in part["proofs"]:
        which = [place(i, len(rows)) for i in proof["cases"]]
        found = _tree(known, np.stack([rows[i] for i in which]), proof["tree"], file)
        for k, i in enumerate(which):
            margins[i] = np.fmax(margins[i], np.nextafter(found[k] - limits[i], -np.inf))
    return float(margins.min())


def _tree(known: Known, A: Array, tree: list[dict[str, Any]], file: File) -> Array:
    """The least bound over the leaves; branchings come before their branches."""
    best, open_, seen = np.full(len(A), np.inf), [(0, known)], 0
    while open_:
        (at, here), seen = open_.pop(), seen + 1
        if seen > len(tree):
            raise Rejected("an entry of a tree is the branch of several")
        entry = tree[at]
        if "split" in entry:
            if not all(at < place(entry[side], len(tree)) for side in ("left", "right")):
                raise Rejected("a branching does not come before its branches")
            open_ += [(entry[side], here.part(entry["split"], side == "left")) for side in ("left", "right")]
            continue
        pieces, chosen = int(entry["pieces"]), {}
        for k, of in entry["chosen"].items():
            shapes = wanted(known, int(k), len(A), pieces)
            chosen[int(k)] = {name: file.numbers(array, shapes[name]) for name, array in of.items()}
        best = np.minimum(best, bounds(here, len(known.nodes) - 1, A, How(entry["rule"], pieces, chosen)))
    return best
