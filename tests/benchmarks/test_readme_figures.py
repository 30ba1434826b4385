"""The README's table of the paper's experiments is what the results folder says, to the letter."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import readme_figures  # noqa: E402

from vertex_softmax.experiments import EXPERIMENTS  # noqa: E402


def test_the_readme_is_up_to_date() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme_figures.readme(text) == text, "run python benchmarks/readme_figures.py"
    assert readme_figures.main(["--check"]) == 0


def test_the_results_are_one_full_run_of_everything() -> None:
    for name in EXPERIMENTS:
        data = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
        assert data["name"] == name
        assert data["failures"] == [], name
        assert data["settings"].get("quick", False) is False, name
        for ending in ("md", "csv", "tex"):
            assert (ROOT / "results" / f"{name}.{ending}").stat().st_size < 200_000


def test_rows_that_were_not_run_have_no_number_of_ours() -> None:
    for name in ("patch", "block", "strong", "paired", "bootstrap", "numerical"):
        data = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
        for row in data["rows"]:
            if row["Status"] == "not run here":
                numbers = {key for key, cell in row.items() if isinstance(cell, float | int)}
                assert numbers <= {"ε"}, row


def test_another_figure_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (ROOT / "results").glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        for row in data["rows"]:
            if "Cert." in row and row["Cert."] is not None:
                row["Cert."] += 0.001
        (tmp_path / path.name).write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.setattr(readme_figures, "RESULTS", tmp_path)
    assert readme_figures.main(["--check"]) == 1
