"""The page of a sweep shows the instances of results.csv, each with what the journal says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runs.report import made
from tests.runs.report.test_run_page import BAD, Page, check_alone, vertex
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.report import sweep_page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made.sweep_folder(tmp_path / "out", 14)


def test_every_instance_is_there(folder) -> None:
    found = vertex(folder)
    assert (found.exit_code, found.stdout) == (0, f"{folder / 'report.html'}\n")
    text = (folder / "report.html").read_text()
    check_alone(text)
    page = Page(text)
    data = page.data["instances"]
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())["total"]
    assert data["spec"] == [line["spec"] for line in lines]
    assert data["bound"] == pytest.approx([line["bounds"][0][0] for line in lines], rel=1e-5)
    for k, word in enumerate(page.data["statuses"]):
        assert data["status"].count(k) == summary[word]
    assert f"Of 14 instances {summary['verified']} are verified" in page.text
    assert "not finished" not in page.text
    assert sweep_page.page(folder).decode() == text


def test_a_sweep_under_way_is_shown_as_it_stands(folder) -> None:
    (folder / "summary.json").unlink()
    with (folder / "journal.jsonl").open("a") as file:
        file.write('{"key": "cut o')
    text = Page(sweep_page.page(folder).decode()).text
    assert "The sweep is not finished" in text


def test_an_instance_that_was_run_again_is_shown_as_it_is_now(folder) -> None:
    lines = (folder / "journal.jsonl").read_text().splitlines()
    old = {**json.loads(lines[0]), "status": "error", "reason": "before", "run_time": 7.0}
    other = {**json.loads(lines[0]), "method": "crown", "reason": "another method"}
    (folder / "journal.jsonl").write_text("\n".join([json.dumps(old), *lines, json.dumps(other)]) + "\n")
    assert not {"before", "another method"} & set(Page(sweep_page.page(folder).decode()).data["instances"]["reason"])


def test_a_second_try_says_so(folder) -> None:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    died = {**lines[3], "status": "error", "reason": "it was killed", "run_time": 1.0, "retrying": True}
    lines[3:4] = [died, {**lines[3], "retried": "it was killed", "attempts": 2}]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reasons = Page(sweep_page.page(folder).decode()).data["instances"]["reason"]
    assert len(reasons) == 14
    assert reasons[3].endswith("(at the second try; the first: it was killed)")


def test_hostile_names_are_text(tmp_path) -> None:
    place = made.sweep_folder(tmp_path / "out", 4, reason=BAD)
    summary = json.loads((place / "summary.json").read_text())
    (place / "summary.json").write_text(json.dumps({**summary, "benchmark": BAD, "version": BAD}))
    text = sweep_page.page(place).decode()
    check_alone(text)
    assert Page(text).data["instances"]["reason"][0] == BAD


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("journal.jsonl", "{}\n", "line 1 is not an answer"),
        ("journal.jsonl", '{"model": "a", "spec": "b", "status": "maybe", "run_time": 1}\n', "'maybe' is unknown"),
        ("journal.jsonl", '{"model": "a", "spec": "b", "status": "sat", "run_time": NaN}\n', "NaN"),
        ("journal.jsonl", "[" * 100_000 + "\n", "line 1"),
        ("journal.jsonl", "", "line 1 is not in"),
        ("journal.jsonl", None, "cannot be read"),
        ("results.csv", "a,b\n", "line 1 is not in"),
        ("results.csv", 'vit,"a', "is not a list of results"),
        ("summary.json", "[]", "no number of instances"),
        ("summary.json", "{", "is not a summary"),
    ],
)
def test_what_does_not_fit_is_named(folder, name, content, text) -> None:
    place = folder / name
    place.unlink()
    if content is not None:
        place.write_text(content)
    with pytest.raises(InvalidValueError, match=text) as error:
        sweep_page.write(folder)
    assert name in str(error.value)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        ([[0.5, -1.0], [2]], -1.0),
        ([], None),
        ([[]], None),
        ([[None]], None),
        (None, None),
        ([["x"]], None),
        ([[True]], None),
    ],
)
def test_the_worst_bound(bounds, least) -> None:
    assert sweep_page.worst(bounds) == least
