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
from vertex_softmax.bounds.record import Record
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
    for wanted in (None, Record()):
        seen = Tree(monkeypatch)
        goals = torch.stack([best[0] + 1, best[1] - 0.5, best[2] - 0.3])
        grown(whole, MARGINS, QUICK, goals=goals, accept=lambda *_: False, record=wanted)
        frontier = seen.tree.frontier
        parts = [*frontier.open_parts(), *(wanted.leaves if wanted else ())]
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
                if part in frontier.open_parts():  # leaves share what they have in common
                    assert value.untyped_storage().data_ptr() not in seen_at
                    seen_at.add(value.untyped_storage().data_ptr())
        closed = [part for part in seen.leaves if frontier.is_closed(part)]
        assert all(not part.choice for part in closed)


# A search that is recorded, and goes on ------------------------------------------------------------------------------


def test_reopened_parts_are_open_whatever_their_bounds_were() -> None:
    frontier = Frontier([0.0, 0.0], [-1.0, -1.0])
    closed = [Part(0, bound=5.0), Part(0, bound=0.5)]
    frontier.replace(frontier.gather(2), closed)
    assert not len(frontier)
    frontier.reopen(closed[:1], [1.0, -math.inf])
    (part,) = frontier.open_parts()
    assert (part.objective, part.bound) == (0, -math.inf)
    assert not frontier.is_closed(part)
    assert frontier.goals == [1.0, -math.inf]
    frontier.replace([part], [dataclasses.replace(part, bound=1.5)])
    assert not frontier.open_parts()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_record_has_the_leaves_of_what_is_closed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bounds that the search found, in trees that cover; what they share is stored once."""
    whole = attention(name)
    best, _ = least(whole, MARGINS)
    seen, record = Tree(monkeypatch), Record()
    goals = torch.stack([best[0] + 1, best[1] - 0.5, best[2] - 0.3])
    out = grown(whole, MARGINS, QUICK, goals=goals, accept=lambda *_: False, record=record)
    closed = [part for part in seen.leaves if seen.tree.frontier.is_closed(part)]
    found = {(leaf.objective, leaf.splits): leaf.bound for leaf in record.leaves}
    assert found == {(part.objective, part.splits): part.bound for part in closed}
    assert len(found) == len(record.leaves)
    assert record.open == {k for k in range(len(goals)) if int(out.open[k])}
    assert record.boxes is seen.tree.boxes
    tensors = {
        (id(value), value.dtype, tuple(value.shape), value.numpy().tobytes())
        for leaf in record.leaves
        for of in leaf.choice.parameters.values()
        for value in of.values()
    }
    assert len({key[1:] for key in tensors}) == len(tensors)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_search_goes_on_from_leaves_that_must_be_higher(name: str) -> None:
    """What takes their place covers them and is above the new goal; where that cannot be, they stay."""
    whole = attention(name)
    best, _ = least(whole, MARGINS)
    record = Record()
    goal = best[1:2] - 0.5
    grown(whole, MARGINS[1:2], QUICK, goals=goal, accept=lambda *_: False, record=record)
    if record.open:
        pytest.skip("the search has not ended")
    before = list(record.leaves)
    assert not record.resume(before[:1], [float(best[1]) + 1.0], 10.0)
    assert record.leaves == before
    assert not record.open
    if record.resume(before[:1], [float(goal) + 0.05], 30.0):
        new = [leaf for leaf in record.leaves if not any(leaf is old for old in before)]
        assert new
        assert all(leaf.bound > float(goal) + 0.05 for leaf in new)
        first = before[0].splits
        assert all(leaf.splits[: len(first)] == first for leaf in new)
        assert [leaf for leaf in before if leaf is not before[0]] == record.leaves[: len(before) - 1]


def test_a_record_without_a_search_does_not_go_on() -> None:
    assert not Record().resume([], [], 1.0)
