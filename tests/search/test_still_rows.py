"""Rows that cannot move in the cascade: the same answers with them and without, and nothing false is verified."""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, descend, samples, transformer
from tests.search.cascade_cases import QUICK, affine, ask, graph_of
from tests.search.small import case, conjunction, prop
from tests.search.test_branching import Here
from tests.slowly import few
from vertex_softmax.bounds import still_rows
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.ops.enclosed import Enclosed
from vertex_softmax.search import branching as module
from vertex_softmax.search import cascade
from vertex_softmax.specs.property import Property

torch.set_num_threads(1)
PLAIN = Config(tokens=5, depth=1, heads=2, width=4, mask="causal", activation="relu", pooling="mean")
"""One attention and no norm: its tree is over boxes by passes."""
CONFIGS = {
    "plain": PLAIN,
    "deep": dataclasses.replace(PLAIN, depth=2, pooling="max"),
    "norms": dataclasses.replace(PLAIN, depth=2, norm="pre", activation="gelu"),
}
OPTIONS = dataclasses.replace(QUICK, search=dataclasses.replace(QUICK.search, domains=200, every=4))


@functools.cache
def network(name: str, radius: float = 0.3) -> tuple[Graph, Tensor, Tensor, float]:
    """A network of which the last token alone moves, both ends of the box, and the least y₀ that was found there."""
    graph = simplify(transformer(CONFIGS[name]))
    centre = torch.randn(1, 5, 2, generator=torch.Generator().manual_seed(7)).double()
    wide = torch.zeros_like(centre)
    wide[:, -1] = radius
    lower, upper = centre - wide, centre + wide
    A = torch.eye(3).double()[None, :1]
    points = torch.cat([samples(lower, upper, 400), descend(graph, graph.output, A, lower, upper, 20, 40)])[:, 0]
    return graph, lower, upper, float(graph.evaluate(points)[:, 0].min())


def above(name: str, value: float) -> Property:
    """y₀ is never at this value or below."""
    _, lower, upper, _ = network(name)
    ends = list(zip(lower.flatten().tolist(), upper.flatten().tolist(), strict=True))
    return prop(3, case(ends, conjunction(({0: 1}, Fraction(value)))))


def left_out(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether there were intervals in place of rows in each question that was asked."""
    found: list[bool] = []
    real = Question.over

    def over(graph: Graph, *given: object, **more: object) -> Question:
        found.append(any(isinstance(node.op, Enclosed) for node in graph.nodes()))
        return real(graph, *given, **more)

    monkeypatch.setattr(module.Question, "over", over)
    return found


@pytest.mark.parametrize(
    ("name", "method"),
    few(
        [(name, method) for name in CONFIGS for method in ("ibp", "crown", "joint", "bab")],
        lambda name, method: name == "plain" and method in ("crown", "bab"),
    ),
)
def test_the_same_answers_with_and_without(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _, _, least = network(name)
    monkeypatch.setattr(still_rows, "LEAST_SHARE", 0.0)
    asked = left_out(monkeypatch)
    shares = (4.0, 0.5, 0.02)
    with_ = [ask(graph, above(name, least - share), method=method, options=OPTIONS) for share in shares]
    assert any(asked)
    monkeypatch.setattr(still_rows, "LEAST_SHARE", 2.0)
    asked.clear()
    without = [ask(graph, above(name, least - share), method=method, options=OPTIONS) for share in shares]
    assert asked
    assert not any(asked)
    assert [each.verdict for each in with_] == [each.verdict for each in without]
    for mine, theirs in zip(with_, without, strict=True):
        if method != "bab":  # whose bounds depend on where it ends
            assert mine.bounds[0][0] == pytest.approx(theirs.bounds[0][0], abs=1e-6)
    if method == "bab":
        assert with_[0].verdict == "verified"


@pytest.mark.parametrize("name", few(CONFIGS, lambda name: name == "plain"))
def test_what_is_false_is_never_verified(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: y₀ takes these values in the box. What breaks it was replayed on the network itself (`ask`)."""
    monkeypatch.setattr(still_rows, "LEAST_SHARE", 0.0)
    graph, _, _, least = network(name)
    for more in (0.0, 1e-9, 1e-4, 0.02):
        assert ask(graph, above(name, least + more), options=OPTIONS).verdict in ("falsified", "unknown")


def test_attacks_and_replays_are_of_the_network_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(still_rows, "LEAST_SHARE", 0.0)
    seen: list[Graph] = []
    real = cascade.paused_search
    monkeypatch.setattr(cascade, "paused_search", lambda graph, *a, **b: seen.append(graph) or real(graph, *a, **b))
    graph, _, _, least = network("plain")
    assert ask(graph, above("plain", least + 0.02), options=OPTIONS).verdict == "falsified"
    assert seen
    assert all(each is graph for each in seen)


def test_a_proof_and_workers_have_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(still_rows, "LEAST_SHARE", 0.0)
    graph, _, _, least = network("plain")
    asked = left_out(monkeypatch)
    answer = ask(graph, above("plain", least - 0.02), options=OPTIONS, recorded=True)
    ask(graph, above("plain", least - 0.02), options=OPTIONS, branching=Here())
    assert asked
    assert not any(asked)
    nodes = set(graph.nodes())
    assert all(set(each.question.graph.nodes()) == nodes for each in answer.searched)


def test_each_case_has_rows_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still in one box moves, or is elsewhere, in another."""
    monkeypatch.setattr(still_rows, "LEAST_SHARE", 0.0)
    graph, lower, upper, least = network("plain")
    first = above("plain", least - 0.02).cases[0]
    moved = [(a + 5, b + 5) for a, b in zip(lower.flatten().tolist(), upper.flatten().tolist(), strict=True)]
    there = float(graph.evaluate(lower + 5)[0, 0])
    for value, verdicts in ((there - 40, ("verified",)), (there + 1e-3, ("falsified", "unknown"))):
        spec = Property((first, case(moved, conjunction(({0: 1}, Fraction(value))))), first.lower.size, 3)
        assert ask(graph, spec, options=OPTIONS).verdict in verdicts


def test_an_output_that_cannot_move_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(still_rows, "LEAST_SHARE", 0.0)
    config = dataclasses.replace(PLAIN, pooling="token")  # the first token sees itself alone
    graph = simplify(transformer(config))
    _, lower, upper, _ = network("plain")
    ends = list(zip(lower.flatten().tolist(), upper.flatten().tolist(), strict=True))
    value = float(graph.evaluate(lower)[0, 0])
    for more, verdict in ((-1e-6, "verified"), (1e-6, "falsified")):
        spec = prop(3, case(ends, conjunction(({0: 1}, Fraction(value + more)))))
        assert ask(graph, spec, options=OPTIONS).verdict == verdict


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory")])
def test_without_memory_for_it_all_rows_are_bounded(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(module, "without_still_rows", exhausted)
    answer = ask(graph_of(affine([[1, -2]], [0.25])), prop(1, case([("0", "1")] * 2, conjunction(({0: 1}, -2)))))
    assert answer.verdict == "verified"
