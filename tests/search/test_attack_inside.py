"""Descents from parts of branch and bound: they find what attacks before miss, and change no bound."""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import pytest
import torch

from tests.search.cascade_cases import BLIND, QUICK, VALLEY, WHOLE, ask, bent, valley
from tests.search.small import case, conjunction, prop
from vertex_softmax.bounds import tree_attack
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.options import Options
from vertex_softmax.search.answers import Answer, Budget
from vertex_softmax.search.cascade import verify
from vertex_softmax.search.falsify import Found, PausedSearch, paused_search
from vertex_softmax.search.replay import Replay
from vertex_softmax.specs.property import Conjunction, Inequality, Property

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time has to be saved up for an attack."""
    monkeypatch.setattr(tree_attack, "LEAST", 0.0)


def valley_spec(limit: float = 0.0, *, strict: bool = False) -> Property:
    row = conjunction(({0: 1}, limit)).inequalities[0]
    return prop(1, case([(-1, 1)] * VALLEY, Conjunction((Inequality(row.coefficients, row.limit, strict=strict),))))


def asked(spec: Property, attack: float, seconds: float = 60.0, **more: object) -> Answer:
    options = Options(search=Search(attack=attack, domains=600, halving=0.0))
    return ask(valley()[0], spec, budget=Budget(seconds=seconds, first=0.005), options=options, **more)


def test_a_counterexample_that_attacks_before_miss_is_found_inside() -> None:
    """The attack before bounds has 0.3 seconds, and the attack at the end 15 % of the rest; slopes lead both astray."""
    graph, c = valley()
    assert float(graph.evaluate(c[None])) < -0.6
    assert float(graph.evaluate(c.sign()[None])) > 0.8
    answer = asked(valley_spec(), attack=1.0)
    assert (answer.verdict, answer.stage) == ("falsified", "attack inside")
    found = torch.from_numpy(answer.counterexample.x).reshape(VALLEY)
    assert bool((found.sign() == c.sign()).all())
    assert answer.seconds["attack inside"] > 0


@pytest.mark.slow
def test_without_it_the_counterexample_is_missed() -> None:
    answer = asked(valley_spec(), attack=0.0, seconds=10)
    assert answer.verdict in ("unknown", "timeout")
    assert "attack inside" not in answer.seconds
    assert answer.nearest > 0


def test_what_no_replay_confirms_is_no_counterexample() -> None:
    """Whatever descents reach: a replay that refuses has the last word, and bounds hold."""
    graph, c = valley()
    shown: list[np.ndarray] = []

    def refuses(x: np.ndarray) -> None:
        shown.append(x)

    options = Options(search=Search(attack=1.0, domains=100, halving=0.0))
    answer = verify(graph, valley_spec(), refuses, budget=BLIND, options=options)
    assert answer.verdict == "unknown"
    assert answer.counterexample is None
    assert answer.nearest < 0  # it was there
    assert shown
    assert all(np.abs(x).max() <= 1 for x in shown)
    assert answer.bounds[0][0] <= float(graph.evaluate(c[None]))


@pytest.mark.parametrize(("strict", "verdict"), [(False, "falsified"), (True, "unknown")])
def test_a_tie_counts_only_where_the_property_says_so(strict: bool, verdict: str) -> None:
    """The least y₀ of `bent` is −1/8 exactly, and at one input: y₀ ≤ −1/8 is true there, y₀ < −1/8 nowhere."""
    row = conjunction(({0: 1}, "-0.125")).inequalities[0]
    least = Conjunction((Inequality(row.coefficients, row.limit, strict=strict),))
    options = dataclasses.replace(QUICK, search=dataclasses.replace(QUICK.search, attack=1.0))
    assert ask(bent(), prop(2, case(WHOLE, least)), options=options).verdict == verdict


@pytest.mark.parametrize("limit", ["-0.126", "-0.2"])
def test_what_is_excluded_has_the_same_tree_and_bounds(limit: str) -> None:
    spec = prop(2, case(WHOLE, conjunction(({0: 1}, limit)), conjunction(({1: 1}, "-0.26"))))
    with_, without = (
        ask(bent(), spec, options=dataclasses.replace(QUICK, search=dataclasses.replace(QUICK.search, attack=share)))
        for share in (1.0, 0.0)
    )
    assert (with_.verdict, with_.domains, with_.bounds) == (without.verdict, without.domains, without.bounds)
    assert with_.verdict == "verified"
    assert "attack inside" in with_.seconds
    assert "attack inside" not in without.seconds


def test_descents_begin_in_the_box_and_go_to_their_own_conjunction() -> None:
    """Points beyond the box are moved into it; y₁ ≤ −0.2 is true near (0, 1), and y₀ ≤ −1 nowhere."""
    graph = bent()
    spec = prop(2, case(WHOLE, conjunction(({0: 1}, -1)), conjunction(({1: 1}, "-0.2"))))
    replay = Replay.of_function(graph.evaluate, graph.input.shape, dtype=torch.float64)
    outside = torch.tensor([[1.0 + 1e-9, 1.0], [0.5, math.nextafter(1.0, 2.0)], [7.0, -7.0]]).double()
    for number in (1, None):
        search = paused_search(graph, spec, lambda x: replay.confirms(spec, x))
        found = search.descend({(0, number): outside}, time.perf_counter() + 60)
        assert found.counterexample is not None
        assert found.counterexample.at == (0, 1)
        assert np.abs(found.counterexample.x).max() <= 1
    search = paused_search(graph, spec, lambda _: None)
    found = search.descend({(0, 0): outside}, time.perf_counter() + 60)
    assert found.counterexample is None
    assert found.violations[0] == pytest.approx(1 - 0.125, abs=0.05)  # it went down its own row


def test_descents_are_for_the_conjunctions_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branch and bound counts what is open: here its objective is conjunction 1 of case 1."""
    seen: set[tuple[int, int | None]] = set()
    real = PausedSearch.descend

    def noted(self: PausedSearch, starts: dict[tuple[int, int | None], torch.Tensor], until: float) -> Found:
        seen.update(starts)
        assert all(points.shape[1] == 2 for points in starts.values())
        return real(self, starts, until)

    monkeypatch.setattr(PausedSearch, "descend", noted)
    never = conjunction(({0: 1}, -5))
    spec = prop(2, case(WHOLE, never), case(WHOLE, never, conjunction(({0: 1}, "-0.126"))))
    options = dataclasses.replace(QUICK, search=dataclasses.replace(QUICK.search, attack=1.0))
    assert ask(bent(), spec, options=options).verdict == "verified"
    assert seen == {(1, 1)}


def test_one_batch_at_least_and_no_more_after_its_time() -> None:
    graph = bent()
    spec = prop(2, case(WHOLE, conjunction(({0: 1}, -1))))
    search = paused_search(graph, spec, lambda _: None)
    assert search.descend({(0, 0): torch.ones(1, 2)}, -math.inf).visited == 3
    assert search.descend({}, math.inf).visited == 3


@pytest.mark.parametrize("wrong", [(0, 1), (0, -1), (1, 0), (-1, 0), (1, None), (-1, None)])
def test_targets_that_are_not_there_are_refused(wrong: tuple[int, int | None]) -> None:
    spec = prop(2, case(WHOLE, conjunction(({0: 1}, -1))))
    with pytest.raises(InvalidValueError, match="does not have"):
        paused_search(bent(), spec, lambda _: None).descend({wrong: torch.zeros(1, 2)}, math.inf)
