"""Trees: every branching cuts the range of one number into x ≤ t and x ≥ t, so that the leaves cover the whole set.

Invariant: the bounds of a tree are lower bounds over the whole set: each leaf's holds for every input that takes all
branches on the way to it, every input takes the branches to some leaf, and every leaf is bounded.

A tree is written in one of two ways. As a list of entries (JSON), each a leaf or a branching that names its two
branches: a leaf of its own is bounded alone. Or packed, as arrays with one number for each entry in preorder, a
branching, then its left and then its right branch: so there is no way to leave one out. The leaves of a packed tree
share what they have in common, and are bounded in batches: a cut of a number that ReLUs alone read changes nothing but
the lines of these (cuts.py). A branch at any other number is bounded over its own boxes (`Known.part`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import fitted
from .cuts import Cut, Cuts, checked_cut, gathered
from .file import WITHOUT_RESTS, File, Rejected, checked_index, checked_word
from .network import LOOK, Known
from .passes import RULES, Pass, PassOptions, wanted
from .rounding import Array

MOST_PIECES = 64
"""The most pieces of the range of lse(s)."""


class LeafParameter(NamedTuple):
    """The values of one parameter of a node: those of leaf k are values[which[k]]."""

    values: Array
    """(U, ...)"""
    which: NDArray[np.int64]
    """(leaves,)"""


class OuterMultipliers(NamedTuple):
    """Multipliers of some entries of a node in every leaf; of an entry that occurs twice the last counts."""

    entries: NDArray[np.int64]
    """(P,)"""
    held: Array
    """(leaves, P)"""


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedTree:
    """A packed tree, as a file has it, but for what `Leaves` finds out."""

    splits: list[tuple[int, int, float, bool]]
    """of each entry in preorder: node, entry in it, point, and whether it is a σ; the node of a leaf is −1"""
    rule: str
    chosen: dict[int, dict[str, LeafParameter]]
    """node → parameters of its relaxation by name"""
    held: Array
    """for each leaf in turn, a multiplier of every cut on the way to it"""
    fitted: dict[int, Array]
    """attention → the functionals that the ellipsoids of its values are fitted to"""
    outer: dict[int, OuterMultipliers] = field(default_factory=dict)
    """node → multipliers of entries that were cut on the way to the set of this tree"""

    @property
    def leaves(self) -> int:
        """How many leaves there are."""
        return sum(number < 0 for number, _, _, _ in self.splits)


@dataclass(frozen=True, eq=False)
class TreeLeaf:
    """A leaf of a packed tree."""

    number: int
    """counted in preorder"""
    known: Known
    """what is known on its branch, apart from cuts of numbers that ReLUs alone read"""
    cuts: dict[tuple[int, int], tuple[float, float, float]]
    """these: node and entry → the range that is left, and its multiplier"""
    held: dict[int, Array]
    """node → multipliers of the other cuts, (*shape)"""

    def part(self) -> Known:
        """What is known on its branch, all cuts on the way counted."""
        found = self.known
        for (number, entry), (lo, hi, _) in self.cuts.items():
            box = self.known.boxes[number]
            if hi < box.hi.flat[entry]:
                found = found.part((number, entry, hi, False), left=True)
            if lo > box.lo.flat[entry]:
                found = found.part((number, entry, lo, False), left=False)
        return found


def read_packed(tree: dict[str, Any], known: Known, S: int, file: File) -> PackedTree:
    """The packed tree of a proof of S objectives; rejected unless all of its arrays fit each other and the network."""
    numbers, entries = (file.array(tree[name], "i") for name in ("node", "entry"))
    count = len(numbers)
    points, inner = file.numbers(tree["point"], (count,)), file.array(tree["inner"], "b", (count,))
    if numbers.ndim != 1 or entries.shape != numbers.shape or not count:
        raise Rejected("the arrays of a tree do not have one number for each of its entries")
    columns = (x.tolist() for x in (numbers, entries, points, inner))
    splits: list[tuple[int, int, float, bool]] = list(zip(*columns, strict=True))
    leaves, pieces = int((numbers < 0).sum()), checked_index(tree["pieces"], MOST_PIECES + 1)
    chosen: dict[int, dict[str, LeafParameter]] = {}
    for key, of in tree["chosen"].items():
        number = checked_index(int(key), len(known.nodes))
        shapes = wanted(known, number, S, pieces)
        for name, given in of.items():
            which = file.array(given["which"], "i", (leaves,))
            values = file.numbers(given["values"])
            if values.shape[1:] != shapes[name] or set(which.tolist()) != set(range(len(values))):
                raise Rejected(f"the parameters {name[:80]!r} of node {number} do not fit the leaves of their tree")
            chosen.setdefault(number, {})[name] = LeafParameter(values, which)
    to_fit = {}
    for key, name in tree["fitted"].items():
        number = checked_index(int(key), len(known.nodes))
        if known.nodes[number].op != "Attention" or known.nodes[number].inputs[1] not in known.zonotopes:
            raise Rejected(f"fitted ellipsoids at node {number}, which is no attention whose values have a zonotope")
        to_fit[number] = file.numbers(name, known.nodes[number].shape)
    return PackedTree(
        splits=splits,
        rule=checked_word(tree["rule"], RULES),
        chosen=chosen,
        held=file.numbers(tree["held"]).ravel(),
        fitted=to_fit,
        outer={} if "outer" not in tree else _outer(tree["outer"], known, leaves, file),
    )


def _outer(names: dict[str, Any], known: Known, leaves: int, file: File) -> dict[int, OuterMultipliers]:
    """The multipliers of entries that were cut before, by node; rejected unless they are entries of the network."""
    if file.header["format"] in WITHOUT_RESTS:
        raise Rejected(f"multipliers of outer cuts in a file of the format {file.header['format']}")
    numbers, entries = (file.array(names[name], "i").astype(np.int64) for name in ("node", "entry"))
    held = file.numbers(names["held"], (leaves, len(numbers)))
    if numbers.ndim != 1 or entries.shape != numbers.shape:
        raise Rejected("the multipliers of outer cuts do not have one node and one entry each")
    found = {}
    for number in sorted(set(numbers.tolist())):
        mine = entries[numbers == number]
        size = math.prod(known.nodes[checked_index(number, len(known.nodes))].shape)
        if not ((mine >= 0) & (mine < size)).all():
            raise Rejected(f"the multiplier of an outer cut at an entry that node {number} does not have")
        found[number] = OuterMultipliers(mine, held[:, numbers == number])
    return found


def leaves_of(tree: PackedTree, known: Known) -> Iterator[TreeLeaf]:
    """The leaves of a packed tree, in preorder; rejected at the end unless every entry has its place in the tree."""
    sizes = [math.prod(node.shape) for node in known.nodes]
    alone = {k for k in range(1, len(sizes)) if _is_for_relus(known, k)}
    path: list[tuple[Cut, Known]] = []  # each with what is known before it
    at, used, number = 0, 0, 0
    here = known
    while at < len(tree.splits):
        split = tree.splits[at]
        at += 1
        if split[0] >= 0:
            path.append((checked_cut(*split, True, sizes), here))
        else:
            known.charge(LOOK + len(path))
            held = tree.held[used : used + len(path)]
            if len(held) < len(path):
                raise Rejected("a tree has fewer multipliers than cuts")
            yield _leaf(number, here, [cut for cut, _ in path], held.tolist(), alone)
            number, used = number + 1, used + len(path)
            while path and not path[-1][0].left:
                path.pop()
            if not path:
                break
            path[-1] = (replace(path[-1][0], left=False), path[-1][1])
        cut, before = path[-1]
        here = before if cut.number in alone and not cut.inner else before.part(cut.split, cut.left)
    if path or at != len(tree.splits) or used != len(tree.held):
        raise Rejected("a tree ends before all of its branches do, or has more entries or multipliers than branches")


def _is_for_relus(known: Known, number: int) -> bool:
    """Whether a node is read by ReLUs alone."""
    users = [node.op for node in known.nodes if number in node.inputs]
    return bool(users) and all(op == "Relu" for op in users)


def _leaf(number: int, known: Known, path: list[Cut], held: list[float], alone: set[int]) -> TreeLeaf:
    """The leaf at the end of a path of cuts, with their multipliers."""
    cuts: dict[tuple[int, int], tuple[float, float, float]] = {}
    others: dict[int, Array] = {}
    for cut, h in zip(path, held, strict=True):
        if cut.number in alone and not cut.inner:
            box = known.boxes[cut.number]
            whole = float(box.lo.flat[cut.entry]), float(box.hi.flat[cut.entry]), 0.0
            lo, hi, before = cuts.get((cut.number, cut.entry), whole)
            cuts[cut.number, cut.entry] = (*cut.within(lo, hi), before + h)
        elif not cut.inner:
            others.setdefault(cut.number, np.zeros(known.nodes[cut.number].shape)).flat[cut.entry] += h
        elif h != 0:
            raise Rejected("a multiplier of a cut of a σ")
    return TreeLeaf(number, known, cuts, others)


def batches_of(tree: PackedTree, known: Known, most: int, only: set[int] | None = None) -> Iterator[list[TreeLeaf]]:
    """The leaves, or only those of some numbers, in batches that share what is known, of at most `most` leaves."""
    batch: list[TreeLeaf] = []
    for leaf in leaves_of(tree, known):
        if only is not None and leaf.number not in only:
            continue
        if batch and (leaf.known is not batch[0].known or len(batch) >= most):
            yield batch
            batch = []
        batch.append(leaf)
    if batch:
        yield batch


class TreeBounds:
    """How the leaves of one packed tree are bounded, for objectives A (S, *output shape)."""

    def __init__(self, tree: PackedTree, known: Known, A: Array) -> None:
        self.tree, self.A = tree, A
        self.fitted: dict[int, fitted.CheckedFits] = {}
        for number, eta in tree.fitted.items():
            zonotope = known.zonotopes[known.nodes[number].inputs[1]]
            known.charge(eta.size * zonotope.columns.size // max(1, math.prod(zonotope.columns.shape[:-3])))
            self.fitted[number] = fitted.fitted(zonotope, eta)

    def of(self, batch: list[TreeLeaf]) -> Array:
        """Lower bounds over each leaf of a batch: (leaves, S)."""
        return self.passed(batch).bound().reshape(len(batch), len(self.A))

    def passed(self, batch: list[TreeLeaf]) -> Pass:
        """The pass over the leaves of a batch, whose objectives are those of each leaf in turn."""
        known, S, places = batch[0].known, len(self.A), [leaf.number for leaf in batch]
        chosen = {
            number: {name: _rows(each, places) for name, each in of.items()} for number, of in self.tree.chosen.items()
        }
        for number in {number for leaf in batch for number in leaf.held}:
            shape = known.nodes[number].shape
            each = np.stack([leaf.held.get(number, np.zeros(shape)) for leaf in batch])
            mine = chosen.setdefault(number, {})
            mine["held"] = np.repeat(each, S, 0) + mine.get("held", 0.0)
        for number, (entries, held) in self.tree.outer.items():
            shape, mine = known.nodes[number].shape, chosen.setdefault(number, {})
            each = np.zeros((len(batch), math.prod(shape)))
            each[:, entries] = held[places]
            mine["held"] = np.repeat(each.reshape(len(batch), *shape), S, 0) + mine.get("held", 0.0)
        cuts: dict[int, Cuts] = {n: cut.each(S) for n, cut in gathered([leaf.cuts for leaf in batch]).items()}
        options = PassOptions(rule=self.tree.rule, chosen=chosen, cuts=cuts, fitted=self.fitted, alone=True)
        objectives = np.tile(self.A, (len(batch), *[1] * (self.A.ndim - 1)))
        return Pass(known, len(known.nodes) - 1, objectives, options)


def passed_alone(tree: PackedTree, known: Known, A: Array) -> Pass:
    """The pass of the objectives A (S, *output shape) with the parameters of a tree that is one leaf."""
    leaves = list(leaves_of(tree, known)) if len(tree.splits) == 1 else []
    if len(leaves) != 1:
        raise Rejected("a tree that cuts the set where one leaf alone is needed")
    return TreeBounds(tree, known, A).passed(leaves)


def _rows(parameter: LeafParameter, places: list[int]) -> Array:
    """The values of some leaves, (leaves · S, ...); if they are the same, the same numbers in memory."""
    which = parameter.which[places]
    if (which == which[0]).all() and parameter.values.shape[1] == 1:
        one = parameter.values[which[0]]
        return np.broadcast_to(one, (len(places), *one.shape[1:]))
    values = parameter.values[which]
    return values.reshape(-1, *values.shape[2:])
