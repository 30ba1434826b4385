"""The catalogue fits the sources, the runner tells a kill from everything else, and a handful is killed here and now.

All of them: python -m tests.mutation
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mutation.catalogue import AREAS, catalogue
from mutation.mutant import PACKAGE, Mutant
from mutation.runner import KILLED, TESTS, Outcome, Runner

MUTANTS = catalogue()
QUICK = ("specs/test_property.py", "bounds/test_coefficients.py", "test_sets.py")
"""Test files of a second or two."""


def test_every_mutant_changes_one_place_and_is_a_program() -> None:
    texts: dict[str, str] = {}
    for mutant in MUTANTS:
        text = texts.setdefault(mutant.file, (PACKAGE / mutant.file).read_text())
        changed = mutant.applied(text)
        if not mutant.native:
            compile(changed, mutant.file, "exec")
        assert all((TESTS / test).is_file() for test in mutant.tests), mutant.key


def test_names_are_unique_and_no_change_is_there_twice() -> None:
    assert len({mutant.key for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_there_are_enough() -> None:
    count = {area: sum(mutant.area == area for mutant in MUTANTS) for area in AREAS}
    assert all(count.values())
    assert sum(count[area] for area in ("relaxations", "walks", "primitive")) >= 60


def test_a_mutant_out_of_date_is_named() -> None:
    with pytest.raises(LookupError, match="old one: 0 places have"):
        Mutant("specs", "specs/property.py", "old one", "no such text", "", ()).applied("text")
    with pytest.raises(LookupError, match="nothing is changed"):
        Mutant("specs", "specs/property.py", "old one", "text", "text", ()).applied("text")


def test_a_handful_is_killed_and_nothing_else(tmp_path: Path) -> None:
    handful = [next(m for m in MUTANTS if m.tests == (test,)) for test in QUICK]
    first, top = handful[0], "from __future__"
    others = [
        first._replace(name="a comment", old=top, new=f"# no fault\n{top}"),
        first._replace(name="no module", old=top, new=f"import no_such_module\n{top}"),
        first._replace(name="not imported", file="report/svg.py", old=top, new=f"# no fault\n{top}"),
    ]
    journal = tmp_path / "journal.jsonl"
    found = Runner(journal=journal).run([*handful, *others])
    assert [outcome.result for outcome in found] == ["killed"] * len(handful) + ["survived", "error", "error"]
    assert all(outcome.by.startswith("tests/") for outcome in found[: len(handful)])
    assert "error during collection" in found[-2].by
    assert "was not imported from the copy" in found[-1].by
    again: list[Outcome] = []
    journal.write_text(journal.read_text() + '{"digest": "cut sh')
    endless = first._replace(
        name="for ever", old="        C = torch", new="        while True: pass\n        C = torch"
    )
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
