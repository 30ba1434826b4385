"""The replay: every step of a certificate is proved again; the certificate is accepted if its margin is positive.

For every set of inputs there is a list of steps. Each step is a claim about one node for every input of the set, and
follows from the steps before it: a box (by a backward pass per entry), a zonotope (by a parallel pass), or a box of the
scores minus their weighted means. A step of kind "forward" claims nothing: it proves boxes of all nodes, and a form of
the output, from the input on (forward/propagation.py). The property comes last. It says that no input satisfies all
rows C y ≤ d of any of its cases. A case is excluded by weights ω ≥ 0 and a bound ω·(C y − d) > 0, by a backward pass,
by the form of the output or by that of what the last norm reads: over the whole set, or over every leaf of a tree
(trees.py). Sets of inputs, batches of objectives and leaves may be shared among several processes (jobs.py).
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .claim import Claim, cases_of, claim
from .file import (
    BOXES,
    OLDER,
    UNPACKED,
    WITHOUT_RESTS,
    WITHOUT_ROUNDS,
    File,
    Path,
    Rejected,
    checked_index,
    checked_word,
    read,
)
from .forward import last_norm, propagation
from .forward.choices import Given
from .images import centred_product, image
from .input_sets import read_set
from .jobs import UNREADABLE, Jobs, why
from .model import identity_of_file
from .narrowing import half_space, narrower, needed
from .network import LOOK, CheckerNode, Known, network
from .passes import LOST, RULES, Pass, PassOptions, wanted
from .ranges import at_once, box_by_pass, zonotope
from .rounding import MORE, Array, ProvedInterval, rounding
from .trees import MOST_PIECES, PackedTree, TreeBounds, TreeLeaf, batches_of, leaves_of, passed_alone, read_packed
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
"""What a certificate of one of the oldest formats proves: its parts are boxes."""
KINDS = ("box", "zonotope", "image", "centred", "forward")
"""What a step may prove: of a node, or, the last, of all."""
BY_FACTORS = "factors"
"""The rule of a centred box that is made from the zonotopes of queries and keys (images.py)."""
SECONDS = 3600.0
"""The default time limit of a check."""
WINDOW = 256
"""How many batches of leaves are known at a time."""


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


def check(
    source: Path | bytes | File, model: Path | None = None, seconds: float = SECONDS, *, jobs: int = 1
) -> Finding:
    """Replay a certificate; with a model file, the identity of the model (model.py) must be the one it names.

    `seconds`: the time limit; a certificate that takes longer is rejected. The clock is read between passes and before
    the box of each node, so that the check may take as much longer as one of these takes. `jobs`: how many processes
    share the work, where the system can fork; the answer is the same, and each should have a thread of its own.
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
            if not seconds > 0 or jobs < 1:
                raise Rejected(f"the time limit is {seconds} seconds, and there are {jobs} jobs; both must be above 0")
            file = source if isinstance(source, File) else read(source)
            if model is not None and identity_of_file(model) != file.header["model"]["sha256"]:
                raise Rejected("the certificate is for another model: the SHA-256 of the file is not the one it names")
            statement = OLDER_STATEMENT if file.header["format"] in BOXES else STATEMENT
            if file.header["statement"] != statement:
                raise Rejected("the certificate's statement is not the one that this checker proves")
            margin = replay(file, time.monotonic() + seconds, Jobs(jobs))
            claimed = claim(file)
        reason = "" if margin > 0 else f"the bound that was proved is not positive: margin {margin:.3g}"
    except UNREADABLE as error:
        reason = why(error)
    took = time.perf_counter() - begin
    if reason:
        return Finding.rejected(reason, margin, took)
    return Finding(accepted=True, reason="", margin=margin, statement=statement, seconds=took, claim=claimed)


def replay(file: File, ends: float = float("inf"), jobs: Jobs | None = None) -> float:
    """The margin: the least over all sets and cases of the best bound that was proved.

    `ends`: when the check must end, on the clock of time.monotonic. With as many sets as jobs each job takes whole
    sets; with fewer all jobs share the work of one set after the other.
    """
    nodes, parts, spent, jobs = network(file), list(file.header["parts"]), [0], jobs or Jobs()
    apart = len(parts) >= jobs.count

    def margin(k: int) -> Array:
        return np.array([_part(nodes, parts[k], file, spent, ends, Jobs() if apart else jobs)])

    found = jobs.run(margin, len(parts), spent) if apart else [margin(k) for k in range(len(parts))]
    return float(min(each.item() for each in found))


