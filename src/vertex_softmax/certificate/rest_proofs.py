"""Proofs of narrowed parts: the tree of a search whose parts were narrowed too, with the checker's own bounds.

Invariant: an entry that is returned says what was proved by the checker's functions, and the bound that comes with it
is what the checker finds: over all of the set that the entry begins with, the objective is above that bound or above
the level.

Nothing is searched again. Every linear bound of the search is made once more by the checker's pass, with the
parameters of the search; what it leaves is cut, and boxes are proved over that. The checker's boxes are a little wider
than those of the search. So where a leaf or a rest does not prove, its last bound cuts the set once more, as often as
that pays: what is left is small, and there little is lost. Only if that does not help, parameters are optimised anew,
and if that does not either, such a rest has a new tree.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vertex_softmax.bounds.ascent import Ascent, Beginning, Goal, ascend
from vertex_softmax.bounds.branch_and_bound import Search, inner_ranges
from vertex_softmax.bounds.choice import Choice
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.narrowing import USELESS
from vertex_softmax.bounds.record import Record, RestRecord
from vertex_softmax.bounds.splits import Split, part_boxes
from vertex_softmax.certificate.checker import proof
from vertex_softmax.certificate.checker.file import FORMAT, File
from vertex_softmax.certificate.checker.narrowing import HalfSpace, half_space, narrower, needed
from vertex_softmax.certificate.checker.passes import Pass
from vertex_softmax.certificate.checker.trees import PackedTree, leaves_of, passed_alone, read_packed
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.planting import Searched, preorder
from vertex_softmax.certificate.prove import ROUNDS, Prover
from vertex_softmax.foundation.tolerances import LEAF
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.cut_region import CutRegion

AGAIN = 12
"""How often a rest that does not prove is narrowed once more at most."""
FEW = 4
"""So many leaves that do not prove are narrowed each; where there are more, the search goes on from them first."""
GAIN = 0.3
"""If a round closes less than this share of what is missing, parameters are optimised anew."""
Arrays = dict[str, NDArray[Any]]


class Unproved(Exception):  # noqa: N818
    """A rest has no proof."""


class RestEntry(NamedTuple):
    """A rest, or a whole proof, in words of the header: `rounds`, `tree` and `rests`; and its bound."""

    header: dict[str, Any]
    bound: float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RestAim:
    """What is to be proved of one objective."""

    A: NDArray[np.float64]
    """(1, *output shape)"""
    level: float
    """the objective is above this at every input that is left out"""
    sure: float
    """bounds that are above this count as proved"""
    case: ForbiddenCase
    ascent: Ascent
    pieces: int
    search: Search | None
    """of a rest that does not prove; None: there is none"""
    prefix: str
    """of the names of arrays"""


class RestProofs:
    """Proves the rests of one objective, and keeps the arrays that their entries name."""

    def __init__(self, prover: Prover, searched: Searched, aim: RestAim) -> None:
        self.prover, self.aim = prover, aim
        self.own = dict(prover.planter.pairs(searched.question))
        """nodes of the search's graph → those of the prover's"""
        self.rules = Rules(attention=RowRule.AFFINE, pieces=aim.pieces, balls=False)
        self.plain = Searched(prover.proved().question.on_parts(), self.rules, Record(), {0: 0})
        self.arrays: Arrays = {}
        self.count = 0
        self.origins: dict[int, Record] = {}
        """by the id of a tree in words of the prover's graph: the search's own record of it, which may go on"""
        self.translated: list[Record] = []
        """these trees, so that their ids stay theirs"""

    def whole(self, record: RestRecord) -> RestEntry:
        """The proof over the whole set; raises Unproved if there is none."""
        return self._rest(self.prover, self._translated(record))

    def _rest(self, here: Prover, record: RestRecord) -> RestEntry:
        """The entry of a rest that begins with what `here` knows."""
        rounds: list[dict[str, Any]] = []
        for choice in record.cuts:
            tree, arrays, found = self._passed(here, record.splits, choice)
            bound = _number(found)
            if bound > self.aim.sure:
                return self._by_tree(rounds, tree, arrays, bound)
            here = self._cut(here, found, (tree, arrays), rounds) or here
        if record.tree is None:
            return self._closed(here, record.splits, record.last, rounds)
        return self._split(here, record, rounds)

    def _closed(
        self, here: Prover, splits: tuple[Split, ...], choice: Choice, rounds: list[dict[str, Any]]
    ) -> RestEntry:
        """The entry of a rest by one bound over what is left after some rounds, more of them if that is needed."""
        missing, optimised = math.inf, False
        for _ in range(AGAIN):
            tree, arrays, found = self._passed(here, splits, choice)
            bound = _number(found)
            if bound > self.aim.sure:
                return self._by_tree(rounds, tree, arrays, bound)
            now = self.aim.level - bound
            smaller = self._cut(here, found, (tree, arrays), rounds) if now < (1 - GAIN) * missing else None
            if smaller is None:
                if optimised:
                    break
                choice, optimised = self._optimised(here, splits, choice), True
                continue
            here, missing, optimised = smaller, now, False
        return self._searched_again(here, rounds)

    def _searched_again(self, here: Prover, rounds: list[dict[str, Any]]) -> RestEntry:
        """The entry of a rest by a new tree over what was proved."""
        if self.aim.search is None:
            raise Unproved
        inner = here.inside(here.known, None)
        inner.state([self.aim.case])
        inner.by_branching(self.aim.search, self.aim.pieces)
        if inner.open():
            raise Unproved
        tree = adopted(inner.header["proofs"][-1]["tree"], inner.arrays, f"{self._name()}.", self.arrays)
        bound = float(inner.margins[0] + inner.limits_of([0])[0])
        return self._by_tree(rounds, tree, {}, bound)

    def _by_tree(self, rounds: list[dict[str, Any]], tree: dict[str, Any], arrays: Arrays, bound: float) -> RestEntry:
        """The entry of a rest by a tree with this bound, none of whose leaves is a rest; the arrays are kept."""
        self.arrays |= arrays
        return RestEntry({"rounds": rounds, "tree": tree, "rests": []}, min(bound, self.aim.level))

    def _split(self, here: Prover, record: RestRecord, rounds: list[dict[str, Any]]) -> RestEntry:
        """The entry of a rest by a tree over what is left; its pieces, and leaves that do not prove, are rests."""
        if record.tree is None:
            raise Unproved
        self.prover.in_time()
        pieces = {piece.splits: piece for piece in record.pieces}
        proved, fitted = dict[int, float](), set[str]()
        for _ in range(ROUNDS):
            leaves = [*record.tree.leaves, *(Part(0, splits) for splits in pieces)]
            searched = self._searched(here, leaves)
            searched.record.functionals = record.tree.functionals
            tree, arrays = here.planter.tree(searched, leaves, self._name(), len(record.splits))
            ordered = preorder(leaves, len(record.splits))[1]
            mine = [k for k, leaf in enumerate(ordered) if leaf.splits not in pieces]
            if set(tree["fitted"]) != fitted:  # a tree that has become large is bounded in another way
                fitted, proved = set(tree["fitted"]), {}
            new = {k for k in mine if id(ordered[k]) not in proved}
            with np.errstate(all="ignore"):
                packed = read_packed(tree, here.known, 1, File({"format": FORMAT}, arrays))
                found = proof.leaf_bounds(here.known, self.aim.A, packed, new)[:, 0]
            bounds = {k: float(found[k]) if k in new else proved[id(ordered[k])] for k in mine}
            proved = {id(ordered[k]): bounds[k] for k in mine}  # `ordered` keeps them alive: no other has their ids
            weak = {k for k in mine if not bounds[k] > self.aim.sure}
            if len(weak) <= FEW or not self._goes_on(record.tree, [(ordered[k], bounds[k]) for k in weak]):
                break
        self.arrays |= arrays
        rests, least = [], min((float(bounds[k]) for k in mine if k not in weak), default=math.inf)
        for k, inner in self._parts(here, packed, {k for k in range(len(ordered)) if k in weak or k not in mine}):
            leaf = ordered[k]
            again = RestRecord(leaf.splits, [], leaf.choice)
            entry = self._rest(inner, pieces.get(leaf.splits, again))
            rests.append({"leaf": k, **entry.header})
            least = min(least, entry.bound)
        return RestEntry({"rounds": rounds, "tree": tree, "rests": rests}, min(least, self.aim.level))

    def _goes_on(self, tree: Record, weak: Sequence[tuple[Part, float]]) -> bool:
        """Whether the search has gone on from leaves that do not prove, each with its bound: then others replace them.

        A rest for each would need boxes of its own, which takes as long as hundreds of leaves.
        """
        search, lost = self.origins.get(id(tree)), max(max(leaf.bound - bound, 0.0) for leaf, bound in weak)
        goal = self.aim.level + 2 * lost + LEAF * (1 + abs(self.aim.level))
        if search is None or not math.isfinite(goal):
            return False
        own = {id(mine): theirs for mine, theirs in zip(tree.leaves, search.leaves, strict=True)}
        if not search.resume([own[id(leaf)] for leaf, _ in weak], [goal], self.prover.seconds_left()):
            return False
        known = {id(theirs): mine for mine, theirs in zip(tree.leaves, own.values(), strict=True)}
        tree.leaves = [known[id(leaf)] if id(leaf) in known else self._leaf(leaf) for leaf in search.leaves]
        return True

    def _leaf(self, leaf: Part) -> Part:
        """A leaf in words of the prover's graph."""
        return dataclasses.replace(leaf, splits=self._splits(leaf.splits), choice=self._choice(leaf.choice))

    def _parts(self, here: Prover, packed: PackedTree, which: set[int]) -> Sequence[tuple[int, Prover]]:
        """What is known on the branches of some leaves."""
        with np.errstate(all="ignore"):
            found = [(leaf.number, leaf.part()) for leaf in leaves_of(packed, here.known) if leaf.number in which]
        return [(number, here.inside(known, None)) for number, known in found]

    def _passed(self, here: Prover, splits: tuple[Split, ...], choice: Choice) -> tuple[dict[str, Any], Arrays, Pass]:
        """A tree of one leaf with given parameters, the arrays that it names, and the checker's pass with these."""
        self.prover.in_time()
        leaf = Part(0, splits, choice=choice)
        tree, arrays = here.planter.tree(self._searched(here, [leaf]), [leaf], self._name(), len(splits))
        with np.errstate(all="ignore"):
            packed = read_packed(tree, here.known, 1, File({"format": FORMAT}, arrays))
            return tree, arrays, passed_alone(packed, here.known, self.aim.A)

    def _cut(
        self, here: Prover, found: Pass, tree: tuple[dict[str, Any], Arrays], rounds: list[dict[str, Any]]
    ) -> Prover | None:
        """What is known over what a linear bound leaves, after one more round; None if that is almost all."""
        known = here.known
        with np.errstate(all="ignore"):
            half = half_space(known.given, found.linear_bound(), self.aim.level)
            if is_useless(known.given.box.lo.ravel(), known.given.box.hi.ravel(), half):
                return None
            box = needed(known.given, half)
            given = narrower(known.given, half, box.lo, box.hi)
            slope = half.slope.reshape(box.lo.shape)
            least, most, slopes = (torch.from_numpy(np.array(x)[None]) for x in (box.lo, box.hi, slope))
            region = CutRegion(least, most, slopes, torch.tensor([half.limit], dtype=torch.float64))
            inner = here.inside(known.over(given), region)
        prefix = f"{self._name()}."
        header = {name: inner.header[name] for name in ("lines", "steps")}
        self.arrays |= tree[1]
        rounds.append({"cut": tree[0], **adopted(header, inner.arrays, prefix, self.arrays)})
        return inner

    def _optimised(self, here: Prover, splits: tuple[Split, ...], choice: Choice) -> Choice:
        """Parameters that are optimised over what was proved, from those given on."""
        question, whole = here.proved()
        inner = inner_ranges(question, whole, self.rules) if any(split.inner for split in splits) else {}
        made = part_boxes(whole, inner, [splits], (question.graph.input, question.index.start))
        A = torch.from_numpy(self.aim.A).reshape(1, 1, *here.graph.output.shape)
        objective = Objective.dense(here.graph.output, A)
        begin = Beginning(choice=choice.map(lambda value: value.double()) or None, cuts=made.cuts, best=True)
        goal = Goal(self.aim.level)
        return ascend(question, made.boxes, objective, self.rules, self.aim.ascent, goal, begin).choice

    def _searched(self, here: Prover, leaves: Sequence[Part]) -> Searched:
        """A search that leaves are of: with the boxes that were proved, if their parameters depend on boxes."""
        ops = {type(node.op) for leaf in leaves for node in leaf.choice.parameters}
        if ops <= {Relu, Attention, MatMul}:
            return dataclasses.replace(self.plain, record=Record())
        question, boxes = here.proved()
        record = Record()
        record.boxes = boxes
        if any(split.inner for leaf in leaves for split in leaf.splits):
            record.inner = inner_ranges(question, boxes, self.rules)
        return Searched(question.on_parts(), self.rules, record, {0: 0})

    def _name(self) -> str:
        self.count += 1
        return f"{self.aim.prefix}.{self.count}"

    def _translated(self, record: RestRecord) -> RestRecord:
        """The same in words of the prover's graph."""
        tree = None
        if record.tree is not None:
            tree = Record()
            tree.leaves = [self._leaf(leaf) for leaf in record.tree.leaves]
            self.origins[id(tree)] = record.tree
            self.translated.append(tree)
            tree.functionals = {k: self._nodes(each) for k, each in record.tree.functionals.items()}
        return RestRecord(
            self._splits(record.splits),
            [self._choice(choice) for choice in record.cuts],
            self._choice(record.last),
            tree,
            [self._translated(piece) for piece in record.pieces],
        )

    def _splits(self, splits: Sequence[Split]) -> tuple[Split, ...]:
        return tuple(dataclasses.replace(split, node=self.own[split.node]) for split in splits)

    def _choice(self, choice: Choice) -> Choice:
        return Choice(self._nodes(choice.parameters), self._nodes(choice.multipliers))

    def _nodes(self, values: Any) -> dict[Node, Any]:
        return {self.own[node]: value for node, value in values.items()}


def is_useless(lower: NDArray[np.float64], upper: NDArray[np.float64], half: HalfSpace) -> bool:
    """Whether a half-space leaves almost all of a box, by how far its linear function goes."""
    way = (np.abs(half.slope) * (upper - lower)).sum()
    least = np.where(half.slope > 0, half.slope * lower, half.slope * upper).sum()
    return not half.limit - least < USELESS * way


def adopted(value: Any, arrays: Arrays, prefix: str, kept: Arrays) -> Any:
    """A part of a header with longer names; the arrays that it names are kept under these."""
    if isinstance(value, dict):
        return {key: adopted(item, arrays, prefix, kept) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [adopted(item, arrays, prefix, kept) for item in value]
    if isinstance(value, str) and value in arrays:
        kept[prefix + value] = arrays[value]
        return prefix + value
    return value


def _number(found: Pass) -> float:
    """The bound of an objective that is alone in a pass; −inf if it is none."""
    with np.errstate(all="ignore"):
        bound = float(found.bound()[0])
    return -math.inf if math.isnan(bound) else bound
