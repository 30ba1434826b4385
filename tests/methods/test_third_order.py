"""`bab` to third order: no bound is beyond what is attained, it closes what `joint` leaves open, it ends in time."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.bounds.networks import Config, descend, input_box, transformer
from vertex_softmax.bounds.aims import Search
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods import bab as method
from vertex_softmax.methods import third_order
from vertex_softmax.methods.joint import joint
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.third_order import to_third_order
from vertex_softmax.sets.region import BoxRegion

CONFIG = Config(depth=2, heads=2, norm="pre", activation="gelu", width=8, tokens=3, seed=4)
OPTIONS = Options(ascent=None)


def asked(config: Config, radius: float, seed: int = 0) -> tuple[Graph, Question, Objective]:
    graph, (lower, upper) = transformer(config), input_box(config, 1, radius, seed)
    A = torch.eye(config.classes, dtype=torch.float64)
    A = torch.cat([A, -A, A[:1] - A[1:2]]).unsqueeze(0)
    return graph, Question.over(graph, BoxRegion(lower, upper)), Objective.dense(graph.output, A)


@pytest.mark.parametrize("radius", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_no_bound_is_beyond_what_is_attained(norm: str, radius: float) -> None:
    for seed in range(2):
        config = dataclasses.replace(CONFIG, norm=norm, seed=10 + seed)
        graph, question, objective = asked(config, radius, seed)
        found = to_third_order(question, objective, OPTIONS, None)
        assert found is not None
        box = question.given.box
        reached = descend(graph, graph.output, objective.coefficients.A, box.lower, box.upper, starts=4, steps=20)
        margins = torch.einsum("bsk,pbk->pbs", objective.coefficients.A, graph.values(reached)[graph.output])
        assert bool((found <= margins.amin(0) + 1e-12).all())


def test_it_is_above_joint_where_errors_multiply() -> None:
    _, question, objective = asked(CONFIG, 0.25)
    third = to_third_order(question, objective, OPTIONS, None)
    assert third is not None
    assert float((third - joint(question, objective, OPTIONS).lower).mean()) > 0


def test_bab_takes_it_and_closes_what_joint_leaves_open() -> None:
    """A goal between what `joint` and what third order knows is reached without any split."""
    _, question, objective = asked(CONFIG, 0.25)
    by_joint, third = joint(question, objective, OPTIONS).lower, to_third_order(question, objective, OPTIONS, None)
    assert third is not None
    k = int((third - by_joint).argmax())
    one = Objective.dense(objective.node, objective.coefficients.A[:, k : k + 1])
    goal = float(by_joint[0, k] + third[0, k]) / 2
    assert float(third[0, k]) > goal > float(by_joint[0, k])
    options = dataclasses.replace(OPTIONS, goal=goal, search=Search(seconds=60.0))
    found = method.searched(question, one, options)
    assert found.outcome is None
    assert float(found.bound.lower[0, 0]) == pytest.approx(float(third[0, k]))


def test_it_is_not_asked_where_it_does_not_pay() -> None:
    """Without norms, of several inputs, where it would not end in time or not fit into memory: None."""
    _, question, objective = asked(CONFIG, 0.1)
    assert to_third_order(question, objective, OPTIONS, 1e-9) is None
    small = dataclasses.replace(question, memory=Memory(total=1 << 16))
    assert to_third_order(small, objective, OPTIONS, None) is None
    _, plain, other = asked(dataclasses.replace(CONFIG, norm="none"), 0.1)
    assert to_third_order(plain, other, OPTIONS, None) is None
    lower, upper = input_box(CONFIG, 2, 0.1)
    two = Question.over(question.graph, BoxRegion(lower, upper))
    A = objective.coefficients.A.expand(2, -1, -1)
    assert to_third_order(two, Objective.dense(question.graph.output, A), OPTIONS, None) is None


def test_it_ends_when_the_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(third_order, "A_SECOND", 1e30)
    _, question, objective = asked(CONFIG, 0.1)
    assert to_third_order(question, objective, OPTIONS, 1e-9) is None


def test_the_question_asked_is_not_changed() -> None:
    _, question, objective = asked(CONFIG, 0.1)
    before = joint(question, objective, OPTIONS).lower
    to_third_order(question, objective, OPTIONS, None)
    assert not question.triples
    torch.testing.assert_close(joint(question, objective, OPTIONS).lower, before, rtol=0, atol=0)
