"""Branch and bound by count and not by the clock: the same parts in every run, and few."""

from __future__ import annotations

import pytest

from vertex_softmax.bounds.branch_and_bound import Search


@pytest.fixture(autouse=True)
def _few_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Search()` has no limit in seconds and 32 domains."""
    monkeypatch.setattr(Search.__init__, "__defaults__", (None, 32, *Search.__init__.__defaults__[2:]))
