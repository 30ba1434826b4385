"""The open and the closed parts cover the set, and no bound of either is forgotten."""

from __future__ import annotations

import math

import torch

from vertex_softmax.bounds.candidates import Candidate
from vertex_softmax.bounds.frontier import Frontier, Part
from vertex_softmax.graph import build

NODE = build.source((2,))


def candidate() -> Candidate:
    return Candidate(NODE, 1, 0.5, slope=-2.0)


def part(objective: int, bound: float, *, splittable: bool = True) -> Part:
    return Part(objective, bound=bound, candidates=(candidate(),) if splittable else ())


def test_children_cover_their_parent() -> None:
    above, below = Part(0, bound=-1.0).children(candidate())
    assert [child.splits[-1].at_least for child in (above, below)] == [True, False]
    for child in (above, below):
        split = child.splits[-1]
        assert (split.node, split.place, split.point, split.size) == (NODE, 1, 0.5, 2.0)
        assert child.bound == -1.0
    (one, two), *_ = (child.children(candidate()) for child in (above, below))
    assert one.splits[0] is two.splits[0] is above.splits[0]


def test_what_is_known_above_the_goal_is_closed_and_all_else_open() -> None:
    frontier = Frontier([0.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 2.0, -math.inf])
    assert sorted((each.objective, each.bound) for each in frontier.open_parts()) == [
        (0, -1.0),
        (1, 0.0),  # at the goal is not above it
        (3, -math.inf),
    ]
    assert frontier.closed == [math.inf, math.inf, 2.0, math.inf]
    assert len(frontier) == 3


def test_the_worst_come_first_by_their_own_goals() -> None:
    frontier = Frontier([0.0, 10.0, 0.0], [-1.0, 5.0, -3.0])
    assert [each.objective for each in frontier.gather(3)] == [1, 2, 0]
    assert [each.objective for each in frontier.gather(1)] == [1]
    assert len(frontier) == 3  # they stay


def test_no_part_is_lost() -> None:
    frontier = Frontier([0.0, 0.0], [-2.0, -1.0])
    (worst,) = frontier.gather(1)
    made = [part(0, -0.5), part(0, 3.0), part(0, 0.0, splittable=False), part(0, 1.0)]
    frontier.replace([worst], made)
    assert {(each.objective, each.bound) for each in frontier.open_parts()} == {(0, -0.5), (0, 0.0), (1, -1.0)}
    assert [each.bound for each in frontier.exhausted] == [0.0]
    assert frontier.closed == [1.0, math.inf]  # the least of the closed
    assert len(frontier) == 2
    assert [each.bound for each in frontier.gather(5)] == [-1.0, -0.5]


def test_bytes_are_those_of_the_open() -> None:
    frontier = Frontier([0.0], [-1.0])
    assert frontier.bytes == 0
    assert torch.tensor(frontier.closed).isinf().all()
