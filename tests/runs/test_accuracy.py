from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs.accuracy import (
    Accuracy,
    Groups,
    PartSizes,
    WorkStage,
    read_accuracy,
    require_accuracy,
    write_accuracy,
)

RECORD = Accuracy(
    title="Max-of-2",
    version="0",
    created="2026-11-18T00:00:00+00:00",
    task="The largest of two tokens.",
    claim="checked",
    inputs=9,
    proved=6,
    right=8,
    parts=3,
    groups=Groups("last token", "largest token", ((1, 2), (0, 6)), ((0, 2), (0, 4)), ((1, 2), (0, 5))),
    sizes=(PartSizes(1, 3, 2, 2), PartSizes(4, 15, 1, 4)),
    stages=(WorkStage("search", 5, 0.25), WorkStage("check", 3, 0.0)),
    wrong=((2, 0),),
    open=((0, 0), (2, 2)),
    facts={"vocabulary": 3, "sha": "ab", "none": None, "share": 0.5, "yes": True},
)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_accuracy(RECORD, tmp_path)
    assert read_accuracy(tmp_path) == RECORD
    assert read_accuracy(tmp_path / "accuracy.json") == RECORD
    groups = dataclasses.replace(RECORD.groups, right=None)
    unknown = dataclasses.replace(RECORD, right=None, groups=groups, wrong=(), stages=())
    write_accuracy(unknown, tmp_path)
    assert read_accuracy(tmp_path) == unknown


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("format",), "vertex-run/1", "format"),
        (("extra",), 1, "unknown field 'extra'"),
        (("title",), 3, "accuracy.title"),
        (("inputs",), 1 << 60, "accuracy.inputs"),
        (("inputs",), 0, "cannot be"),
        (("proved",), 9, "cannot be"),
        (("proved",), -1, "cannot be"),
        (("right",), 5, "cannot be"),
        (("right",), 10, "cannot be"),
        (("right",), None, "not of the groups"),
        (("parts",), 4, "do not add up"),
        (("parts",), -1, "below 0"),
        (("groups", "proved", 1, 1), 6, "add up to"),
        (("groups", "inputs", 0, 1), 3, "add up to"),
        (("groups", "proved"), [[0, 3], [0, 3]], "group (0, 1)"),
        (("groups", "proved"), [[0, 2], [0]], "the same rows"),
        (("groups", "proved"), [], "the same rows"),
        (("groups", "inputs"), [[]], "the same rows"),
        (("groups", "right"), None, "not of the groups"),
        (("sizes", 0, "least"), 0, "parts of 0"),
        (("sizes", 0, "inputs"), 9, "have 9 together"),
        (("sizes", 0, "parts"), 1, "do not add up"),
        (("stages", 0, "evaluations"), -1, "below 0"),
        (("stages", 0, "seconds"), -1.0, "no time"),
        (("stages", 0, "seconds"), 1e301, "stages[0].seconds"),
        (("wrong",), [[0]] * 1001, "examples"),
        (("open", 0), 3, "accuracy.open[0]"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, path: tuple[Any, ...], value: object, text: str) -> None:
    data = json.loads(json.dumps(RECORD.json()))
    at = data
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    (tmp_path / "accuracy.json").write_text(json.dumps(data))
    with pytest.raises(VertexError, match=r"accuracy\.json") as error:
        read_accuracy(tmp_path)
    assert text in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": NaN}', "[" * 100_000, "\x00"])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "accuracy.json").write_text(text)
    with pytest.raises(VertexError, match="is not a record"):
        read_accuracy(tmp_path)


def test_a_record_that_cannot_be_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(VertexError, match="cannot be"):
        write_accuracy(dataclasses.replace(RECORD, proved=9), tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(VertexError, match="cannot be written"):
        write_accuracy(RECORD, tmp_path / "file")
    require_accuracy(RECORD)
