"""The pictures are made of numbers alone, and say how to get what they need."""

from __future__ import annotations

import sys

import pytest

from vertex_softmax.foundation.errors import MissingDependencyError
from vertex_softmax.runs.demo import demo
from vertex_softmax.runs.report import plots


@pytest.fixture(scope="module")
def data():
    return demo.theorem()


def test_the_same_numbers_give_the_same_picture(data) -> None:
    assert plots.save(plots.theorem(data), "svg") == plots.save(plots.theorem(data), "svg")


def test_the_picture_in_the_readme_is_this_one(data) -> None:
    from pathlib import Path

    committed = Path(__file__).parents[3] / "docs" / "theorem.svg"
    assert committed.read_bytes() == plots.save(plots.theorem(data), "svg")


def test_growth_is_drawn() -> None:
    rows = [{"keys": 16, "newton": 5.0, "threshold": 50.0}, {"keys": 32, "newton": 5.0, "threshold": 60.0}]
    assert plots.save(plots.growth(rows), "png").startswith(b"\x89PNG")


def test_a_missing_dependency_names_the_extra(data, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"vertex-softmax\[report\]"):
        plots.theorem(data)
