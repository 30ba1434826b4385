"""Zonotopes to third order in the cascade: those of `certify`, before any split; what they do not show stays open."""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction

import pytest
import torch

import vertex_softmax as vx
from tests.bounds.networks import Config, descend, input_box, transformer
from tests.search.cascade_cases import BLIND, ask
from tests.search.small import case, conjunction, prop
from tests.search.test_branching import Here
from vertex_softmax.bounds.aims import Search
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods import third_order
from vertex_softmax.methods.options import Options
from vertex_softmax.search import cascade as module
from vertex_softmax.search.answers import Answer, Budget
from vertex_softmax.search.branching import question_over
from vertex_softmax.specs.property import Property

torch.set_num_threads(1)
CONFIG = Config(depth=2, heads=2, norm="pre", activation="gelu", width=8, tokens=3, seed=4)
RADIUS = 0.17
"""Here `joint` bounds the worst margin by −.7, third order by .67."""
OPTIONS = Options(ascent=None, search=Search(narrowing=0, halving=0, domains=2))
"""Hardly a tree: what is decided is decided before it."""


@functools.cache
def network() -> tuple[Graph, torch.Tensor, torch.Tensor, int]:
    """A network, both ends of a box (1, *shape), and the class of its centre."""
    graph, (lower, upper) = transformer(CONFIG), input_box(CONFIG, 1, RADIUS)
    lower, upper = lower.reshape(1, *graph.input.shape), upper.reshape(1, *graph.input.shape)
    return graph, lower, upper, int(graph.evaluate((lower + upper) / 2)[0].argmax())


def above(margin: float = 0.0) -> Property:
    """The class of the centre is above the others by more than this."""
    _, lower, upper, label = network()
    ends = list(zip(lower.flatten().tolist(), upper.flatten().tolist(), strict=True))
    others = [k for k in range(CONFIG.classes) if k != label]
    return prop(CONFIG.classes, case(ends, *(conjunction(({label: 1, k: -1}, Fraction(margin))) for k in others)))


def asked(margin: float = 0.0, **more: object) -> Answer:
    return ask(network()[0], above(margin), **{"options": OPTIONS, **more})


@functools.cache
def reached() -> float:
    """The least margin that descents have found."""
    graph, lower, upper, label = network()
    A = torch.eye(CONFIG.classes).double()[[label]] - torch.eye(CONFIG.classes).double()
    A = A[[k for k in range(CONFIG.classes) if k != label]].unsqueeze(0)
    points = descend(graph, graph.output, A, lower, upper, starts=6, steps=40)[:, 0]
    return float((graph.evaluate(points) @ A[0].mT).min())


def test_it_decides_before_any_split(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    answer = asked(report=lambda stage, _: said.append(stage))
    assert (answer.verdict, answer.stage, answer.domains) == ("verified", "bab", 0)
    assert 0 < answer.seconds["third order"] < answer.seconds["total"]
    assert said.index("joint") < said.index("third order") < said.index("bab")
    monkeypatch.setattr(module, "is_meant", lambda *_: False)
    without = asked()
    assert without.verdict == "unknown"
    assert "third order" not in without.seconds
    assert min(without.bounds[0]) < min(answer.bounds[0])


def test_certify_and_verify_have_the_same_bound() -> None:
    graph, lower, upper, label = network()
    found = vx.certify(graph, vx.Box(lower, upper), label, "bab", options=dataclasses.replace(OPTIONS, goal=0.0))
    assert found.verdict == "verified"
    assert float(found.worst[0]) == pytest.approx(min(asked().bounds[0]), abs=1e-9)
    for margin in (0.3, 0.6):  # and what is decided is the same
        options = dataclasses.replace(OPTIONS, goal=margin)
        mine = vx.certify(graph, vx.Box(lower, upper), label, "bab", options=options)
        assert asked(margin).verdict == "verified"
        assert float(mine.worst[0]) == pytest.approx(min(asked(margin).bounds[0]) + margin, abs=1e-9)


def test_what_is_false_is_never_verified() -> None:
    for more in (1e-9, 1e-3, 0.5):
        assert asked(reached() + more).verdict in ("falsified", "unknown")


def test_only_more_than_rounding_excludes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of third order has to clear the guard, as every other."""
    verdicts = []
    for bound in (1e-15, 1e-3, float("-inf")):
        rows = torch.full((1, CONFIG.classes - 1), bound).double()
        monkeypatch.setattr(module, "to_third_order", lambda *_, rows=rows: rows)
        verdicts.append(asked().verdict)
    assert verdicts == ["unknown", "verified", "unknown"]


def test_the_tree_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """What third order does not close is split as if nothing had been learnt."""
    known: list[torch.Tensor] = []
    real = module.branch

    def noted(*given: object, **more: bool) -> object:
        known.append(given[2].known.clone())
        return real(*given, **more)

    monkeypatch.setattr(module, "branch", noted)
    margin = (reached() + min(asked().bounds[0])) / 2
    with_ = asked(margin)
    monkeypatch.setattr(module, "is_meant", lambda *_: False)
    without = asked(margin)
    assert with_.verdict == without.verdict == "unknown"
    assert min(with_.bounds[0]) > min(without.bounds[0])
    assert torch.equal(*known)


def test_where_it_is_left_out_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(module, "to_third_order", never)
    answer = asked(recorded=True)
    assert answer.verdict == "unknown"
    assert "third order are left out, as they have no certificate" in answer.reason
    assert "third order are left out where workers share" in asked(branching=Here()).reason
    assert "third order" not in asked(method="joint").reason
    monkeypatch.setattr(third_order, "A_SECOND", 1.0)
    slow = asked(budget=Budget(seconds=60, first=0, second=0.1))
    assert "zonotopes to third order may take" in slow.reason
    assert "that are left for bounds" in slow.reason
    question = question_over(network()[0], above().cases[0], OPTIONS)
    little = dataclasses.replace(question, memory=Memory(total=1 << 16))
    assert "zonotopes to third order, beside all else, may need" in third_order.refusal(little, None)
    assert third_order.is_meant(little, OPTIONS)
    objective = Objective.dense(question.graph.output, torch.eye(CONFIG.classes).double().unsqueeze(0))
    assert third_order.to_third_order(little, objective, OPTIONS, None) is None


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory")])
def test_where_memory_is_exhausted_the_tree_still_grows(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, "to_third_order", exhausted)
    answer = asked(budget=BLIND)
    assert answer.verdict == "unknown"
    assert answer.domains > 0
    assert "third order ended as there was not enough memory" in answer.reason
