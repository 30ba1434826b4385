"""The replay: every step of a certificate is proved again; the certificate is accepted if its margin is positive.

For every set of inputs there is a list of steps. Each step is a claim about one node for every input of the set, and
follows from the steps before it: a box (by a backward pass per entry), a zonotope (by a parallel pass), or a box of the
scores minus their weighted means. A step of kind "forward" claims nothing: it proves boxes of all nodes, and a form of
the output, from the input on (forward/propagation.py). The property comes last. It says that no input satisfies all
rows C y ≤ d of any of its cases. A case is excluded by weights ω ≥ 0 and a bound ω·(C y − d) > 0, by a backward pass,
by the form of the output or by that of what the last norm reads: over the whole set, or over every leaf of a tree.
Every branching of a tree cuts the range of one number into x ≤ t and x ≥ t, so that the leaves cover the set.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .claim import Claim, cases_of, claim
from .file import OLDER, File, Path, Rejected, checked_index, checked_word, read
from .forward import last_norm, propagation
from .forward.choices import Given
from .input_sets import read_set
from .model import identity_of_file
from .network import CheckerNode, Known, network
from .passes import LOST, MOST_COLUMNS, RULES, Pass, PassOptions, joined, wanted
from .rounding import MORE, Array, ProvedInterval, rounding
from .zonotopes import ProvedZonotope

_STATEMENT = (
    "What is proved. Let N be the network that is written in this file: its operations in their order, applied to its "
    "stored numbers, in real arithmetic, without any rounding; every stored number stands for each real number within "
    "2^-46 of it, relatively, and what follows holds whichever of these it is. Let x be an input of which every "
    "number lies between the numbers of 'lower' and 'upper' of a part of this file, both included, {}and let y be the "
    "output of N at x. Then no case of that part's property is true of y: in every case there is a row of 'rows' "
    "whose product with y is greater than its number in 'bound'. A masked key of an attention has weight 0 where its "
    "additive mask is minus infinity; where the mask is finite, the proof shows that the weight is below e^-2000, and "
    "counts it. On what assumptions. That the checker, Python, numpy, python-flint and the machine they run on do "
    "what they are specified to do. Nothing that the file claims is assumed: every claim is proved again from its "
    "numbers. What is not proved. That N is a certain model: the file names one by SHA-256, and whether N is what "
    "Vertex reads from it is compared by 'vertex check', not by this proof. How far a program that runs the model in "
    "floating point is from N. Anything about inputs outside of the parts. That this property is the one that is "
    "wanted: compare it with the specification."
)
STATEMENT = _STATEMENT.format(
    "and which is in the part's 'set', if it has one: if that is of the kind 'balls', then for every number k of "
    "'members' the sum of |(x_i - centre_i) / radius_i|^norm over the numbers i with members_i = k is at most 1, and "
    "x_i is centre_i where radius_i is 0; if that is of the kind 'choices', then the numbers of x that are 'numbers' "
    "of a block are one of its 'vectors', for every block; these numbers of the set stand for themselves; "
)
"""What a certificate proves."""
OLDER_STATEMENT = _STATEMENT.format("")
"""What a certificate of an older format proves: its parts are boxes."""
KINDS = ("box", "zonotope", "centred", "forward")
"""What a step may prove: of a node, or, the last, of all."""
SECONDS = 3600.0
"""The default time limit of a check."""
WORK = 1 << 22
"""The most numbers that a pass handles at once at a node."""
WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError, MemoryError)
UNREADABLE = (*WRONG, OSError, EOFError, zlib.error, np.linalg.LinAlgError, Rejected)
"""The exceptions that reading or replaying a file may raise if it is not a valid certificate."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the checker found about a certificate."""

    accepted: bool
    reason: str
    """why it is rejected; empty if it is accepted"""
    margin: float
    """the lower end of the margin that was proved; −inf if there is none"""
    statement: str
    """what an accepted certificate proves, and on what assumptions; empty if it is rejected"""
    seconds: float
    """the time of the check"""
    claim: Claim | None = None
    """the claim that is proved, in numbers and in words; None if it is rejected"""

    @classmethod
    def rejected(cls, reason: str, margin: float = float("-inf"), seconds: float = 0.0) -> Finding:
        """The finding that a certificate is not accepted, and why."""
        return cls(accepted=False, reason=reason, margin=margin, statement="", seconds=seconds)


