"""The parts of a shared search: they cover the set at any time, and are closed only by finite bounds above goals."""

from __future__ import annotations

import math
import random

import pytest

from vertex_softmax.bounds.split_trees import Fork, Leaf, SplitTree
from vertex_softmax.bounds.splits import Split
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.runs.shared.ledger import Ledger

NODE = build.source((3,))


def tree(rng: random.Random, depth: int = 3) -> SplitTree:
    if not depth or rng.random() < 0.3:
        return (Leaf(rng.choice([-1.0, 0.0, 0.5, 2.0, -math.inf]), rng.random() < 0.2),)
    return (Fork(NODE, rng.randrange(3), rng.uniform(-1, 1)), *tree(rng, depth - 1), *tree(rng, depth - 1))


def inside(splits: tuple[Split, ...], x: list[float]) -> bool:
    return all(x[s.place] >= s.point if s.at_least else x[s.place] <= s.point for s in splits)


@pytest.mark.parametrize("seed", range(10))
def test_open_and_closed_parts_cover_the_set_at_any_time(seed: int) -> None:
    rng = random.Random(seed)
    ledger, closed = Ledger([0.0, 1.0], [-1.0, -math.inf]), []
    points = [[rng.uniform(-1, 1) for _ in range(3)] for _ in range(40)]
    for _ in range(30):
        if not ledger.open:
            break
        number = rng.choice(list(ledger.open))
        before = set(ledger.open)
        old = ledger.open[number].part
        replacement = ledger.checked(number, tree(rng))
        ledger.replace(replacement, "somebody")
        fresh = [ledger.open[n].part for n in set(ledger.open) - before]
        for splits, leaf in replacement.leaves:
            bound = max(leaf.bound, old.bound)
            if math.isfinite(bound) and bound > ledger.goals[old.objective]:
                closed.append((old.objective, (*old.splits, *splits), bound))
            else:
                mine = [part for part in fresh if part.splits == (*old.splits, *splits)]
                assert [part.bound for part in mine] == [bound]
        for objective in range(2):
            parts = [entry.part.splits for entry in ledger.open.values() if entry.part.objective == objective]
            parts += [splits for k, splits, _ in closed if k == objective]
            for x in points:
                assert any(
                    all(x[s.place] >= s.point if s.at_least else x[s.place] <= s.point for s in splits)
                    for splits in parts
                )
            bounds = [bound for k, _, bound in closed if k == objective]
            bounds += [entry.part.bound for entry in ledger.open.values() if entry.part.objective == objective]
            assert ledger.bounds()[objective] == min(bounds)
        assert ledger.closed_count == len(closed)
        assert sum(ledger.counts()) == len(ledger.open)


def test_a_bound_at_the_goal_is_not_above_it() -> None:
    ledger = Ledger([0.5], [-1.0])
    ledger.replace(ledger.checked(0, (Leaf(0.5),)))
    assert list(ledger.open) == [1]
    ledger.replace(ledger.checked(1, (Leaf(math.nextafter(0.5, 1)),)))
    assert not ledger.open
    assert ledger.bounds() == [math.nextafter(0.5, 1)]
    assert ledger.worst() == math.inf


def test_one_leaf_of_many_that_is_open_keeps_the_objective_open() -> None:
    ledger = Ledger([0.0], [-1.0])
    ledger.replace(ledger.checked(0, (Fork(NODE, 0, 0.0), Leaf(1.0), Fork(NODE, 1, 0.0), Leaf(-0.25), Leaf(2.0))))
    assert (ledger.counts(), ledger.bounds(), ledger.worst(), ledger.closed) == ([1], [-0.25], -0.25, [1.0])
    assert [split.at_least for split in ledger.open[2].part.splits] == [False, True]


@pytest.mark.parametrize("bound", [math.inf, math.nan])
def test_what_is_no_bound_is_refused(bound: float) -> None:
    ledger = Ledger([0.0], [-1.0])
    with pytest.raises(InvalidValueError, match="which is no bound"):
        ledger.checked(0, (Fork(NODE, 0, 0.0), Leaf(1.0), Leaf(bound)))
    assert list(ledger.open) == [0]


def test_a_part_is_replaced_once_and_by_a_whole_tree() -> None:
    ledger = Ledger([0.0], [-1.0])
    for wrong in ((), (Fork(NODE, 0, 0.0), Leaf(1.0)), (Leaf(1.0), Leaf(1.0))):
        with pytest.raises(InvalidValueError, match="tree of splits"):
            ledger.checked(0, wrong)
    ledger.replace(ledger.checked(0, (Fork(NODE, 0, 0.0), Leaf(-0.5), Leaf(-0.25))))
    for number in (0, 3, -1):
        with pytest.raises(InvalidValueError, match="is not open"):
            ledger.checked(number, (Leaf(1.0),))


def test_known_bounds_that_are_none_close_nothing() -> None:
    ledger = Ledger([0.0] * 4, [math.nan, math.inf, 1.0, 0.0])
    assert ledger.counts() == [1, 1, 0, 1]


def test_numbers_are_the_same_whatever_the_goals_are() -> None:
    """A tree of a part that is closed with these goals is skipped, and what comes after has its number all the same."""
    first, second = (Fork(NODE, 0, 0.0), Leaf(0.5), Leaf(-1.0)), (Fork(NODE, 1, 0.0), Leaf(3.0), Leaf(2.0))
    low, high = Ledger([0.0], [-9.0]), Ledger([1.0], [-9.0])
    for ledger in (low, high):
        ledger.replace(ledger.checked(0, first))
    assert (list(low.open), list(high.open)) == ([2], [1, 2])
    high.replace(high.checked(1, second))
    assert low.is_known(1)
    low.skip(second)
    for ledger in (low, high):
        ledger.replace(ledger.checked(2, (Leaf(-0.5),)))
        assert list(ledger.open) == [5]
    assert not low.is_known(6)
