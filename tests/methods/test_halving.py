"""Which questions are halved, and when: after few parts inside of the network, and before many."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.bounds.branching_cases import MARGINS, attention, least
from vertex_softmax.bounds.aims import Aim, Search, Watchers
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.record import Record
from vertex_softmax.methods import bab
from vertex_softmax.methods.bab import branch, root_options
from vertex_softmax.methods.halving import is_meant, numbers_that_vary
from vertex_softmax.methods.joint import joint
from vertex_softmax.methods.options import Options

torch.set_num_threads(1)
SEARCH = Search(seconds=None, domains=2000, narrowing=0.0)


def searched(distance: float, search: Search, record: Record | None = None):  # type: ignore[no-untyped-def]
    """Branch and bound on margins that are above their goals by so much."""
    whole = attention("relu", 0.1)
    lowest, _ = least(whole, MARGINS)
    objective = Objective.dense(whole.graph.output, MARGINS.unsqueeze(0))
    options = Options(search=search)
    root = joint(whole.question, objective, root_options(options))
    found = branch(whole.question, root, Aim(MARGINS, lowest - distance), options, Watchers(record=record))
    return lowest, found


def test_few_numbers_are_halved_unless_it_is_switched_off() -> None:
    whole = attention("relu", 0.1)
    assert 0 < numbers_that_vary(whole.question) <= 12
    assert is_meant(whole.question, Options())
    assert not is_meant(whole.question, Options(search=Search(halving=0.0)))


@pytest.mark.parametrize("brief", [1, 10_000])
def test_a_record_is_of_the_search_that_decided(brief: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bab, "BRIEF", brief)
    record = Record()
    lowest, found = searched(0.002, SEARCH, record)
    assert int(found.open.sum()) == 0
    assert bool((found.bound <= lowest).all())
    assert all(record.decides(k) for k in range(len(MARGINS)))
    assert bool(record.halves) == (brief == 1)
    assert bool(record.leaves) == (brief > 1)


@pytest.mark.parametrize("domains", [1, 30, 100])
def test_whatever_ends_it_no_bound_is_above_a_value(domains: int) -> None:
    for distance in (1e-4, 0.05):
        lowest, found = searched(distance, dataclasses.replace(SEARCH, domains=domains))
        assert bool((found.bound <= lowest).all())
