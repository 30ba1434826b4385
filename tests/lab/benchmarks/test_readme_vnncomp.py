"""VNN-COMP's verdicts in docs/results.md: every instance of every year stands once, beside what the tools answered."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "lab" / "benchmarks"))  # scripts, not a package

import readme_runs  # noqa: E402
import readme_vnncomp  # noqa: E402
from readme_measure import RUNS  # noqa: E402

HERE = readme_runs.Runs(RUNS)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """What the page is made of, to be changed."""
    for name in ("published", *filter(HERE.has, readme_vnncomp.OURS)):
        shutil.copy(RUNS / f"{name}.json", tmp_path)
    return tmp_path


def changed(folder: Path, name: str, data: dict[str, Any]) -> readme_runs.Runs:
    (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    return readme_runs.Runs(folder)


@pytest.mark.parametrize("year", readme_vnncomp.YEARS)
def test_every_instance_of_a_year_stands_once(year: str) -> None:
    lines = readme_vnncomp.every_instance(year, HERE)[2:]
    cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")[3:5]]
    numbers = [int(number) for cell in cells for number in cell.partition(":")[2].replace(",", " ").split()]
    assert len(numbers) == sum(int(cell.partition(":")[0]) for cell in cells) == 200


def test_the_tools_have_the_counts_of_the_competitions() -> None:
    """As the competitions' own tables of 2023 and 2025 give them for α,β-CROWN, PyRAT and NeuralSAT."""
    counts = {
        (year, tool): Counter(of.values())["unsat"]
        for year in readme_vnncomp.YEARS
        for tool, of in readme_vnncomp.published(HERE, year).items()
    }
    assert counts["2023", "α,β-CROWN"] == 79
    assert counts["2024", "α,β-CROWN"] == 84
    assert [counts["2025", tool] for tool in ("α,β-CROWN", "PyRAT", "NeuralSAT", "NNV", "Rover")] == [125, 83, 67, 0, 0]


def test_published_verdicts_are_those_that_were_recorded_beside_our_runs() -> None:
    theirs = readme_vnncomp.published(HERE, "2023")["α,β-CROWN"]
    for row in HERE("vit")["rows"]:
        assert theirs[row["instance"]] == row["recorded"]["alpha_beta_crown_2023"]
    theirs = readme_vnncomp.published(HERE, "2024")["α,β-CROWN"]
    for row in HERE("vit-verify-2024")["rows"]:
        assert theirs[Path(row["vnnlib"]).stem] == row["published"]


def test_the_only_verdict_that_contradicts_ours_is_the_refuted_one() -> None:
    assert set(readme_vnncomp.contradictions(HERE)) <= {("2023", "Marabou", "ibp_3_3_8_7894")}


def test_a_contradiction_would_be_seen(copied: Path) -> None:
    data = HERE("vit-verify-2024")
    row = next(row for row in data["rows"] if row["published"] == "unsat")
    row["result"] = "sat"
    found = readme_vnncomp.contradictions(changed(copied, "vit-verify-2024", data))
    assert ("2024", "α,β-CROWN", Path(row["vnnlib"]).stem) in found


def test_an_instance_that_others_decided_and_we_did_not_is_said(copied: Path) -> None:
    data = HERE("vit-verify-2024")
    row = next(row for row in data["rows"] if row["published"] == "unsat")
    row["result"] = "timeout"
    said = " ".join(readme_vnncomp.open_ones(changed(copied, "vit-verify-2024", data)))
    assert f"α,β-CROWN had decided 1 of these ({Path(row['vnnlib']).stem})" in said


def test_every_instance_of_every_year_was_asked() -> None:
    found = readme_vnncomp.competition(HERE)
    assert [row.peer for row in found] == [
        f"VNN-COMP {y}: all 200 `vit` instances, 100 s" for y in readme_vnncomp.YEARS
    ]
    assert all(row.measures for row in found)
    assert "Marabou's answer to `ibp_3_3_8_7894` is refuted" in found[0].theirs


def test_an_instance_that_no_run_has_is_not_asked(copied: Path) -> None:
    data = HERE("vit-verify-rest")
    gone = data["rows"].pop()
    runs = changed(copied, "vit-verify-rest", data)
    lines = [line for year in readme_vnncomp.YEARS for line in readme_vnncomp.every_instance(year, runs)]
    assert any("not asked" in line and Path(gone["vnnlib"]).stem.rpartition("_")[2] in line for line in lines)
    assert any("199 of the 200" in row.peer for row in readme_vnncomp.competition(runs))


def test_a_verdict_of_an_instance_that_is_not_of_the_year_is_an_error(copied: Path) -> None:
    data = HERE("published")
    data["vnncomp"]["2025"]["tools"]["NNV"]["unsat"] = {"pgd_2_3_16": "123456"}
    with pytest.raises(ValueError, match="2025: NNV has a verdict of an instance"):
        readme_vnncomp.published(changed(copied, "published", data), "2025")