# Six: a part of a file, and what all parts share.
def _part(
    nodes: list[CheckerNode], part: dict[str, Any], file: File, spent: list[int], ends: float, jobs: Jobs
) -> float:
    """The margin that one part of the certificate, a set of inputs with its steps and its property, proves."""
    given = read_set(part, file, nodes[0].shape)
    known = Known(nodes, given.lower, given.upper, spent, ends, given, jobs)
    _prove_steps(known, part, file)
    return _property(known, part, file)


def _ends_of(part: dict[str, Any], file: File, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The box of a round, (*shape) each; it is not empty, or it is rejected."""
    lower, upper = (file.numbers(part[end], shape) for end in ("lower", "upper"))
    if not (lower <= upper).all():
        raise Rejected("the box of a round is empty: a lower end is above its upper end")
    return lower, upper


def _prove_steps(known: Known, part: dict[str, Any], file: File) -> None:
    """Prove the steps of a part or of a round over its set, and boxes of all nodes."""
    nodes = known.nodes
    for number, names in part["lines"].items():
        shape = nodes[int(number)].shape
        shapes = [(2, *shape) if k in (1, 3, 5, 6) else shape for k in range(7)]
        known.lines[int(number)] = tuple(file.numbers(n, s) for n, s in zip(names, shapes, strict=True))
    for step in part["steps"]:
        _step(known, step, file)
    known.reach(len(nodes) - 1)


def _step(known: Known, step: dict[str, Any], file: File) -> None:
    """Prove one step: the range that is proved here must lie inside the claimed one, which is known from then on."""
    kind = checked_word(step["kind"], KINDS)
    if kind == "forward":
        if file.header["format"] == BOXES[0]:
            raise Rejected(f"a forward proof in a file of the format {file.header['format']}")
        known.forward = propagation.run(known, Given(step, file, known.lines))
        return
    number = checked_index(step["node"], len(known.nodes))
    target = known.nodes[number].inputs[0] if kind == "centred" else number
    shape = known.nodes[target].shape
    known.reach(target)
    old, weights = known.boxes[target], None
    claimed = _claimed(step, shape, file)
    if kind in ("zonotope", "image"):
        known.zonotopes[target] = zonotope(known, target) if kind == "zonotope" else _image(known, step, target, file)
        box = known.zonotopes[target].box().meet(old)
    elif kind == "centred":
        weights = file.numbers(step["weights"], shape)
        box = _centred(known, target, weights, step["rule"], file)
        known.centred[number] = (weights, claimed or box)
    else:
        entries = file.array(step["entries"], "i")
        if entries.ndim != 1:
            raise Rejected(f"node {target}: the entries of a step are not a list")
        chosen = _chosen_of_step(known, step, len(entries), file)
        box = box_by_pass(known, target, entries, checked_word(step["rule"], RULES), chosen=chosen)
    if claimed is not None and not ((box.lo >= claimed.lo) & (box.hi <= claimed.hi)).all():
        raise Rejected(f"node {target}: the claimed box ({kind}) does not contain the range that was proved")
    if weights is None:
        known.boxes[target] = box.meet(old).ordered() if claimed is None else claimed.meet(old)
    known.forget(target)


def _claimed(step: dict[str, Any], shape: tuple[int, ...], file: File) -> ProvedInterval | None:
    """The range that a step claims; None if it claims none: then what is proved is what is known."""
    if "lower" not in step and "upper" not in step:
        if file.header["format"] in WITHOUT_RESTS:
            raise Rejected(f"a step without a claim in a file of the format {file.header['format']}")
        return None
    return ProvedInterval(*(file.numbers(step[end], shape) for end in ("lower", "upper")))


def _chosen_of_step(known: Known, step: dict[str, Any], entries: int, file: File) -> dict[int, dict[str, Array]]:
    """The parameters that a step names for the passes of its entries: (2 · entries, ...) each, lower ends first."""
    if "chosen" not in step:
        return {}
    if file.header["format"] in UNPACKED:
        raise Rejected(f"a box with chosen parameters in a file of the format {file.header['format']}")
    return _chosen(known, step["chosen"], 2 * entries, checked_index(step["pieces"], MOST_PIECES + 1), file)


def _chosen(
    known: Known, names: dict[str, dict[str, Any]], S: int, pieces: int, file: File
) -> dict[int, dict[str, Array]]:
    """Parameters by node and name, for a pass of S objectives."""
    chosen = {}
    for k, arrays in names.items():
        shapes = wanted(known, int(k), S, pieces)
        chosen[int(k)] = {name: file.numbers(array, shapes[name]) for name, array in arrays.items()}
    return chosen


def bounds(known: Known, number: int, A: Array, options: PassOptions) -> Array:
    """Lower bounds of Σ A·node over the set, (S, *shape) → (S,).

    Objectives are handled in batches, unless parameters were chosen for each of them.
    """
    size = len(A) if options.chosen else at_once(known, number)

    def some(k: int) -> Array:
        return Pass(known, number, A[k * size : (k + 1) * size], options).bound()

    return np.concatenate([np.zeros(0), *known.jobs.run(some, -(-len(A) // size) if size else 0, known.spent)])


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


def _image(known: Known, step: dict[str, Any], target: int, file: File) -> ProvedZonotope:
    """The zonotope that a step makes from that of another node."""
    if file.header["format"] in OLDER:
        raise Rejected(f"the image of a zonotope in a file of the format {file.header['format']}")
    return image(known, target, step["of"])


def _centred(known: Known, target: int, weights: Array, rule: object, file: File) -> ProvedInterval:
    """The box of scores less their means, by passes or from the zonotopes of queries and keys."""
    if rule != BY_FACTORS:
        return box_by_pass(known, target, np.arange(weights.size), checked_word(rule, RULES), weights)
    if file.header["format"] in OLDER:
        raise Rejected(f"scores centred by their factors in a file of the format {file.header['format']}")
    return centred_product(known, target, weights)


def _property(known: Known, part: dict[str, Any], file: File) -> float:
    """The least margin of the cases of a property, each proved by a pass over the whole box or by a tree."""
    shape = known.nodes[-1].shape
    rows, limits = [], []
    for case, (C, d, _vacuous) in zip(part["property"], cases_of(part, file, int(np.prod(shape))), strict=True):
        omega = file.numbers(case["weights"])
        rows.append((omega @ C).reshape(shape))
        limits.append(limit_of(known, C, d, omega))
    margins = np.full(len(rows), -np.inf)
    for proof in part["proofs"]:
        which = [checked_index(i, len(rows)) for i in proof["cases"]]
        A, mine = np.stack([rows[i] for i in which]), np.array([limits[i] for i in which])
        over, most = (known, math.inf) if "rounds" not in proof else _narrowed(known, A, proof, file)
        if "rests" in proof:
            bound = _with_rests(over, A, proof, _level(proof, file), file)
        elif isinstance(proof["tree"], dict):
            if file.header["format"] in UNPACKED:
                raise Rejected(f"a packed tree in a file of the format {file.header['format']}")
            bound = leaf_bounds(over, A, read_packed(proof["tree"], over, len(A), file)).min(0)
        else:
            bound = _tree(over, A, mine, proof["tree"], file)
        bound = np.minimum(bound, most)
        for k, i in enumerate(which):
            margins[i] = np.fmax(margins[i], np.nextafter(bound[k] - limits[i], -np.inf))
    return float(margins.min())


def _narrowed(known: Known, A: Array, proof: dict[str, Any], file: File) -> tuple[Known, float]:
    """What is known over what the rounds of a proof leave of the set, and the level that all else is above.

    Every round cuts the set by the linear bound of a pass, and has a box around what is left, and steps over that.
    """
    if file.header["format"] in WITHOUT_ROUNDS:
        raise Rejected(f"a proof in rounds in a file of the format {file.header['format']}")
    level = _level(proof, file)
    for entry in proof["rounds"]:
        known = _round(known, A, entry, level, file)
    return known, level


def _level(proof: dict[str, Any], file: File) -> float:
    """What the objective of a proof is above wherever a round leaves an input out."""
    return float(file.numbers(proof["level"], (1,))[0])


def _round(known: Known, A: Array, entry: dict[str, Any], level: float, file: File) -> Known:
    """What is known over what one round leaves: of a claimed box, or, without a claim, of the box that is needed.

    Without a claim all that is known before is known there too, and with it the cuts on the way.
    """
    known.charge(LOOK * len(known.nodes))
    found = passed_alone(read_packed(entry["cut"], known, len(A), file), known, A)
    half = half_space(known.given, found.linear_bound(), level)
    if "lower" in entry or "upper" in entry:
        given = narrower(known.given, half, *_ends_of(entry, file, known.nodes[0].shape))
        inner = Known(known.nodes, given.lower, given.upper, known.spent, known.ends, given, known.jobs)
    elif file.header["format"] in WITHOUT_RESTS:
        raise Rejected(f"a round without a box in a file of the format {file.header['format']}")
    else:
        box = needed(known.given, half)
        inner = known.over(narrower(known.given, half, box.lo, box.hi))
    _prove_steps(inner, entry, file)
    return inner


def _with_rests(known: Known, A: Array, proof: dict[str, Any], level: float, file: File) -> Array:
    """A bound of one objective over all leaves of a tree, (1,): those in `rests` have rounds and trees of their own.

    It is never above the level, which the objective is above wherever a round leaves an input out.
    """
    if file.header["format"] in WITHOUT_RESTS:
        raise Rejected(f"rests of leaves in a file of the format {file.header['format']}")
    tree, rests = read_packed(proof["tree"], known, len(A), file), proof["rests"]
    places = [checked_index(rest["leaf"], tree.leaves) for rest in rests]
    if len(A) != 1 or len(set(places)) != len(places):
        raise Rejected("rests of the leaves of several objectives, or two of one leaf")
    bounds = leaf_bounds(known, A, tree, set(range(tree.leaves)) - set(places))[:, 0]
    leaves = {leaf.number: leaf for leaf in leaves_of(tree, known) if leaf.number in places}
    apart = len(rests) >= known.jobs.count

    def rest_bound(k: int) -> Array:
        over = copy.copy(leaves[places[k]].part())
        over.jobs = Jobs() if apart else known.jobs
        for entry in rests[k]["rounds"]:
            over = _round(over, A, entry, level, file)
        return _with_rests(over, A, rests[k], level, file)

    found = known.jobs.run(rest_bound, len(rests), known.spent) if apart else map(rest_bound, range(len(rests)))
    bounds[places] = [each.item() for each in found]
    if np.isnan(bounds).any():
        raise Rejected("a leaf of a tree has no bound")
    return np.asarray(np.minimum(bounds.min(keepdims=True), level))


def limit_of(known: Known, C: Array, d: Array, omega: Array) -> float:
    """What a bound of the objective ω·C, rounded, must be above to exclude the case C y ≤ d."""
    size = known.boxes[len(known.nodes) - 1].size.ravel()
    error = rounding(len(d)) * ((omega @ np.abs(C)) @ size) * MORE + LOST * size.sum()
    return float((ProvedInterval(omega) * d).sum().hi + error)


def leaf_bounds(known: Known, A: Array, tree: PackedTree, only: set[int] | None = None) -> Array:
    """Lower bounds of the objectives A (S, *output shape) over every leaf of a packed tree: (leaves, S).

    `only`: for whoever asks about some of the leaves, their numbers; the others have NaN.
    """
    made, found = TreeBounds(tree, known, A), np.full((tree.leaves, len(A)), np.nan)
    batches = batches_of(tree, known, max(1, at_once(known, len(known.nodes) - 1) // len(A)), only)
    while window := list(itertools.islice(batches, WINDOW)):
        results = known.jobs.run(functools.partial(_batch_bounds, made, window), len(window), known.spent)
        for batch, bound in zip(window, results, strict=True):
            found[[leaf.number for leaf in batch]] = bound
    return found


def _batch_bounds(made: TreeBounds, batches: list[list[TreeLeaf]], k: int) -> Array:
    return made.of(batches[k])


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
        chosen = _chosen(known, entry["chosen"], len(A), int(entry["pieces"]), file)
        options = PassOptions(rule=checked_word(entry["rule"], RULES), chosen=chosen)
        best = np.minimum(best, bounds(branch, len(known.nodes) - 1, A, options))
    return best
