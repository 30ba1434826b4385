"""The slack table is the published one to three decimals in every cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vertex_lab.experiments import slack
from vertex_lab.experiments.request import Request


def test_every_cell_equals_the_published_one_to_three_decimals(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    result = slack.run(Request(tmp_path, progress=lambda *args: seen.append(args)))
    cells = 0
    for ours, published in zip(result.rows, result.published, strict=True):
        assert ours["Equal"] is True
        for source in slack.SOURCES:
            assert (source in ours) == (source in published)
        for source, value in published.items():
            assert f"{ours[source]:.3f}" == f"{value:.3f}", (ours["Diagnostic"], source)
            cells += 1
    assert cells == 10
    assert "Our cells equal the published ones" in result.notes[0]
    assert seen[0] == ("single-row attention", 0, 3)
    assert seen[-1] == ("done", 3, 3)
    assert not result.failures
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert names == {f"slack.{ending}" for ending in ("json", "md", "csv", "tex", "svg", "png")}
    assert json.loads((tmp_path / "slack.json").read_text())["rows"][0]["Final"] == result.rows[0]["Final"]


def test_the_sources_add_up_to_the_final_gap_and_none_is_negative() -> None:
    points = slack.grid()
    for diagnostic in slack.DIAGNOSTICS.values():
        gaps = diagnostic(3, points)
        parts = sum(gap for source, gap in gaps.items() if source not in ("Softmax", "Final"))
        assert parts == pytest.approx(gaps["Final"], abs=1e-12)
        assert min(gaps.values()) >= -1e-12


def test_other_seeds_are_said_not_to_be_the_published_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slack, "SEEDS", 1)
    monkeypatch.setattr(slack, "GRID", 5)
    result = slack.run(Request(tmp_path, quick=True, seeds=(100,)))
    assert "do NOT all equal" in result.notes[0]
    assert "not the published instances" in result.notes[0]
    assert not any(row["Equal"] for row in result.rows)
