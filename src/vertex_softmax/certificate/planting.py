"""Trees for a certificate, from the leaves of a search: what the leaves have in common is written once.

Invariant: the tree that is written has exactly the leaves that are given, each with the cuts on the way to it. What
their parameters are decides how tight the checker's bounds are, and nothing else: they may be rounded at will.

The parameters of attentions are places (`checker.rows.placed`) and those of ReLUs slopes, both as the search has them,
so that leaves between which nothing was optimised share them. Those of curves and norms depend on the boxes of a leaf.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.bounds.ascent import AscendedEntries
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import NarrowedTree, Record, RestRecord
from vertex_softmax.bounds.splits import Split, part_boxes
from vertex_softmax.certificate.checker.network import Known
from vertex_softmax.certificate.lowering import Lowered
from vertex_softmax.certificate.touching import touching
from vertex_softmax.certificate.writing import compact
from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.elementwise import Elementwise, Relu
from vertex_softmax.ops.rules import RowRule, Rules

Array = NDArray[np.float64]
Values = Mapping[tuple[int, str], NDArray[Any]]
"""By the checker's node and name: the values of one leaf, (1, ...)."""
FITTED = 4
"""Ellipsoids are fitted for trees of so many leaves per number of a row: for fewer, sums are quicker, and tighter."""
PLACES = ("place", "slope", "level")
"""The free parameters of the affine vertex rule."""


@dataclasses.dataclass(frozen=True, eq=False)
class Searched:
    """A search over the input set of a part of a certificate, that is, branch and bound or one ascent."""

    question: Question
    rules: Rules
    record: Record
    cases: Mapping[int, int]
    """objective → the case it excludes"""
    weights: Mapping[int, Array] = dataclasses.field(default_factory=dict)
    """case → the weights of its rows that make the objective"""

    def narrowed_trees(self) -> dict[int, Searched]:
        """By case: the tree over what narrowing has left of its set; there objective and case have number 0."""
        trees = {case: self.record.narrowed.get(k) for k, case in self.cases.items()}
        return {
            case: Searched(tree.question.on_parts(), self.rules, tree.record, {0: 0})
            for case, tree in trees.items()
            if isinstance(tree, NarrowedTree)
        }

    def rests(self) -> dict[int, RestRecord]:
        """By case: how its set was narrowed, and split where that was not enough."""
        found: dict[int, RestRecord] = {}
        for k, case in self.cases.items():
            each = self.record.narrowed.get(k)
            if isinstance(each, RestRecord):
                found[case] = each
            elif each is not None and each.record.leaves and not each.record.open:
                found[case] = RestRecord(cuts=list(each.cuts), tree=each.record)
        return found

    def only(self, cases: Collection[int]) -> Searched:
        """The same for some of the cases."""
        return dataclasses.replace(self, cases={k: case for k, case in self.cases.items() if case in cases})


@dataclasses.dataclass(frozen=True)
class PlantedTree:
    """A tree of a search as the file would have it."""

    leaves: Sequence[Part]
    """in the order of the search"""
    ordered: Sequence[Part]
    """the same, in preorder"""
    tree: dict[str, Any]
    """in words of the header"""
    arrays: dict[str, NDArray[Any]]
    """those that the tree names"""
    bounds: dict[int, float]
    """by the id of a leaf: the checker's bound over what is known now; empty if none was computed"""


