"""When branch and bound attacks and from where: within its share, from minimisers, for the right objective."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.search.cascade_cases import affine, bent, graph_of
from vertex_softmax.bounds.branch_and_bound import Aim, Attack, Outcome, Search, Stop, Watchers, branch_and_bound
from vertex_softmax.bounds.frontier import Frontier, Part
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.tree_attack import LEAST, STARTS, TreeAttack
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.region import BoxRegion

torch.set_num_threads(1)
ALWAYS = Search(attack=1.0, domains=40)


def grown(
    graph: Graph, A: Tensor, goals: Tensor, search: Search, attack: Attack | None = None, **aim: Tensor
) -> Outcome:
    one = torch.ones(1, *graph.input.shape).double()
    question = Question.over(graph, BoxRegion(-one, one))
    with torch.no_grad():
        boxes = tightened_boxes(question, Options())
    watchers = Watchers(accept=lambda *_: False, attack=attack)
    aimed = Aim(A.double(), goals.double(), **aim)
    return branch_and_bound(question, boxes, aimed, Rules(attention=RowRule.AFFINE, pieces=2), search, watchers)


def test_the_share_is_kept() -> None:
    attack = TreeAttack(0.1)
    assert not attack.is_due()
    assert not attack.is_due(last=True)
    attack.note_work(9 * LEAST - attack.worked)
    assert not attack.is_due()
    assert attack.is_due(last=True)
    attack.note_work(11 * LEAST - attack.worked)
    assert attack.is_due()
    attack.note(3 * LEAST)  # longer than it should have been
    assert attack.allowance < 0
    assert not attack.is_due(last=True)
    attack.note_work(50 * LEAST - attack.worked)
    assert not attack.is_due()  # another one may take as long again
    attack.note_work(60.5 * LEAST - attack.worked)
    assert attack.is_due()


@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(InvalidValueError, match="share"):
        Search(attack=share)


def test_objectives_take_turns_and_their_worst_parts_come_first() -> None:
    frontier = Frontier([0.0, 1.0, 0.0], [-math.inf] * 3)
    frontier.replace(frontier.open_parts(), [Part(0, bound=-1.0), Part(1, bound=-2.0), Part(0, bound=-3.0)])
    frontier.replace((), [Part(2, bound=1.0)])  # closed
    attack = TreeAttack(1.0)
    seen = [[(part.objective, part.bound) for part in attack.worst(frontier)] for _ in range(3)]
    assert seen == [[(0, -3.0), (0, -1.0)], [(1, -2.0)], [(0, -3.0), (0, -1.0)]]  # −3 and −2 − 1: equal, the first
    assert TreeAttack(1.0).worst(Frontier([0.0], [1.0])) == []


def test_no_input_starts_twice_for_an_objective() -> None:
    attack, points = TreeAttack(1.0), torch.arange(12.0).reshape(6, 2)
    points[3] = points[1]
    assert attack.fresh(points, [0] * 6) == [0, 1, 2, 4, 5]
    assert attack.fresh(points, [0, 0, 1, 1, 1, 0]) == [2, 3, 4]
    many = torch.rand(4 * STARTS, 3)
    assert attack.fresh(many, [0] * len(many)) == list(range(STARTS))
    assert attack.fresh(many, [0] * len(many)) == list(range(STARTS, 2 * STARTS))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_each_objective_is_attacked_from_its_own_minimiser(order: list[int]) -> None:
    """Linear: the bound is least at the corner against the row's signs. The objective that is known takes no turn."""
    W = torch.tensor([[1.0, -2.0, 3.0], [-1.0, -1.0, 2.0], [2.0, 1.0, 1.0]]).double()
    graph = graph_of(affine(W.tolist(), [0, 0, 0]))
    A, known = torch.eye(3)[order], torch.tensor([-math.inf, 10.0, -math.inf]).double()
    calls: list[tuple[Tensor, list[int]]] = []

    def attack(points: Tensor, objectives: Sequence[int], until: float) -> None:
        calls.append((points.clone(), list(objectives)))

    for first in (0, 2):  # the one whose turn it is, by how far it is below its goal
        goals = torch.tensor([9.0, 9.0, 9.0]).double()
        goals[first] = 20.0
        calls.clear()
        outcome = grown(graph, A, goals, ALWAYS, attack, known=known)
        assert outcome.stopped is Stop.EXHAUSTED
        (points, objectives), *_ = calls
        assert objectives == [first]
        assert torch.equal(points, -W[order[first]].sign()[None])


def test_inputs_belong_to_the_parts_they_are_from() -> None:
    """Every input that starts a descent for an objective minimises a linear bound: its numbers are ends of the box."""
    graph, seen = bent(), set[int]()

    def attack(points: Tensor, objectives: Sequence[int], until: float) -> None:
        assert points.shape == (len(objectives), 2)
        assert bool((points.abs() <= 1).all())
        seen.update(objectives)

    grown(graph, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([-0.12, -0.24]), ALWAYS, attack)
    assert seen == {0, 1}


def test_what_is_found_ends_the_search() -> None:
    graph, point = bent(), torch.tensor([0.0, 0.0]).double()
    outcome = grown(graph, torch.eye(2), torch.tensor([-0.12, -0.24]), ALWAYS, lambda *_: (point, 1))
    assert outcome.stopped is Stop.WITNESS
    assert outcome.witness is point
    assert outcome.broken == 1


@pytest.mark.parametrize("goal", [-0.126, -0.12])
def test_bounds_do_not_depend_on_attacks(goal: float) -> None:
    graph, A, goals = bent(), torch.eye(2), torch.tensor([goal, -0.26])
    called: list[int] = []

    def attack(points: Tensor, objectives: Sequence[int], until: float) -> None:
        called.extend(objectives)

    with_, without = (grown(graph, A, goals, dataclasses.replace(ALWAYS, attack=share), attack) for share in (1.0, 0.0))
    assert called
    assert torch.equal(with_.bound, without.bound)
    assert (with_.domains, with_.stopped) == (without.domains, without.stopped)
    called.clear()
    grown(graph, A, goals, dataclasses.replace(ALWAYS, attack=0.0), attack)
    assert called == []
