"""The catalogue fits the sources, the runner tells a kill from everything else, and a handful is killed here and now.

All of them: python -m tests.mutation
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutation.catalogue import AREAS, catalogue
from tests.mutation.locate import Sources
from tests.mutation.mutant import PACKAGE, Mutant
from tests.mutation.runner import KILLED, TESTS, Outcome, Runner

MUTANTS = catalogue()
QUICK = ("specs/test_property.py", "bounds/test_coefficients.py", "sets/test_sets.py")
"""Test files of a second or two."""


def test_every_mutant_changes_one_place_and_is_a_program() -> None:
    sources = Sources(PACKAGE)
    for mutant in MUTANTS:
        changed = mutant.applied(sources)
        if not mutant.native:
            compile(changed.text, changed.file, "exec")
        assert all((TESTS / test).is_file() for test in mutant.tests), mutant.key


def test_names_are_unique_and_no_change_is_there_twice() -> None:
    assert len({mutant.key for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant[1:2] + mutant[3:6] + mutant[8:] for mutant in MUTANTS}) == len(MUTANTS)


def test_there_are_enough() -> None:
    count = {area: sum(mutant.area == area for mutant in MUTANTS) for area in AREAS}
    assert all(count.values())
    assert sum(count[area] for area in ("relaxations", "walks", "primitive")) >= 60


@pytest.mark.parametrize(("file", "old"), [("specs/property.py", "no_such(text)"), ("kernel.h", "no such text")])
def test_a_mutant_out_of_date_is_named(tmp_path: Path, file: str, old: str) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / file).write_text("text")
    mutant = Mutant("specs", file, "old one", "", old, "", ())
    with pytest.raises(LookupError, match="old one: 0 places have"):
        mutant.applied(Sources(tmp_path))
    with pytest.raises(LookupError, match="old one: nothing is changed"):
        mutant._replace(old="text", new="text").applied(Sources(tmp_path))


def test_a_handful_is_killed_and_nothing_else(tmp_path: Path) -> None:
    handful = [next(m for m in MUTANTS if m.tests == (test,)) for test in QUICK]
    top = "from __future__ import annotations"
    first = handful[0]._replace(scope="", old=top, new=f"{top}\npass")
    others = [
        first._replace(name="no fault"),
        first._replace(name="no module", new=f"{top}\nimport no_such_module"),
        first._replace(name="not imported", file="runs/report/svg.py"),
    ]
    journal = tmp_path / "journal.jsonl"
    found = Runner(journal=journal).run([*handful, *others])
    assert [outcome.result for outcome in found] == ["killed"] * len(handful) + ["survived", "error", "error"]
    assert all(outcome.by.startswith("tests/") for outcome in found[: len(handful)])
    assert "error during collection" in found[-2].by
    assert "was not imported from the copy" in found[-1].by
    again: list[Outcome] = []
    journal.write_text(journal.read_text() + '{"digest": "cut sh')
    endless = first._replace(name="for ever", new=f"{top}\nwhile True: pass")
    Runner(journal=journal, seconds=1.0).run([*handful, endless], again.append)
    assert again == [*found[: len(handful)], again[-1]]
    assert again[-1].result == "timeout"


def test_the_score_that_is_published_is_whole() -> None:
    report = json.loads((TESTS.parent / "lab" / "benchmarks" / "runs" / "mutation.json").read_text())
    assert report["areas"]["all"]["killed"] == report["areas"]["all"]["total"] == len(report["mutants"])
    bounds = sum(report["areas"][area]["total"] for area in ("relaxations", "walks", "primitive"))
    assert bounds >= 60


@pytest.mark.slow
def test_all_are_killed() -> None:
    found = Runner(jobs=2).run(MUTANTS)
    assert [outcome for outcome in found if outcome.result not in KILLED] == []
