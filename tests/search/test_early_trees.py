"""A tree over the boxes of crown before joint: it says nothing wrong, and what it leaves open is taken up again."""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, descend, input_box, samples, transformer
from tests.search.cascade_cases import QUICK, ask
from tests.search.small import case, conjunction, prop
from vertex_softmax.bounds.aims import Aim, Outcome, Stop, Watchers
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.crown import crown
from vertex_softmax.search import cascade as module
from vertex_softmax.sets.region import BoxRegion
from vertex_softmax.specs.property import Property

torch.set_num_threads(1)
CONFIG = Config(depth=2, tokens=2, seed=7)
"""Two attentions: crown has zonotopes, joint passes."""
OPTIONS = dataclasses.replace(QUICK, search=dataclasses.replace(QUICK.search, domains=2000, every=4))


@functools.cache
def small() -> tuple[Graph, list[tuple[float, float]], float, float]:
    """A network, a box of inputs, the least value of its first output there that was found, and what crown bounds."""
    graph = transformer(CONFIG)
    lower, upper = input_box(CONFIG, 1, 0.05)
    A = torch.eye(CONFIG.classes).double()[None, :1]
    points = torch.cat([samples(lower, upper, 500), descend(graph, graph.output, A, lower, upper, 30, 40)])[:, 0]
    question = Question.over(graph, BoxRegion(lower, upper))
    with torch.no_grad():
        bound = crown(question, Objective.dense(graph.output, A), OPTIONS)
    box = list(zip(lower.flatten().tolist(), upper.flatten().tolist(), strict=True))
    return graph, box, float(graph.evaluate(points)[:, 0].min()), float(bound.lower)


def open_by_crown() -> float:
    """A value that the first output does not reach, a little above what crown knows."""
    _, _, least, known = small()
    return known + 0.02 * (least - known)


def below(value: float) -> Property:
    """The first output is never at this value or below."""
    return prop(CONFIG.classes, case(small()[1], conjunction(({0: 1}, Fraction(value)))))


def stages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done, in its order."""
    done: list[str] = []
    for name in ("_bound", "_branch"):
        real = getattr(module._Cascade, name)

        def noted(self: module._Cascade, *given: object, name: str = name, real=real, **more: bool) -> object:
            done.append(
                " ".join([name, *(str(given[-1]) for _ in range(name == "_bound")), *(k for k in more if more[k])])
            )
            return real(self, *given, **more)

        monkeypatch.setattr(module._Cascade, name, noted)
    return done


def test_the_early_tree_decides_without_joint(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, spec, done = small()[0], below(open_by_crown()), stages(monkeypatch)
    answer = ask(graph, spec, options=OPTIONS)
    assert (answer.verdict, answer.stage) == ("verified", "bab")
    assert done == ["_bound crown", "_branch early"]
    done.clear()
    without = dataclasses.replace(OPTIONS, search=dataclasses.replace(OPTIONS.search, early=0.0))
    assert ask(graph, spec, options=without).verdict == "verified"
    assert done[:2] == ["_bound crown", "_bound joint"]


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_given_up_is_taken_up_again(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One conjunction without joint, several with it; nothing is proved that is not true."""

    def given_up(_question: object, _bound: object, aim: Aim, *_: object) -> Outcome:
        known: Tensor = aim.known
        return Outcome(known, torch.ones(len(known), dtype=torch.int64), domains=1, stopped=Stop.UNPROMISING)

    monkeypatch.setattr(module, "branch_early", given_up)
    graph, box, _, known = small()
    limits = [Fraction(known + (open_by_crown() - known) / (1 + k)) for k in range(count)]
    spec = prop(CONFIG.classes, case(box, *(conjunction(({0: 1}, limit)) for limit in limits)))
    done = stages(monkeypatch)
    assert ask(graph, spec, options=OPTIONS).verdict == "verified"
    rest = ["_branch rough"] if count == 1 else ["_bound joint", "_branch"]
    assert done == ["_bound crown", "_branch early", *rest]


def test_what_is_false_is_never_verified() -> None:
    graph, _, least, _ = small()
    for more in (1e-9, 1e-3, 0.05):
        assert ask(graph, below(least + more), options=OPTIONS).verdict in ("falsified", "unknown")


def test_who_needs_the_boxes_of_joint_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, done = small()[0], stages(monkeypatch)
    ask(graph, below(open_by_crown()), options=OPTIONS, method="joint")
    assert done[:2] == ["_bound crown", "_bound joint"]


def test_the_early_tree_is_recorded_where_it_decides() -> None:
    graph, spec = small()[0], below(open_by_crown())
    (found,) = ask(graph, spec, options=OPTIONS, recorded=True).searched
    assert {number for number, _ in found.excluded.values()} == {0}
    assert found.record.leaves
    assert not found.record.open


def test_what_the_early_tree_leaves_open_is_recorded_by_the_later_search_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The conjunction that the early tree closes has its leaves, the other those of the later search."""
    graph, box, _, known = small()
    limits = [Fraction(open_by_crown()), Fraction(known)]
    spec = prop(CONFIG.classes, case(box, *(conjunction(({0: 1}, limit)) for limit in limits)))
    real = module.branch_early

    def half(*given: object) -> Outcome:
        """Its leaves of the first objective cover the set; of the second something is open."""
        outcome = real(*given)
        record = next(each.record for each in given if isinstance(each, Watchers))
        record.open = {0}
        return dataclasses.replace(outcome, bound=torch.where(torch.arange(2) == 0, -torch.inf, outcome.bound))

    monkeypatch.setattr(module, "branch_early", half)
    answer = ask(graph, spec, options=OPTIONS, recorded=True)
    assert answer.verdict == "verified"
    early, later = answer.searched
    assert [{number for number, _ in each.excluded.values()} for each in (early, later)] == [{1}, {0}]
    assert {leaf.objective for leaf in early.record.leaves} == {1}
