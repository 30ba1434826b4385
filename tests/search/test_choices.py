"""Branching on choices of words: verdicts are those of enumeration."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, transformer
from tests.sets.choice_cases import choice_region, every
from tests.slowly import few
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.search import choices
from vertex_softmax.search.choices import Ending, decide

COUNTS = (3, 1, 4, 2, 3)
FOREVER = Search(seconds=None)


def shifted(graph: Graph, by: Tensor) -> Graph:
    """With a constant added to the output."""
    return dataclasses.replace(graph, output=build.add(graph.output, build.constant(by), "shifted"))


def margins(graph: Graph, points: Tensor, C: Tensor) -> Tensor:
    return graph.evaluate(points) @ C.mT


@pytest.mark.parametrize(
    ("norm", "few", "seeds"),
    few(
        [("none", 1, 7), ("post", 32, 3), *itertools.product(["none", "post"], [1, 4, 32], [12])],
        lambda _norm, _few, seeds: seeds < 12,
    ),
)
def test_verdicts_are_those_of_enumeration(norm: str, few: int, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "FEW", few)
    monkeypatch.setattr(choices, "ROUNDS", 0)
    monkeypatch.setattr(choices, "STEPS", 0)
    C = torch.tensor([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]], dtype=torch.float64)
    stops, parts = [], 0
    for seed in range(seeds if norm == "none" else min(seeds, 4)):
        config = Config(depth=1 + seed % 2, heads=1 + seed % 2, tokens=5, inputs=3, norm=norm, gain=2.0, seed=seed)
        graph = transformer(config)
        region = choice_region((5, 3), (COUNTS,), seed, apart=0.7)
        least = margins(graph, every(region), C).amin()
        for away in (-0.3, -0.01, 0.01, 0.3):
            moved = shifted(graph, torch.tensor([away - float(least), 0.0, 0.0], dtype=torch.float64))
            found = decide(moved, region, C, FOREVER)
            exact = margins(moved, every(region), C)
            stops.append(found.stopped)
            parts = max(parts, found.parts)
            assert found.stopped is (Ending.DONE if away > 0 else Ending.WITNESS)
            if found.stopped is Ending.DONE:
                assert bool((found.lower > 0).all() & (found.lower <= exact.amin(0) + 1e-9).all())
            else:
                assert found.witness is not None
                assert bool((found.witness == every(region)).flatten(1).all(1).any())
                assert float(margins(moved, found.witness[None], C).min()) < 0
    assert set(stops) == {Ending.DONE, Ending.WITNESS}
    assert parts > (10 if few == 1 else 2)  # some were hard


def test_the_attack_finds_most_counterexamples_by_itself() -> None:
    found = 0
    for seed in range(10):
        graph = transformer(Config(tokens=5, inputs=3, seed=seed))
        region = choice_region((5, 3), (COUNTS,), seed)
        C = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
        least = margins(graph, every(region), C).amin()
        moved = shifted(graph, torch.tensor([-0.02 - float(least), 0.0, 0.0], dtype=torch.float64))
        outcome = decide(moved, region, C, FOREVER)
        assert outcome.stopped is Ending.WITNESS
        found += outcome.parts == 0
    assert found >= 8


def test_a_witness_that_is_not_accepted_leaves_doubt() -> None:
    graph = transformer(Config(tokens=5, inputs=3, seed=1))
    region = choice_region((5, 3), (COUNTS,), 1)
    C = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    values = margins(graph, every(region), C)
    middle = float(values.quantile(0.1))
    moved = shifted(graph, torch.tensor([-middle, 0.0, 0.0], dtype=torch.float64))
    asked = []
    outcome = decide(moved, region, C, FOREVER, lambda point: bool(asked.append(point)))
    assert outcome.stopped is Ending.DOUBT
    assert outcome.witness is None
    assert asked
    assert float(outcome.lower) <= float(values.min()) - middle + 1e-9


def test_margins_of_exactly_0_are_not_verified() -> None:
    """A classifier whose two logits are the same: the margin is 0 everywhere."""
    graph = transformer(Config(tokens=5, inputs=3, seed=2))
    region = choice_region((5, 3), (COUNTS,), 2)
    C = torch.zeros(1, 3, dtype=torch.float64)
    outcome = decide(graph, region, C, FOREVER)
    assert outcome.stopped is Ending.DOUBT
    assert float(outcome.lower) <= 0


def test_limits_end_the_search_and_bounds_hold_all_the_same() -> None:
    graph = transformer(Config(depth=2, tokens=5, inputs=3, gain=3.0, seed=3))
    region = choice_region((5, 3), ((6, 6, 6, 6, 6),), 3, apart=1.5)
    C = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    exact = min(float(margins(graph, some, C).min()) for some in every(region).split(4096))
    moved = shifted(graph, torch.tensor([0.05 - exact, 0.0, 0.0], dtype=torch.float64))
    for search in (Search(seconds=0.0), Search(seconds=0.3), Search(seconds=None, domains=1)):
        outcome = decide(moved, region, C, search)
        assert outcome.stopped in (Ending.SECONDS, Ending.DOMAINS, Ending.DONE)
        assert float(outcome.lower) <= 0.05 + 1e-9
    assert decide(moved, region, C, FOREVER).stopped is Ending.DONE


def test_nan_is_never_verified() -> None:
    graph = transformer(Config(tokens=5, inputs=3, seed=4))
    region = choice_region((5, 3), (COUNTS,), 4)
    wide = dataclasses.replace(region, values=region.values * 1e200)
    outcome = decide(graph, wide, torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64), Search(seconds=5.0))
    assert outcome.stopped is not Ending.DONE
