"""Branch and bound on given parts: several processes' worth of it, in turns, agrees with one, and with the truth."""

from __future__ import annotations

import dataclasses
import math
import random
import time

import pytest
import torch
from torch import Tensor

from tests.bounds.branching_cases import (
    CONFIGS,
    MARGINS,
    QUICK,
    TOLERANCE,
    attention,
    grown,
    held_by,
    least,
    slack,
    truth,
)
from tests.bounds.checks import Ready
from vertex_softmax.bounds import subtrees
from vertex_softmax.bounds.branch_and_bound import Accept, Aim, Search, Watchers
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.split_trees import leaves_of
from vertex_softmax.bounds.subtrees import GivenPart, Subtrees
from vertex_softmax.foundation.errors import InternalError, InvalidValueError
from vertex_softmax.ops.rules import RowRule, Rules

torch.set_num_threads(1)
MANY = dataclasses.replace(QUICK, domains=10_000)


def made(whole: Ready, A: Tensor, goals: Tensor, search: Search = MANY, accept: Accept | None = None) -> Subtrees:
    aim = Aim(A, goals, torch.full_like(goals, -torch.inf))
    return Subtrees(
        whole.question, whole.boxes, aim, Rules(attention=RowRule.AFFINE, pieces=2), search, Watchers(accept)
    )


class Shared:
    """A search that several of these share, in turns: who gets which parts is drawn."""

    def __init__(self, whole: Ready, A: Tensor, goals: Tensor, workers: int = 3, search: Search = MANY) -> None:
        self.goals = goals.tolist()
        self.workers = [made(whole, A, goals, search, lambda *_: False) for _ in range(workers)]
        for worker in self.workers:
            worker.prepare(range(len(A)))
        self.open = [GivenPart(k) for k in range(len(A))]
        self.closed: list[GivenPart] = []
        self.exhausted: list[GivenPart] = []
        self.domains = 0

    def run(self, seed: int, most: int) -> bool:
        """Whether all was closed before so many parts were bounded."""
        rng = random.Random(seed)
        while self.open and self.domains < most:
            rng.shuffle(self.open)
            share = rng.randint(1, len(self.open))
            parts, self.open = self.open[:share], self.open[share:]
            before = self.domains
            grown_ = rng.choice(self.workers).grow_parts(parts, 0.0, rng.choice([None, 3]))
            self.domains += max(1, grown_.domains)
            assert self.domains > before
            for part, tree in zip(parts, grown_.trees, strict=True):
                for splits, leaf in leaves_of(tree):
                    assert leaf.bound >= part.bound
                    made_ = GivenPart(part.objective, (*part.splits, *splits), leaf.bound, leaf.multipliers)
                    done = leaf.bound > self.goals[part.objective]
                    (self.closed if done else self.exhausted if leaf.exhausted else self.open).append(made_)
        return not self.open and not self.exhausted

    @property
    def parts(self) -> list[GivenPart]:
        return [*self.open, *self.closed, *self.exhausted]


@pytest.mark.parametrize("seed", range(9))
def test_no_wrong_answer_about_tiny_relu_networks(seed: int) -> None:
    whole, A, least_ = truth(seed)
    for margin in (0.3, 1e-3, -1e-9, -1e-3, -0.3):
        goals = torch.tensor([least_ - margin], dtype=torch.float64)
        shared = Shared(whole, A, goals)
        done = shared.run(seed, 300)
        assert min(part.bound for part in shared.parts) <= least_ + TOLERANCE * (1 + abs(least_))
        if margin < 0:
            assert not done, "said of what is not so"
        alone = grown(whole, A, dataclasses.replace(MANY, domains=300), goals=goals, accept=lambda *_: False)
        if margin > 0.1:
            assert done == (alone.stopped == "done")


@pytest.mark.parametrize("name", CONFIGS)
def test_parts_cover_the_set_and_no_bound_is_above_a_value(name: str) -> None:
    """Two objectives that are open, and one that is closed at once; parts that go from one to the other and back."""
    whole = attention(name)
    best, x = least(whole, MARGINS)
    values = whole.graph.values(x)
    at = values[whole.graph.output] @ MARGINS.mT
    goals = torch.stack([best[0] + 1, best[1] - 0.02, best[2] - 30])
    shared = Shared(whole, MARGINS, goals)
    assert not shared.run(3, 60)
    for k in range(3):
        parts = [part for part in shared.parts if part.objective == k]
        where = torch.stack([held_by(Part(k, part.splits), values) for part in parts])
        assert where.any(0).all(), "a point of the set is in no part"
        bounds = torch.tensor([part.bound for part in parts], dtype=torch.float64)
        over = torch.where(where, bounds[:, None], -torch.inf).amax(0) - at[:, k]
        assert (over <= slack(at[:, k])).all(), "a part's bound is above a value in it"
    assert [part.splits for part in shared.parts if part.objective == 2] == [()]


