"""Workers answer after every step: the searches of these tests are small, and their workers are to take many turns."""

from __future__ import annotations

import pytest

from vertex_softmax.runs.shared import search


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLICE", "SHORT", "PAUSE"):
        monkeypatch.setattr(search, name, 0.0)
