"""The demo's transformer: trained once, certified by every method, and consistent with the attack."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from vertex_softmax import demo
from vertex_softmax.zoo import train as training


@pytest.fixture
def small(monkeypatch):
    """A demo of seconds: hardly trained, few images."""
    monkeypatch.setattr(demo, "IMAGES", 6)
    monkeypatch.setattr(demo, "TRAINING", {**demo.TRAINING, "epochs": 6})
    monkeypatch.setattr(demo, "EPS", 0.01)


def quiet(*_: object) -> None:
    """No progress."""


def test_every_method_stays_below_the_attack(small, tmp_path: Path) -> None:
    seen = []
    found = demo.certification(tmp_path, lambda *step: seen.append(step))
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


def test_the_model_is_kept(small, tmp_path: Path, monkeypatch) -> None:
    first = demo.certification(tmp_path, quiet)
    assert (tmp_path / "model.safetensors").exists()
    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("trained again"))
    again = demo.certification(tmp_path, quiet)
    for a, b in zip(first["rows"], again["rows"], strict=True):
        assert (a["certified"], a["bound"]) == (b["certified"], b["bound"])


@pytest.mark.parametrize(("method", "error"), [("ibp", 1e6), ("hybrid", -1e-3)])
def test_bounds_that_contradict_are_noticed(small, tmp_path: Path, monkeypatch, method, error) -> None:
    honest = demo.certify

    def broken(*arguments, **options):
        result = honest(*arguments, **options)
        result.lower[0] += error if result.method == method else 0
        return result

    monkeypatch.setattr(demo, "certify", broken)
    assert demo.certification(tmp_path, quiet)["consistent"] is False


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
