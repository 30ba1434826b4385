"""What a shared search says to its workers, hears from them and writes to its journal: plain data.

Invariant: what is read is what was written, to the last bit, or an `InvalidValueError`. Numbers are written in
hexadecimal. A node is named by its number in the graph and its name, so that it is the same node only in the same
graph. No object is sent: a reader makes splits and parts of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import inner_ranges
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.split_trees import Fork, Leaf, SplitTree
from vertex_softmax.bounds.splits import Split
from vertex_softmax.bounds.subtrees import GivenPart
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.rules import Rules
from vertex_softmax.runs.shared.seals import Plain, digest_of

T = TypeVar("T")
HEXADECIMAL = re.compile(r"-?(0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}|inf)")


def field(body: Plain, name: str, kind: type[T]) -> T:
    """A field of a message, which has to be of this type; a bool is no int."""
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidValueError(f"a message has no {kind.__name__} {name!r}: {str(body)[:80]}")
    return value


def count(body: Plain, name: str, most: int) -> int:
    """A field of a message that is a whole number from 0 to `most`."""
    value = field(body, name, int)
    if not 0 <= value <= most:
        raise InvalidValueError(f"{name} is {value} in a message; it is from 0 to {most}")
    return value


def number(text: Plain, *, finite: bool = True) -> float:
    """A float that was written by `float.hex`; with `finite` False it may be infinite. Never NaN."""
    if not isinstance(text, str) or not HEXADECIMAL.fullmatch(text):
        raise InvalidValueError(f"{str(text)[:40]!r} is not a number in hexadecimal")
    try:
        value = float.fromhex(text)
    except OverflowError as error:
        raise InvalidValueError(f"{text} is too large for a float") from error
    if finite and not math.isfinite(value):
        raise InvalidValueError(f"{text} stands where a finite number should")
    return value


def numbers(values: Tensor) -> list[str]:
    """A tensor of any shape as a list of its numbers."""
    return [value.hex() for value in values.detach().double().cpu().reshape(-1).tolist()]


def tensor(texts: Plain, shape: Sequence[int], *, finite: bool = True) -> Tensor:
    """A tensor of this shape, in double precision on the CPU."""
    if not isinstance(texts, list) or len(texts) != math.prod(shape):
        raise InvalidValueError(
            f"a message has no list of {math.prod(shape)} numbers where it should: {str(texts)[:80]}"
        )
    return torch.tensor([number(text, finite=finite) for text in texts], dtype=torch.float64).reshape(*shape)


class Codec:
    """Splits, parts and trees of one graph as plain data, and back; what comes back is checked against the graph."""

    def __init__(self, graph: Graph, forbidden: Collection[Node], inner: Mapping[Node, int]) -> None:
        """`forbidden`: nodes that are not split. `inner`: of nodes with inner numbers, how many they have."""
        self._labels = {node: f"{i} {node.name}" for i, node in enumerate(graph.nodes())}
        self._nodes = {label: node for node, label in self._labels.items()}
        self._outer = {node: math.prod(node.shape) for node in self._labels if node not in forbidden}
        self._inner = dict(inner)

    @staticmethod
    def over(question: Question, boxes: Boxes, rules: Rules) -> Codec:
        """For the parts of a question's set, whose boxes are made."""
        inner = {node: box.lower[0].numel() for node, box in inner_ranges(question, boxes, rules).items()}
        return Codec(question.graph, (question.graph.input, question.index.start), inner)

    def fork(self, fork: Fork) -> list[Plain]:
        """Node, place, point, size, and whether it is an inner number."""
        return [self._labels[fork.node], fork.place, fork.point.hex(), fork.size.hex(), fork.inner]

    def read_fork(self, plain: Plain) -> Fork:
        """The fork; raises unless it splits a number that the graph has at a finite point."""
        label, place, point, size, inner = _items(plain, 5)
        node = self._nodes.get(label) if isinstance(label, str) else None
        if node is None or not isinstance(inner, bool):
            raise InvalidValueError(f"a split is of a node that this network does not have: {str(plain)[:120]}")
        most = (self._inner if inner else self._outer).get(node, 0)
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < most:
            raise InvalidValueError(f"a split is of number {str(place)[:20]} of {label}, where {most} can be split")
        scale = number(size)
        if not scale > 0:
            raise InvalidValueError(f"a split has the size {size}; it is above 0")
        return Fork(node, place, number(point), scale, inner)

    def splits(self, splits: Sequence[Split]) -> list[Plain]:
        """Each split as its fork, and whether it is the side "at least"."""
        return [[*self.fork(Fork.of(split)), split.at_least] for split in splits]

    def read_splits(self, plain: Plain) -> tuple[Split, ...]:
        """The splits."""
        found = []
        for each in _list(plain):
            *fork, at_least = _items(each, 6)
            if not isinstance(at_least, bool):
                raise InvalidValueError(f"a split has no side: {str(each)[:120]}")
            found.append(self.read_fork(fork).side(at_least=at_least))
        return tuple(found)

    def part(self, part: GivenPart) -> dict[str, Plain]:
        """A part with its bound and multipliers."""
        return {
            "objective": part.objective,
            "splits": self.splits(part.splits),
            "bound": part.bound.hex(),
            "multipliers": [value.hex() for value in part.multipliers],
        }

    def read_part(self, plain: Plain, objectives: int) -> GivenPart:
        """The part; it is of one of so many objectives."""
        splits = self.read_splits(field(plain, "splits", list))
        bound = number(plain.get("bound"), finite=False)
        multipliers = _multipliers(plain.get("multipliers"))
        return GivenPart(count(plain, "objective", objectives - 1), splits, bound, multipliers)

    def digest(self, part: GivenPart) -> str:
        """The SHA-256 of what the part is: its objective and its splits, whatever is known of it."""
        return digest_of([part.objective, self.splits(part.splits)])

    def tree(self, tree: SplitTree) -> list[Plain]:
        """Forks and leaves in their order; a leaf is its bound, whether it is exhausted, and its multipliers."""
        return [self.fork(step) if isinstance(step, Fork) else _leaf(step) for step in tree]

    def read_tree(self, plain: Plain) -> SplitTree:
        """The steps of a tree; whether they are a whole tree `split_trees.leaves_of` says."""
        return tuple(self.read_fork(step) if len(_list(step)) == 5 else _read_leaf(step) for step in _list(plain))


def _leaf(leaf: Leaf) -> list[Plain]:
    return [leaf.bound.hex(), leaf.exhausted, [value.hex() for value in leaf.multipliers]]


def _read_leaf(plain: Plain) -> Leaf:
    bound, exhausted, multipliers = _items(plain, 3)
    if not isinstance(exhausted, bool):
        raise InvalidValueError(f"a leaf does not say whether it is exhausted: {str(plain)[:120]}")
    return Leaf(number(bound, finite=False), exhausted, _multipliers(multipliers))


def _multipliers(plain: Plain) -> tuple[float, ...]:
    found = tuple(map(number, _list(plain)))
    if any(value < 0 for value in found):
        raise InvalidValueError("a multiplier is below 0")
    return found


def _list(plain: Plain) -> list[Plain]:
    if not isinstance(plain, list):
        raise InvalidValueError(f"a message has no list where it should: {str(plain)[:80]}")
    return plain


def _items(plain: Plain, length: int) -> list[Plain]:
    if len(_list(plain)) != length:
        raise InvalidValueError(f"a message has no list of {length} items where it should: {str(plain)[:120]}")
    return list(plain)
