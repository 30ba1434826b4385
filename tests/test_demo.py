"""The demo's transformer: trained once, certified by every method, and consistent with the attack."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from vertex_softmax import demo
from vertex_softmax.bounds.optimize import Ascent
from vertex_softmax.methods.bounding import Options
from vertex_softmax.zoo import train as training


class First(NamedTuple):
    """A run in a new folder."""

    folder: Path
    found: dict[str, Any]
    seen: list[tuple[str, int, int]]
    """its progress"""


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """A demo of seconds: hardly trained, few images, few steps of ascent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "IMAGES", 3)
        patch.setattr(demo, "TRAINING", {**demo.TRAINING, "epochs": 6})
        patch.setattr(demo, "EPS", 0.01)
        patch.setattr(demo, "certify", functools.partial(demo.certify, options=Options(ascent=Ascent(steps=5))))
        yield


@pytest.fixture(scope="module")
def first(small, tmp_path_factory: pytest.TempPathFactory) -> First:
    """The run that trains the model; the others find it in the folder."""
    folder, seen = tmp_path_factory.mktemp("demo"), []
    return First(folder, demo.certification(folder, lambda *step: seen.append(step)), seen)


def quiet(*_: object) -> None:
    """No progress."""


def test_every_method_stays_below_the_attack(first: First) -> None:
    _, found, seen = first
    assert found["consistent"] is True
    assert {what for what, _, _ in seen} == {"training", "certifying"}
    assert all(seen[i][1] <= seen[i][2] for i in range(len(seen)))
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == ["ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint"]
    for row in rows.values():
        assert 0 <= row["certified"] <= found["attack"]["certified"] <= 1
        assert row["bound"] <= found["attack"]["bound"]
        assert row["seconds"] > 0
    assert rows["ibp"]["bound"] < rows["crown"]["bound"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_model_is_kept(first: First, monkeypatch) -> None:
    assert (first.folder / "model.safetensors").exists()
    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("trained again"))
    again = demo.certification(first.folder, quiet)
    for a, b in zip(first.found["rows"], again["rows"], strict=True):
        assert (a["certified"], a["bound"]) == (b["certified"], b["bound"])


@pytest.mark.parametrize(("method", "error"), [("ibp", 1e6), ("hybrid", -1e-3)])
def test_bounds_that_contradict_are_noticed(first: First, monkeypatch, method, error) -> None:
    honest = demo.certify

    def broken(*arguments, **options):
        result = honest(*arguments, **options)
        result.lower[0] += error if result.method == method else 0
        return result

    monkeypatch.setattr(demo, "certify", broken)
    assert demo.certification(first.folder, quiet)["consistent"] is False


def test_the_table_ends_with_the_ceiling() -> None:
    row = {"method": "hybrid", "how": "both", "certified": 0.54, "bound": 0.183, "seconds": 0.0421}
    data = {"data": "digits", "images": 50, "eps": 0.08, "accuracy": 0.93, "rows": [row]}
    ceiling = {"certified": 0.74, "bound": 1.57, "seconds": 0.085}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(demo.table({**data, "attack": ceiling}))
    lines = [line for line in console.export_text().splitlines() if "│" in line]
    assert [word for word in lines[0].split() if word != "│"] == ["hybrid", "both", "54%", "+0.183", "0.042"]
    assert "attack" in lines[-1]
    assert "≤ 74%" in lines[-1]
