from __future__ import annotations

import dataclasses
from pathlib import Path

from typer.testing import CliRunner

from tests.runs.report.test_run_page import BAD, Page, check_alone
from tests.runs.test_accuracy import RECORD
from vertex_softmax.cli.main import app
from vertex_softmax.runs.accuracy import Accuracy, Groups, PartSizes, write_accuracy
from vertex_softmax.runs.report import accuracy_page


def page(record: Accuracy, place: Path) -> Page:
    write_accuracy(record, place)
    text = accuracy_page.write(place).read_text()
    check_alone(text)
    return Page(text)


def test_the_page_shows_the_record(tmp_path: Path) -> None:
    found = page(RECORD, tmp_path)
    assert "6 of all 9 inputs are proved to be classified right: an accuracy of at least 66.6666 %." in found.text
    assert "finds 8 right (88.8888 %), so the proof misses 2." in found.text
    for text in ("proved right: 6", "right, not proved: 2", "wrong: 1", "last token", "4 to 15", "checked"):
        assert text in found.text
    assert found.data["inputs"] == [1, 2, 0, 6]
    assert found.data["proved"] == [0, 2, 0, 4]
    assert found.data["right"] == [1, 2, 0, 5]


def test_shares_are_never_rounded_up(tmp_path: Path) -> None:
    almost = dataclasses.replace(
        RECORD,
        inputs=10**9,
        proved=10**9 - 1,
        right=10**9,
        parts=1,
        groups=Groups("a", "b", ((10**9,),), ((10**9 - 1,),), ((10**9,),)),
        sizes=(PartSizes(10**9 - 1, 10**9 - 1, 1, 10**9 - 1),),
    )
    found = page(almost, tmp_path)
    assert "at least 99.9999 %" in found.text
    assert "finds 1,000,000,000 right (100 %)" in found.text
    groups = Groups("a", "b", ((10**9,),), ((10**9,),), ((10**9,),))
    whole = dataclasses.replace(almost, proved=10**9, groups=groups, sizes=(PartSizes(10**9, 10**9, 1, 10**9),))
    assert "100 %), which is all that the proof could say" in page(whole, tmp_path).text


def test_nothing_proved_and_nothing_evaluated(tmp_path: Path) -> None:
    groups = Groups("a", "b", ((9,),), ((0,),))
    bare = dataclasses.replace(
        RECORD, proved=0, right=None, parts=0, groups=groups, sizes=(), stages=(), wrong=(), open=(), facts={}
    )
    found = page(bare, tmp_path)
    assert "nobody has looked" in found.text
    assert "Examples" not in found.text
    assert found.data["right"] is None


def test_hostile_texts_are_text(tmp_path: Path) -> None:
    groups = dataclasses.replace(RECORD.groups, row=BAD, column=BAD)
    stages = tuple(dataclasses.replace(stage, name=BAD) for stage in RECORD.stages)
    bad = dataclasses.replace(
        RECORD, title=BAD, task=BAD, claim=BAD, version=BAD, created=BAD, groups=groups, stages=stages, facts={BAD: BAD}
    )
    found = page(bad, tmp_path)
    assert found.text.count(BAD.replace("\ud800", "?")) >= 10
    assert found.data["row"] == BAD


def test_the_command(tmp_path: Path) -> None:
    write_accuracy(RECORD, tmp_path)
    for given in (tmp_path, tmp_path / "accuracy.json"):
        found = CliRunner().invoke(app, ["report", str(given)])
        assert (found.exit_code, found.stdout) == (0, f"{tmp_path / 'report.html'}\n")
    (tmp_path / "accuracy.json").write_text("{}")
    found = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert found.exit_code == 2
    assert "is not a record of an accuracy" in found.stderr
