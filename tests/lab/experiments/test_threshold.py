"""The threshold experiment: its pieces are whole, its differences within the limits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vertex_lab.experiments import threshold
from vertex_lab.experiments.request import Request


def test_quick_run_keeps_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold, "KEYS", (8, 12, 32, 64, 512))
    seen: list[tuple[str, int, int]] = []
    result = threshold.run(Request(tmp_path, quick=True, progress=lambda *args: seen.append(args)))
    assert [row["K"] for row in result.rows] == [8, 12, 32, 64]
    for row in result.rows:
        enumerated = row["K"] in (8, 12)
        assert (row[threshold.EXHAUSTIVE] is not None) == enumerated
        # beyond the enumeration both sides round in float32, each by up to 2 ulps of a number below 4
        assert float(row[threshold.DIFF_32] or 0) < (threshold.LIMIT_32 if enumerated else 2e-6)
        assert float(row[threshold.DIFF_64] or 0) < threshold.LIMIT_64
    assert result.published[0] == {"Threshold (s)": 0.00046, "Exhaustive (s)": 0.00144, "Max diff. float32": 3.6e-7}
    assert result.published[2] == {}
    assert seen[0] == ("K = 8", 0, 8)
    assert seen[-1] == ("K = 64", 64, 64)
    assert not result.failures
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert names == {f"threshold.{ending}" for ending in ("json", "md", "csv", "tex", "svg", "png")}


def test_broken_limits_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold, "KEYS", (8,))
    monkeypatch.setattr(threshold, "LIMIT_64", 0.0)
    result = threshold.run(Request(tmp_path, quick=True))
    assert "NOT kept" in result.notes[0]
    assert result.failures


def test_pieces_cover_every_query_row_within_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold, "PIECE", 4 * 4 * 24 * 7)
    pieces = list(threshold.boxes(24, seed=0))
    assert [piece[0].shape[2] for piece in pieces] == [7, 7, 7, 3]
    for c, lower, upper in pieces:
        assert c.shape == lower.shape == upper.shape
        assert bool((lower <= upper).all())
        assert bool((upper - lower <= 4).all())
    again = next(threshold.boxes(24, seed=0))
    assert torch.equal(again[2], pieces[0][2])
