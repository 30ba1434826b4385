"""The open parts of a search: they cover the set with the closed ones, and hold nothing of the batch they were in."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
import torch

from tests.bounds.branching_cases import CONFIGS, MARGINS, QUICK, Tree, attention, grown, least
from vertex_softmax.bounds.candidates import Candidate
from vertex_softmax.bounds.choice import Choice, Multipliers
from vertex_softmax.bounds.frontier import Frontier, Part
from vertex_softmax.graph import build

torch.set_num_threads(1)
NODE = build.source((2,))


def holds(part: Part, point: tuple[float, float]) -> bool:
    return all(point[s.place] >= s.point if s.at_least else point[s.place] <= s.point for s in part.splits)


def candidate(rng: random.Random) -> Candidate:
    return Candidate(NODE, rng.randrange(2), rng.random(), rng.choice([0.0, -2.0, 0.5, math.inf]))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_gathered_and_replaced_covers(seed: int) -> None:
    """Every point of the square is in an open part or in one that was closed, of each objective, after every step."""
    rng = random.Random(seed)
    goals = [0.0, 1.0, -1.0]
    frontier = Frontier(goals, [-math.inf, -5.0, -3.0])
    points = [(rng.random(), rng.random()) for _ in range(200)]
    closed: list[Part] = []
    first = frontier.gather(3)
    roots = [dataclasses.replace(part, bound=rng.uniform(-3, -2), candidates=(candidate(rng),)) for part in first]
    frontier.replace(first, roots)
    for _ in range(15):
        count = rng.randrange(1, 6)
        short = sorted(frontier.shortfall(p) for p in frontier.open_parts() if p.candidates)
        taken = frontier.gather(count)
        assert [frontier.shortfall(part) for part in taken] == short[:count]  # the worst, the worst first
        assert {id(part) for part in taken} <= {id(part) for part in frontier.open_parts()}  # and they stay
        made = []
        for part in taken:
            for child in part.children(part.candidates[0]):
                bound = part.bound + rng.uniform(0, 2)
                more = () if rng.random() < 0.2 else (candidate(rng),)
                made.append(dataclasses.replace(child, bound=bound, candidates=more))
        before, size = frontier.open_parts(), len(frontier)
        frontier.replace(taken, made)
        closed += [part for part in made if frontier.is_closed(part)]
        still = [part for part in made if not frontier.is_closed(part)]
        now = frontier.open_parts()
        gone = {id(part) for part in taken}
        assert {id(p) for p in now} == {id(p) for p in before if id(p) not in gone} | {id(p) for p in still}
        assert len(frontier) == size - len(taken) + sum(bool(part.candidates) for part in still)
        assert all(not part.candidates for part in frontier.exhausted)
        for k, goal in enumerate(goals):
            mine = [part for part in (*now, *closed) if part.objective == k]
            assert all(any(holds(part, point) for part in mine) for point in points)
            shut = [part.bound for part in closed if part.objective == k]
            assert frontier.closed[k] == min(shut, default=math.inf)
            assert all(bound > goal for bound in shut)


def test_what_is_known_to_be_above_its_goal_is_closed_from_the_start() -> None:
    frontier = Frontier([0.0, 0.0, 0.0], [1.0, 0.0, -1.0])
    assert frontier.closed == [1.0, math.inf, math.inf]
    assert [part.objective for part in frontier.gather(9)] == [2, 1]
    assert len(frontier) == 2


def test_the_children_of_a_part_share_the_point_and_nothing_else() -> None:
    part = Part(1, bound=-2.0)
    for slope, size in ((3.0, 3.0), (-0.5, 0.5), (0.0, 1.0), (math.inf, 1.0), (math.nan, 1.0)):
        above, below = part.children(Candidate(NODE, 1, 0.25, slope))
        assert [child.splits[-1].at_least for child in (above, below)] == [True, False]
        for child in (above, below):
            assert (child.objective, child.bound) == (1, -2.0)
            (split,) = child.splits
            assert (split.node, split.place, split.point, split.size, split.inner) == (NODE, 1, 0.25, size, False)
            assert child.target == slope or math.isnan(slope)
    inner = part.children(Candidate(NODE, 1, 0.25, 3.0, inner=True))
    assert all(child.target is None and child.splits[-1].inner for child in inner)
    assert part.splits == ()


def test_bytes_are_those_of_the_open_parts() -> None:
    some = Choice({NODE: {"a": torch.zeros(1, 1, 3)}}, {NODE: Multipliers(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))})
    frontier = Frontier([0.0], [-1.0])
    (root,) = frontier.gather(1)
    where = (Candidate(NODE, 0, 0.5, 1.0),)
    frontier.replace([root], [dataclasses.replace(root, choice=some, candidates=each) for each in (where, where, ())])
    assert frontier.bytes == 3 * 4 * (3 + 2 + 2)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_part_keeps_the_batch_alive_that_it_was_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter of an open part and of a leaf has a storage of its own size; a closed part has none."""
    whole = attention(name)
    best, _ = least(whole, MARGINS)
    for wanted in (None, []):
        seen = Tree(monkeypatch)
        goals = torch.stack([best[0] + 1, best[1] - 0.5, best[2] - 0.3])
        grown(whole, MARGINS, QUICK, goals=goals, accept=lambda *_: False, leaves=wanted)
        frontier = seen.tree.frontier
        parts = [*frontier.open_parts(), *(wanted or ())]
        assert any(part.splits for part in parts)
        assert frontier.bytes == sum(part.choice.bytes for part in frontier.open_parts())
        seen_at: set[int] = set()
        for part in parts:
            assert part.choice
            values = [value for of in part.choice.parameters.values() for value in of.values()]
            values += [side for sides in part.choice.multipliers.values() for side in sides]
            for value in values:
                assert value.shape[:2] == (1, 1)
                assert value.dtype == torch.float32
                assert value.untyped_storage().nbytes() == value.nbytes
                assert value.untyped_storage().data_ptr() not in seen_at
                seen_at.add(value.untyped_storage().data_ptr())
        closed = [part for part in seen.leaves if frontier.is_closed(part)]
        assert all(not part.choice for part in closed)
