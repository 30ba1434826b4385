"""The tree of splits into which branch and bound has divided a part; its leaves are the parts that replace that part.

Invariant: the leaves of a tree cover the part that it was made of, because a fork always has both sides, and both sides
contain the point of the split. That holds for any tree, whoever wrote it; only the bounds of the leaves are claims.

A tree is written in preorder: a fork is followed by the tree of its side "at least", then by that of its side "at
most".

    (Fork(z, 3, 0.5), Leaf(1.0), Fork(z, 4, 0.0), Leaf(0.2), Leaf(-0.1))    # three leaves
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

from vertex_softmax.bounds.splits import Split
from vertex_softmax.foundation.errors import InternalError, InvalidValueError
from vertex_softmax.graph.ir import Node


@dataclasses.dataclass(frozen=True)
class Fork:
    """A split with both of its sides: the entry with flat index `place` of a node, at the value `point`."""

    node: Node
    place: int
    point: float
    size: float = 1.0
    """as `Split.size`"""
    inner: bool = False
    """as `Split.inner`"""

    def side(self, *, at_least: bool) -> Split:
        """One of the two sides of the split."""
        return Split(self.node, self.place, self.point, at_least=at_least, size=self.size, inner=self.inner)

    @staticmethod
    def of(split: Split) -> Fork:
        """The fork of which a split is one side."""
        return Fork(split.node, split.place, split.point, split.size, split.inner)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A part at the end of a tree, with the lower bound that is claimed for it."""

    bound: float
    exhausted: bool = False
    """whether no number of the part can still be split"""
    multipliers: tuple[float, ...] = ()
    """one for each split from the whole set on, to continue the search with; any value is sound"""


SplitTree: TypeAlias = tuple[Fork | Leaf, ...]
PlacedLeaf: TypeAlias = tuple[tuple[Split, ...], Leaf]
"""The splits from the tree's root to a leaf, and the leaf."""


def tree_of(leaves: Sequence[PlacedLeaf]) -> SplitTree:
    """The tree that has these leaves; raises if they are not all leaves of one tree, so that none can get lost."""
    tree: list[Fork | Leaf] = []
    groups: list[tuple[int, Sequence[PlacedLeaf]]] = [(0, leaves)]
    while groups:
        depth, group = groups.pop()
        if len(group) == 1 and len(group[0][0]) == depth:
            tree.append(group[0][1])
            continue
        sides: dict[bool, list[PlacedLeaf]] = {True: [], False: []}
        forks = set()
        for splits, leaf in group:
            if len(splits) > depth:
                forks.add(Fork.of(splits[depth]))
                sides[splits[depth].at_least].append((splits, leaf))
        if len(forks) != 1 or len(group) != sum(map(len, sides.values())):  # an empty side has no fork either
            raise InternalError(f"the {len(leaves)} parts in place of another do not cover it, at depth {depth}")
        tree.append(forks.pop())
        groups += [(depth + 1, sides[False]), (depth + 1, sides[True])]
    return tuple(tree)


def leaves_of(tree: Sequence[Fork | Leaf]) -> list[PlacedLeaf]:
    """The leaves of a tree with their splits, in its order; raises if the sequence is not exactly one tree."""
    found: list[PlacedLeaf] = []
    waiting: list[tuple[Split, ...]] = [()]
    for step in tree:
        if not waiting:
            raise InvalidValueError("a tree of splits goes on after its last leaf")
        splits = waiting.pop()
        if isinstance(step, Leaf):
            found.append((splits, step))
        else:
            waiting += [(*splits, step.side(at_least=False)), (*splits, step.side(at_least=True))]
    if waiting:
        raise InvalidValueError(f"a tree of splits lacks {len(waiting)} of its sides")
    return found


def pruned(tree: Sequence[Fork | Leaf], is_closed: Callable[[Leaf], bool]) -> SplitTree:
    """The tree with every fork below which all leaves are closed replaced by one leaf, which has the least of their
    bounds.
    """
    done: list[tuple[Fork | Leaf, ...]] = []
    for step in reversed(tree):
        if isinstance(step, Leaf):
            done.append((step,))
            continue
        above, below = done.pop(), done.pop()
        ends = [side[0] for side in (above, below) if len(side) == 1]
        closed = [end for end in ends if isinstance(end, Leaf) and is_closed(end)]
        if len(closed) == 2:
            done.append((Leaf(min(end.bound for end in closed)),))
        else:
            done.append((step, *above, *below))
    return done.pop()