def check(source: Path | bytes | File, model: Path | None = None, seconds: float = SECONDS) -> Finding:
    """Replay a certificate; with a model file, the identity of the model (model.py) must be the one it names.

    `seconds`: the time limit; a certificate that takes longer is rejected. The clock is read between passes and before
    the box of each node, so that the check may take as much longer as one of these takes.
    """
    begin = time.perf_counter()
    margin, statement, claimed = float("-inf"), "", None
    try:
        with np.errstate(all="ignore"):
            if not (np.full(64, 5e-324) * 1.0 > 0).all():
                raise Rejected(
                    "this process flushes subnormal numbers to zero, so that its arithmetic is not that of IEEE 754; "
                    "run the check in another process"
                )
            if not seconds > 0:
                raise Rejected(f"the time limit is {seconds} seconds; it must be above 0")
            file = source if isinstance(source, File) else read(source)
            if model is not None and identity_of_file(model) != file.header["model"]["sha256"]:
                raise Rejected("the certificate is for another model: the SHA-256 of the file is not the one it names")
            statement = OLDER_STATEMENT if file.header["format"] in OLDER else STATEMENT
            if file.header["statement"] != statement:
                raise Rejected("the certificate's statement is not the one that this checker proves")
            margin = replay(file, time.monotonic() + seconds)
            claimed = claim(file)
        reason = "" if margin > 0 else f"the bound that was proved is not positive: margin {margin:.3g}"
    except UNREADABLE as error:
        reason = why(error)
    took = time.perf_counter() - begin
    if reason:
        return Finding.rejected(reason, margin, took)
    return Finding(accepted=True, reason="", margin=margin, statement=statement, seconds=took, claim=claimed)


def why(error: Exception) -> str:
    """Why a certificate is rejected whose check raised this error."""
    return (
        str(error)
        if isinstance(error, Rejected)
        else f"the certificate makes no sense: {type(error).__name__}: {error}"
    )


def replay(file: File, ends: float = float("inf")) -> float:
    """The margin: the least over all sets and cases of the best bound that was proved.

    `ends`: when the check must end, on the clock of time.monotonic.
    """
    nodes, spent = network(file), [0]
    return min(_part(nodes, part, file, spent, ends) for part in file.header["parts"])


def _part(nodes: list[CheckerNode], part: dict[str, Any], file: File, spent: list[int], ends: float) -> float:
    """The margin that one part of the certificate, a set of inputs with its steps and its property, proves."""
    given = read_set(part, file, nodes[0].shape)
    known = Known(nodes, given.lower, given.upper, spent, ends, given)
    for number, names in part["lines"].items():
        shape = nodes[int(number)].shape
        shapes = [(2, *shape) if k in (1, 3, 5, 6) else shape for k in range(7)]
        known.lines[int(number)] = tuple(file.numbers(n, s) for n, s in zip(names, shapes, strict=True))
    for step in part["steps"]:
        _step(known, step, file)
    known.reach(len(nodes) - 1)
    return _property(known, part, file)


def _step(known: Known, step: dict[str, Any], file: File) -> None:
    """Prove one step: the range that is proved here must lie inside the claimed one, which is known from then on."""
    kind = checked_word(step["kind"], KINDS)
    if kind == "forward":
        if file.header["format"] == OLDER[0]:
            raise Rejected(f"a forward proof in a file of the format {file.header['format']}")
        known.forward = propagation.run(known, Given(step, file, known.lines))
        return
    number = checked_index(step["node"], len(known.nodes))
    target = known.nodes[number].inputs[0] if kind == "centred" else number
    shape = known.nodes[target].shape
    known.reach(target)
    old, weights = known.boxes[target], None
    claimed = ProvedInterval(*(file.numbers(step[end], shape) for end in ("lower", "upper")))
    if kind == "zonotope":
        known.zonotopes[target] = zonotope(known, target)
        box = known.zonotopes[target].box().meet(old)
    elif kind == "centred":
        weights = file.numbers(step["weights"], shape)
        box = box_by_pass(known, target, np.arange(claimed.lo.size), checked_word(step["rule"], RULES), weights)
        known.centred[number] = (weights, claimed)
    else:
        entries = file.array(step["entries"], "i").ravel()
        box = box_by_pass(known, target, entries, checked_word(step["rule"], RULES))
    if not ((box.lo >= claimed.lo) & (box.hi <= claimed.hi)).all():
        raise Rejected(f"node {target}: the claimed box ({kind}) does not contain the range that was proved")
    if weights is None:
        known.boxes[target] = claimed.meet(old)
    known.forget(target)


def bounds(known: Known, number: int, A: Array, options: PassOptions) -> Array:
    """Lower bounds of Σ A·node over the set, (S, *shape) → (S,).

    Objectives are handled in batches, unless parameters were chosen for each of them.
    """
    size = len(A) if options.chosen else at_once(known, number)
    return np.concatenate([Pass(known, number, A[i : i + size], options).bound() for i in range(0, len(A), size)])


def by_form(known: Known, A: Array) -> Array:
    """Lower bounds of Σ A·output over the set, (S, *shape) → (S,), by the form that a forward proof gave."""
    if known.forward is None:
        raise Rejected("a bound by the form of the output, without a forward proof of it")
    known.charge(propagation.work(known.forward, len(A)))
    return propagation.lowest(known.forward, A)


def behind_norm(known: Known, A: Array, limits: Array) -> Array:
    """The same by the form of what the last norm reads, for bounds that need not be far above `limits` (S,)."""
    if known.forward is None:
        raise Rejected("a bound behind the last norm, without a forward proof")
    return last_norm.lowest(known, A, limits)


