"""How fast branch and bound says it was: every bound of a part counts once, and no second counts that was others'."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch
from torch import Tensor

from tests.bounds.branching_cases import MARGINS, QUICK, attention, grown, least
from vertex_softmax.bounds import ascent, branch_and_bound, tree_attack
from vertex_softmax.bounds.aims import Aim, Outcome, Watchers, rates
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.runs.certification import effort_of, summed_effort

torch.set_num_threads(1)


class Counted:
    """Counts the bounds that passes return while branch and bound works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for module, name in ((branch_and_bound, "backward"), (ascent, "lower_bound")):
            real = getattr(module, name)

            def counted(question, boxes, objective, *rest, real=real):  # type: ignore[no-untyped-def]
                A: Tensor = objective.coefficients.A
                self.count += A.shape[0] * A.shape[1]
                return real(question, boxes, objective, *rest)

            monkeypatch.setattr(module, name, counted)


@pytest.mark.parametrize("name", ["relu", "norm"])
def test_every_bound_of_a_part_counts_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention(name)
    best, _ = least(whole, MARGINS)
    counted = Counted(monkeypatch)
    search = dataclasses.replace(QUICK, domains=20, attack=0.0, late=10**6)
    out = grown(whole, MARGINS, search, goals=best + 1, accept=lambda *_: False)
    assert out.passes == counted.count > out.domains > 3


def test_seconds_of_others_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hears of the search takes a day each time, and an attack a year."""
    now, real = [0.0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: real() + now[0])
    heard: list[str] = []

    def later(what: str, seconds: float) -> None:
        heard.append(what)
        now[0] += seconds

    whole = attention("relu")
    best, _ = least(whole, MARGINS)
    search = dataclasses.replace(QUICK, domains=40, attack=1.0, seconds=None)
    monkeypatch.setattr(tree_attack, "LEAST", 0.0)
    watchers = Watchers(
        accept=lambda *_: False,
        progress=lambda *_: later("progress", 86400.0),
        attack=lambda *_: later("attack", 3e7),
    )
    rules = Rules(attention=RowRule.AFFINE, pieces=2)
    out = branch_and_bound.branch_and_bound(
        whole.question, whole.boxes, Aim(MARGINS, best + 1), rules, search, watchers
    )
    assert {"progress", "attack"} <= set(heard)
    assert 0 < out.seconds < 86400.0


def test_rates_are_of_all_that_was_done() -> None:
    assert rates(6, 30, 2.0) == {"parts_per_second": 3.0, "bounds_per_second": 15.0}
    assert rates(6, None, 2.0) == {"parts_per_second": 3.0}
    assert rates(0, 0, 2.0) == rates(6, 30, 0.0) == {}
    one = Outcome(torch.zeros(1), torch.zeros(1), 6, branch_and_bound.Stop.DONE, passes=30, seconds=2.0)
    other = dataclasses.replace(one, domains=2, passes=2, seconds=6.0)
    both = summed_effort([effort_of(one), effort_of(other), {}])
    assert both == {"parts": 8, "bounds": 32, "tree_seconds": 8.0, "parts_per_second": 1.0, "bounds_per_second": 4.0}
    assert summed_effort([{"parts": 2, "evaluated": 3}, {"parts": 1, "evaluated": 4}]) == {"parts": 3, "evaluated": 7}