class Planter:
    """Writes trees for one network over one input set."""

    def __init__(self, graph: Graph, low: Lowered, known: Known) -> None:
        self.graph, self.low, self.known = graph, low, known
        """`known`: what the checker knows of the set"""
        self._made: dict[int, tuple[Tensor, NDArray[Any]]] = {}
        """what was made of a tensor, by its id, and the tensor, so that the id stays its own"""
        self._planted: dict[int, PlantedTree] = {}
        """by case: its tree as it was last written"""

    def at(self, question: Question) -> dict[Node, int]:
        """The numbers of the checker's nodes with the ops of a search's graph, which may be a copy of this one."""
        return {other: self.low.at[own] for other, own in self.pairs(question)}

    def number(self, question: Question) -> dict[Node, int]:
        """The numbers of the checker's nodes with the values of a search's nodes."""
        return {other: self.low.number[own] for other, own in self.pairs(question)}

    def pairs(self, question: Question) -> Iterable[tuple[Node, Node]]:
        """The nodes of a search's graph, which may be a copy of this one, and this graph's."""
        theirs, ours = question.graph.nodes(), self.graph.nodes()
        if [(type(node.op), node.shape) for node in theirs] != [(type(node.op), node.shape) for node in ours]:
            raise InternalError("a search was about another network")
        return zip(theirs, ours, strict=True)

    def tree(
        self, searched: Searched, leaves: Sequence[Part], prefix: str, outer: int = 0
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The packed tree of one objective, in words of the header, and the arrays that it names.

        outer: so many splits at the beginning are those of the set that the tree is over, and not its own.
        """
        entries, ordered = preorder(leaves, outer)
        at, values = self.at(searched.question), self.number(searched.question)
        splits = [
            (-1, 0, 0.0, False) if s is None else ((at if s.inner else values)[s.node], s.place, s.point, s.inner)
            for s in entries
        ]
        node, entry, point, inner = (np.array(column) for column in zip(*splits, strict=True))
        arrays: dict[str, NDArray[Any]] = {
            "node": node.astype(np.int64),
            "entry": entry.astype(np.int64),
            "point": point.astype(np.float64),
            "inner": inner.astype(bool),
            "held": np.concatenate([np.zeros(0), *(_held(leaf)[outer:] for leaf in ordered)]).astype(np.float32),
        }
        tree: dict[str, Any] = {"rule": RowRule.AFFINE.value, "pieces": searched.rules.pieces}
        tree |= {name: f"{prefix}.{name}" for name in arrays}
        tree |= {"chosen": {}, "fitted": {}}
        if outer:
            before = _outer(ordered, outer, values)
            arrays |= {f"outer.{name}": array for name, array in before.items()}
            tree["outer"] = {name: f"{prefix}.outer.{name}" for name in before}
        chosen = _unique([self._values(searched, leaf, at) for leaf in ordered])
        for (number, name), (numbers, which) in chosen.items():
            names = {"values": f"{number}.{name}.values", "which": f"{number}.{name}.which"}
            arrays |= {names["values"]: numbers, names["which"]: which}
            tree["chosen"].setdefault(str(number), {})[name] = {k: f"{prefix}.{v}" for k, v in names.items()}
        for attention, eta in searched.record.functionals.get(leaves[0].objective, {}).items():
            number = at[attention]
            if len(leaves) < FITTED * eta.shape[-1] or self.known.nodes[number].inputs[1] not in self.known.zonotopes:
                continue
            arrays[f"{number}.fitted"] = eta.cpu().numpy().astype(np.float32)
            tree["fitted"][str(number)] = f"{prefix}.{number}.fitted"
        return tree, {f"{prefix}.{name}": compact(array) for name, array in arrays.items()}

    def planted(self, searched: Searched, objective: int, case: int, number: int) -> PlantedTree | None:
        """The tree of a case, written once as long as its leaves are the same; None if the search has no leaf for it.

        number: of the proof that it will be, for the names of its arrays.
        """
        leaves = [leaf for leaf in searched.record.leaves if leaf.objective == objective]
        before = self._planted.get(case)
        if before is not None and len(before.leaves) == len(leaves) and all(map(operator.is_, before.leaves, leaves)):
            return before
        if not leaves:
            return None
        tree, arrays = self.tree(searched, leaves, f"tree.{case}.{number}")
        self._planted[case] = PlantedTree(leaves, preorder(leaves)[1], tree, arrays, {})
        return self._planted[case]

    def forget_bounds(self) -> None:
        """Forget the bounds of leaves: more is known of the set now, and the checker will bound them over that."""
        for each in self._planted.values():
            each.bounds.clear()

    def entries(self, question: Question, late: AscendedEntries) -> tuple[Array, dict[int, dict[str, NDArray[Any]]]]:
        """The entries of a box that was optimised, and the parameters by node and name: (2 · entries, ...) each.

        Without corners, which hardly matter for boxes.
        """
        rows, at = np.concatenate([rows.cpu().numpy() for rows, _ in late.parts]), self.at(question)
        found: dict[int, dict[str, NDArray[Any]]] = {}
        first = late.parts[0][1]
        for node, values in first.parameters.items():
            for name in values:
                if isinstance(node.op, Relu) or (isinstance(node.op, Attention) and name in PLACES):
                    each = [choice.parameters[node][name][0].cpu().numpy() for _, choice in late.parts]
                    halves = [x[: len(x) // 2] for x in each] + [x[len(x) // 2 :] for x in each]
                    found.setdefault(at[node], {})[name] = _small(np.concatenate(halves))
        return rows, found

    def _values(self, searched: Searched, leaf: Part, at: Mapping[Node, int]) -> Values:
        """The parameters of a leaf under the checker's names."""
        found: dict[tuple[int, str], NDArray[Any]] = {}
        others: dict[Node, Mapping[str, Tensor]] = {}
        for node, values in leaf.choice.parameters.items():
            number = at[node]
            if isinstance(node.op, Relu) or (isinstance(node.op, Attention) and set(PLACES) <= values.keys()):
                for name in PLACES:
                    if name in values:
                        found[number, name] = self._once(values[name], lambda x: _small(x[0].numpy()))
            elif isinstance(node.op, MatMul):
                exact = "corner" in values and self.known.planes(number).exact is not None
                if exact:  # else the planes at the centre are taken
                    numbers = searched.question.index.start_numbers(torch.device("cpu")).reshape(-1)
                    turned = functools.partial(_corner, numbers=numbers)
                    found[number, "corner"] = self._once(values["corner"], turned)
            elif not isinstance(node.op, Attention):
                others[node] = values
        return {**found, **self._over_boxes(searched, leaf, others, at)} if others else found

    def _once(self, value: Tensor, make: Callable[[Tensor], NDArray[Any]]) -> NDArray[Any]:
        """What is made of a tensor on the CPU: the same array every time."""
        if id(value) not in self._made:
            self._made[id(value)] = (value, make(value.detach().cpu()))
        return self._made[id(value)][1]

    def _over_boxes(
        self, searched: Searched, leaf: Part, values: Mapping[Node, Mapping[str, Tensor]], at: Mapping[Node, int]
    ) -> Values:
        """What relaxations over the boxes of a leaf choose with these parameters: slopes of lines, where they touch."""
        question, record = searched.question, searched.record
        if record.boxes is None:
            raise InternalError("a search has ended without its boxes")
        forbidden = (question.graph.input, question.index.start)
        boxes: Boxes = part_boxes(record.boxes, record.inner, [leaf.splits], forbidden).boxes
        rules = dataclasses.replace(searched.rules, free=True)
        found: dict[tuple[int, str], NDArray[Any]] = {}
        for node, own in values.items():
            number, op = at[node], node.op
            relaxation = question.relaxations.of(node, boxes, rules)
            relaxation = relaxation.with_parameters({name: value.double() for name, value in own.items()})
            chosen = relaxation.chosen_values(torch.zeros(1, 1, *node.shape, dtype=torch.float64))
            found |= {(number, name): value[0].detach().cpu().numpy().copy() for name, value in chosen.items()}
            if "below" in chosen and isinstance(op, Elementwise):
                ends = [end[0].cpu() for end in boxes[node.inputs[0]]]
                for side, sign in (("below", 1), ("above", -1)):
                    touch = touching(self.low.entries[number]["op"], op, sign, chosen[side][0].cpu(), *ends)
                    found[number, f"touch_{side}"] = np.swapaxes(touch.numpy(), 0, 1).copy()
        return found


def preorder(leaves: Sequence[Part], outer: int = 0) -> tuple[list[Split | None], list[Part]]:
    """The tree with these leaves in preorder, a branching before its left and then its right branch; and its leaves.

    An entry is one side of the branching, or None for a leaf. Left is at most. outer: how many splits come before it.
    """
    entries: list[Split | None] = []
    ordered: list[Part] = []
    waiting = [(list(leaves), outer)]
    while waiting:  # not by recursion: a tree may be of any depth
        mine, depth = waiting.pop()
        if len(mine) == 1 and len(mine[0].splits) == depth:
            entries.append(None)
            ordered.append(mine[0])
            continue
        split = mine[0].splits[depth]
        entries.append(split)
        sides = [[leaf for leaf in mine if leaf.splits[depth].at_least is right] for right in (True, False)]
        waiting += [(side, depth + 1) for side in sides]  # the last is taken first
    return entries, ordered


def _outer(leaves: Sequence[Part], outer: int, number: Mapping[Node, int]) -> dict[str, NDArray[Any]]:
    """Where the first splits of all leaves cut, and each leaf's multipliers there, (leaves, P)."""
    first = leaves[0].splits[:outer]
    where = {(split.node, split.place): k for k, split in enumerate(first) if not split.inner}  # the last of each
    held = np.stack([_held(leaf)[list(where.values())] for leaf in leaves])
    return {
        "node": np.array([number[node] for node, _ in where], dtype=np.int64),
        "entry": np.array([place for _, place in where], dtype=np.int64),
        "held": held.astype(np.float32),
    }


def _held(leaf: Part) -> Array:
    """A multiplier for every cut on the way to a leaf; where a number is cut again, the last has all of it."""
    found = np.zeros(len(leaf.splits))
    last = {(split.node, split.place): k for k, split in enumerate(leaf.splits) if not split.inner}
    of_node: dict[Node, list[tuple[int, int]]] = {}
    for (node, place), k in last.items():
        of_node.setdefault(node, []).append((place, k))
    for node, pairs in of_node.items():
        sides = leaf.choice.multipliers.get(node)
        if sides is not None:
            places, cuts = (list(column) for column in zip(*pairs, strict=True))
            least, most = (side.detach().reshape(-1)[places].clamp(min=0).cpu().numpy() for side in sides)
            found[cuts] = most.astype(np.float64) - least
    return found


def _unique(leaves: Iterable[Values]) -> dict[tuple[int, str], tuple[NDArray[Any], NDArray[np.int64]]]:
    """By node and name: the values that occur, (U, 1, ...), and which of them each leaf has; 0 where it has none."""
    each = list(leaves)
    found = {}
    for key in dict.fromkeys(key for values in each for key in values):
        like = next(values[key] for values in each if key in values)
        zero = np.zeros_like(like)
        places: dict[object, int] = {}
        rows: list[NDArray[Any]] = []
        which = np.zeros(len(each), dtype=np.int64)
        for k, values in enumerate(each):
            row = values.get(key, zero)
            place = places.get(id(row))
            if place is None:  # another array; it may have the same numbers
                place = places.setdefault(row.tobytes(), len(rows))
                places[id(row)] = place
                if place == len(rows):
                    rows.append(row)
            which[k] = place
        found[key] = (np.stack(rows), which)
    return found


def _corner(corner: Tensor, numbers: Tensor) -> NDArray[Any]:
    """A corner of the start's numbers, (1, S, inputs), as one of the input's, of which those are a rearrangement."""
    return _small(torch.zeros_like(corner[0]).index_copy(-1, numbers, corner[0]).numpy())


def _small(x: NDArray[Any]) -> NDArray[Any]:
    """Rounded to half precision, if it has room for the numbers, else to single: whatever is chosen is sound."""
    with np.errstate(over="ignore", under="ignore"):
        small = x.astype(np.float16)
    return small if np.isfinite(small).all() else x.astype(np.float32)