def at_once(known: Known, number: int) -> int:
    """How many objectives on a node are handled in one batch."""
    return max(1, WORK // max(known.work(k) for k in range(number + 1)))


def units(known: Known, number: int, entries: NDArray[Any]) -> Array:
    """The objectives that select single entries of a node: (S,) indices → (S, *shape)."""
    shape = known.nodes[number].shape
    objectives = np.zeros((len(entries), int(np.prod(shape))))
    objectives[np.arange(len(entries)), entries] = 1
    return objectives.reshape(-1, *shape)


def box_by_pass(
    known: Known, number: int, entries: NDArray[Any], rule: str, weights: Array | None = None
) -> ProvedInterval:
    """The box of a node, narrowed by a pass for each of the entries (flat indices); same shape as the node.

    With weights ω, a box of s − ω·s instead, s the rows of the node along its last dimension.
    """
    old = (
        known.boxes[number] if weights is None else ProvedInterval(np.full(known.nodes[number].shape, -np.inf), np.inf)
    )
    lo, hi = (np.array(np.broadcast_to(end, old.lo.shape)).ravel() for end in (old.lo, old.hi))
    size = at_once(known, number)
    for i in range(0, len(entries), size):
        part = entries[i : i + size]
        A, lost = units(known, number, part), np.zeros(len(part))
        if weights is not None:  # the coefficients 1 − ω are rounded
            A = A - A.sum(-1, keepdims=True) * weights
            lost = rounding(2) * (np.abs(A) * known.boxes[number].size).reshape(len(A), -1).sum(-1) * MORE
        lo[part] = np.fmax(lo[part], bounds(known, number, A, PassOptions(rule=rule)) - lost)
        hi[part] = np.fmin(hi[part], lost - bounds(known, number, -A, PassOptions(rule=rule)))
    return ProvedInterval(lo.reshape(old.lo.shape), hi.reshape(old.lo.shape))


def zonotope(known: Known, number: int) -> ProvedZonotope:
    """The zonotope of a node, by a parallel pass for each of its entries."""
    shape = known.nodes[number].shape
    count, size = int(np.prod(shape)), at_once(known, number)
    room = MOST_COLUMNS // count - known.given.width
    if room < 0:
        raise Rejected(f"node {number}: its zonotope is too large")
    parts = [units(known, number, np.arange(i, min(i + size, count))) for i in range(0, count, size)]
    return joined([Pass(known, number, A, PassOptions(parallel=True, columns=room)) for A in parts], shape)


def _property(known: Known, part: dict[str, Any], file: File) -> float:
    """The least margin of the cases of a property, each proved by a pass over the whole box or by a tree."""
    shape, last = known.nodes[-1].shape, len(known.nodes) - 1
    rows, limits = [], []
    for case, (C, d, _vacuous) in zip(part["property"], cases_of(part, file, int(np.prod(shape))), strict=True):
        omega = file.numbers(case["weights"])
        rows.append((omega @ C).reshape(shape))
        size = known.boxes[last].size.ravel()
        error = rounding(len(d)) * ((omega @ np.abs(C)) @ size) * MORE + LOST * size.sum()
        limits.append(float((ProvedInterval(omega) * d).sum().hi + error))
    margins = np.full(len(rows), -np.inf)
    for proof in part["proofs"]:
        which = [checked_index(i, len(rows)) for i in proof["cases"]]
        bound = _tree(
            known, np.stack([rows[i] for i in which]), np.array([limits[i] for i in which]), proof["tree"], file
        )
        for k, i in enumerate(which):
            margins[i] = np.fmax(margins[i], np.nextafter(bound[k] - limits[i], -np.inf))
    return float(margins.min())


def _tree(known: Known, A: Array, limits: Array, tree: list[dict[str, Any]], file: File) -> Array:
    """The least bound of the objectives A (S, *output shape) over the leaves of a tree, (S,); limits: what it is for.

    An entry of the tree is a leaf or a branching; a branching must come before its two branches.
    """
    best, open_, seen = np.full(len(A), np.inf), [(0, known)], 0
    while open_:
        (number, branch), seen = open_.pop(), seen + 1
        if seen > len(tree):
            raise Rejected("an entry of a tree is the branch of several entries")
        entry = tree[number]
        if "split" in entry:
            if not all(number < checked_index(entry[side], len(tree)) for side in ("left", "right")):
                raise Rejected("a branching does not come before its branches")
            open_ += [(entry[side], branch.part(entry["split"], side == "left")) for side in ("left", "right")]
            continue
        if "forward" in entry:
            best = np.minimum(best, by_form(branch, A))
            continue
        if "last_norm" in entry:
            best = np.minimum(best, behind_norm(branch, A, limits))
            continue
        pieces, chosen = int(entry["pieces"]), {}
        for k, arrays in entry["chosen"].items():
            shapes = wanted(known, int(k), len(A), pieces)
            chosen[int(k)] = {name: file.numbers(array, shapes[name]) for name, array in arrays.items()}
        options = PassOptions(rule=checked_word(entry["rule"], RULES), chosen=chosen)
        best = np.minimum(best, bounds(branch, len(known.nodes) - 1, A, options))
    return best