def test_a_part_that_another_made_has_its_bound_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the multipliers that came with it nothing has to be optimised; without them it is."""
    whole, A, least_ = truth(6)
    goals = torch.tensor([least_], dtype=torch.float64)
    rare = dataclasses.replace(MANY, every=100)  # parts have the whole set's parameters, and multipliers of their own
    one = made(whole, A, goals, rare, lambda *_: False)
    parts = [GivenPart(0)]
    for _ in range(3):
        trees = one.grow_parts(parts, 0.0, 1).trees
        parts = [
            GivenPart(0, (*part.splits, *splits), leaf.bound, leaf.multipliers)
            for part, tree in zip(parts, trees, strict=True)
            for splits, leaf in leaves_of(tree)
        ]
    assert any(value > 0 for part in parts for value in part.multipliers)
    ascended: list[int] = []
    real = Subtrees._ascended
    monkeypatch.setattr(
        Subtrees, "_ascended", lambda self, parts, ascent: (ascended.append(len(parts)), real(self, parts, ascent))[1]
    )
    for known in (True, False):
        other = made(whole, A, goals, rare, lambda *_: False)
        other.prepare([0])
        given = parts if known else [dataclasses.replace(part, multipliers=()) for part in parts]
        ascended.clear()
        trees = other.grow_parts(given, 0.0, 1).trees
        assert (not ascended) is known
        for part, tree in zip(given, trees, strict=True):
            assert min(leaf.bound for _, leaf in leaves_of(tree)) >= part.bound


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_multipliers_that_are_none_cost_bounds_and_nothing_else(bad: float) -> None:
    whole, A, least_ = truth(1)
    worker = made(whole, A, torch.tensor([least_ - 0.01], dtype=torch.float64), accept=lambda *_: False)
    (tree,) = worker.grow_parts([GivenPart(0)], 0.0).trees
    parts = [GivenPart(0, splits, -9.0, (bad,) * len(splits)) for splits, _ in leaves_of(tree)]
    fresh = made(whole, A, torch.tensor([least_ - 0.01], dtype=torch.float64), accept=lambda *_: False)
    trees = fresh.grow_parts(parts, 0.0).trees
    assert min(leaf.bound for each in trees for _, leaf in leaves_of(each)) <= least_ + TOLERANCE


def test_what_was_not_reached_comes_back_as_it_was() -> None:
    whole, A, least_ = truth(0)
    goals = torch.tensor([least_ + 0.5], dtype=torch.float64)
    worker = made(whole, A, goals, accept=lambda *_: False)
    (tree,) = worker.grow_parts([GivenPart(0)], 0.0, 1).trees
    parts = [GivenPart(0, splits, leaf.bound, leaf.multipliers) for splits, leaf in leaves_of(tree)]
    worker.limit(time.perf_counter() - 1)  # every pass raises
    again = worker.grow_parts(parts, 9.0)
    assert again.domains == 0
    assert [[(splits, leaf.bound) for splits, leaf in leaves_of(each)] for each in again.trees] == [
        [((), part.bound)] for part in parts
    ]
    worker.limit(None)
    assert worker.grow_parts(parts, 0.0).domains > 0


def test_parts_are_forgotten_when_memory_is_short_and_made_again() -> None:
    whole, A, least_ = truth(2)
    goals = torch.tensor([least_ - 0.05], dtype=torch.float64)
    ample = Shared(whole, A, goals, workers=1)
    short = Shared(whole, A, goals, workers=1, search=dataclasses.replace(MANY, memory=1))
    assert ample.run(5, 300) == short.run(5, 300)
    assert not short.workers[0].kept


def test_an_input_that_is_accepted_ends_the_work() -> None:
    whole, A, least_ = truth(0)
    goals = torch.tensor([least_ + 0.3], dtype=torch.float64)
    worker = made(whole, A, goals)
    part, found = GivenPart(0), None
    for _ in range(20):
        found = worker.grow_parts([part], 0.0)
        if found.witness is not None:
            break
    assert found is not None
    assert found.witness is not None
    assert float((whole.graph.evaluate(found.witness[None]) @ A.mT).min()) <= float(goals[0])
    assert worker.grow_parts([part], 0.0).trees  # and it can go on


def test_objectives_are_prepared_once_and_all_at_once() -> None:
    whole = attention("relu")
    best, _ = least(whole, MARGINS)
    worker = made(whole, MARGINS, best + 1, accept=lambda *_: False)
    worker.prepare([0, 1])
    worker.prepare([1])
    with pytest.raises(InvalidValueError, match=r"objectives \[2\] are closed already, or were not named"):
        worker.grow_parts([GivenPart(2)], 0.0)


def test_a_part_that_is_lost_on_the_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever drops a part inside of branch and bound: the answer is an error, and no tree."""
    whole, A, least_ = truth(0)
    real = subtrees.Subtrees._split
    monkeypatch.setattr(subtrees.Subtrees, "_split", lambda self, parts: real(self, parts)[:-1])
    worker = made(whole, A, torch.tensor([least_ + 0.5], dtype=torch.float64), accept=lambda *_: False)
    with pytest.raises(InternalError, match="do not cover it"):
        worker.grow_parts([GivenPart(0)], 0.5)


def test_an_overflow_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, A, least_ = truth(0)
    worker = made(whole, A, torch.tensor([least_ - 0.1], dtype=torch.float64), accept=lambda *_: False)
    worker.prepare([0])
    worker.wholes[0] = dataclasses.replace(worker.wholes[0], bound=math.inf)
    (tree,) = worker.grow_parts([GivenPart(0, bound=-5.0)], 0.0).trees
    assert [(leaf.bound, leaf.exhausted) for _, leaf in leaves_of(tree)] == [(-5.0, True)]
