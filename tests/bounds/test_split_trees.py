"""Trees of splits: their leaves cover what was split, whatever is left out is noticed."""

from __future__ import annotations

import itertools
import random

import pytest

from vertex_softmax.bounds.split_trees import Fork, Leaf, PlacedLeaf, SplitTree, leaves_of, pruned, tree_of
from vertex_softmax.bounds.splits import Split
from vertex_softmax.foundation.errors import InternalError, InvalidValueError
from vertex_softmax.graph import build

NODES = [build.source((4,)), build.source((4,))]


def grown(rng: random.Random, depth: int) -> SplitTree:
    """A random tree."""
    if not depth or rng.random() < 0.3:
        return (Leaf(rng.uniform(-1, 1), rng.random() < 0.2, (rng.random(),)),)
    fork = Fork(rng.choice(NODES), rng.randrange(4), rng.uniform(-1, 1), rng.random() + 0.1, rng.random() < 0.2)
    return (fork, *grown(rng, depth - 1), *grown(rng, depth - 1))


TREES = [grown(random.Random(seed), 6) for seed in range(40)]
LARGE = [tree for tree in TREES if len(tree) > 5]


def holds(split: Split, values: dict[object, float]) -> bool:
    """Whether a point with these numbers is on this side of a split."""
    value = values[split.node, split.place, split.inner]
    return value >= split.point if split.at_least else value <= split.point


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_is_made_of_its_leaves_in_any_order(tree: SplitTree) -> None:
    leaves = leaves_of(tree)
    random.Random(1).shuffle(leaves)
    assert tree_of(leaves) == tree


@pytest.mark.parametrize("tree", TREES)
def test_every_point_is_in_a_leaf_also_where_it_was_split(tree: SplitTree) -> None:
    rng, leaves = random.Random(2), leaves_of(tree)
    points = sorted({step.point for step in tree if isinstance(step, Fork)}) or [0.0]
    for _ in range(50):
        values = {
            key: rng.choice([rng.uniform(-2, 2), rng.choice(points)])
            for key in itertools.product(NODES, range(4), (False, True))
        }
        assert any(all(holds(split, values) for split in splits) for splits, _ in leaves)


@pytest.mark.parametrize("tree", LARGE)
def test_a_leaf_that_is_left_out_or_changed_is_noticed(tree: SplitTree) -> None:
    leaves = leaves_of(tree)
    for k, (splits, leaf) in enumerate(leaves):
        other = [*leaves[:k], *leaves[k + 1 :]]
        last = splits[-1]
        moved = Split(last.node, last.place, last.point + 0.5, at_least=last.at_least, size=last.size, inner=last.inner)
        wrong: list[list[PlacedLeaf]] = [
            other,
            [*leaves, leaves[k]],
            [*other, ((*splits[:-1], moved), leaf)],
            [*other, (splits[:-1], leaf)],
            [*leaves, (splits[:-1], leaf)],
            [*other, ((*splits, last), leaf)],
        ]
        for each in wrong:
            with pytest.raises(InternalError, match="do not cover it"):
                tree_of(each)


def test_no_leaf_at_all_is_no_tree() -> None:
    with pytest.raises(InternalError, match="do not cover"):
        tree_of([])
    with pytest.raises(InvalidValueError, match="lacks 1 of its sides"):
        leaves_of(())


@pytest.mark.parametrize("tree", LARGE)
def test_a_tree_that_is_not_whole_has_no_leaves(tree: SplitTree) -> None:
    for end in range(len(tree)):
        with pytest.raises(InvalidValueError, match="lacks"):
            leaves_of(tree[:end])
    with pytest.raises(InvalidValueError, match="goes on after its last leaf"):
        leaves_of((*tree, Leaf(0.0)))
    forks = [k for k, step in enumerate(tree) if isinstance(step, Fork)]
    with pytest.raises(InvalidValueError, match="goes on"):
        leaves_of((*tree[: forks[-1]], *tree[forks[-1] + 1 :]))


@pytest.mark.parametrize("tree", TREES)
def test_pruning_keeps_what_is_open_and_the_least_bound_of_what_is_closed(tree: SplitTree) -> None:
    def is_closed(leaf: Leaf) -> bool:
        return leaf.bound > -0.5

    before, after = leaves_of(tree), leaves_of(pruned(tree, is_closed))
    assert [each for each in before if not is_closed(each[1])] == [each for each in after if not is_closed(each[1])]
    for splits, leaf in after:
        if is_closed(leaf):
            below = [each.bound for path, each in before if path[: len(splits)] == splits]
            assert leaf.bound == min(below)
    closed = [splits for splits, leaf in after if is_closed(leaf)]
    for one, other in itertools.combinations(closed, 2):  # two closed sides of one fork would have become one
        assert one[:-1] != other[:-1] or len(one) != len(other) or not one
