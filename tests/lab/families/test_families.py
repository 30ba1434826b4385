"""Models of known families, unmodified: each is certified, and its module agrees at points of the set.

The table of docs/your-model.md says of every family what is found here: its rows are those of
lab/benchmarks/runs/families.json, and tests/lab/benchmarks/test_readme_figures.py compares the page with that file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.slowly import few
from vertex_lab.families.answers import FAMILIES, answer, available
from vertex_lab.families.family import Family

RUNS = Path(__file__).parents[3] / "lab" / "benchmarks" / "runs"
ROUNDING = 1e-5
"""What a module in float32 may round, as a share of its margins."""


def rows() -> list[dict[str, Any]]:
    data: dict[str, Any] = json.loads((RUNS / "families.json").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = data["rows"]
    return found


def test_every_family_has_one_row() -> None:
    assert [(row["library"], row["family"], row["model"], row["moves"]) for row in rows()] == [
        (family.library, family.name, family.model, family.moves) for family in FAMILIES
    ]


def test_no_bound_is_above_what_was_reached() -> None:
    for row in rows():
        if not row.get("why not"):
            assert row["bound"] <= row["reached"] + ROUNDING * abs(row["reached"]), row["family"]


@pytest.mark.parametrize("family", few(FAMILIES, lambda family: family.quick), ids=lambda f: f"{f.library} {f.name}")
def test_a_family_is_certified_and_its_module_agrees(family: Family) -> None:
    if not available(family):
        pytest.skip(f"{family.library} is not installed")
    row = next(row for row in rows() if (row["library"], row["family"]) == (family.library, family.name))
    found = answer(family)
    assert found.verdict == row["verdict"]
    assert found.bound == pytest.approx(row["bound"], rel=1e-3, abs=1e-6)
    assert found.bound <= found.reached + ROUNDING * abs(found.reached)
