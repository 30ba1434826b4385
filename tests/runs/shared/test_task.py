"""What a shared search is about: the same identity means the same, anything else is told in words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.runs.shared.crews import OPTIONS, files
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.shared.task import SHARED, WORDS, SharedTask, difference, plain_options, read_options
from vertex_softmax.search.verify_files import load_instance

ODD = dataclasses.replace(OPTIONS, box_ascent=Ascent(seconds=0.1), memory=Memory(bytes=1 << 20), pieces=3, goal=1 / 3)


@pytest.mark.parametrize("options", [Options(), SHARED, OPTIONS, ODD, dataclasses.replace(ODD, ascent=None)])
def test_options_come_back_as_they_were(options: Options) -> None:
    assert read_options(json.loads(json.dumps(plain_options(options)))) == options


@pytest.mark.parametrize(
    "change",
    [{"pieces": 0}, {"pieces": "x"}, {"search": None}, {"ascent": {"steps": -1}}, {"nobody": 1}],
)
def test_options_that_are_none_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        read_options({**plain_options(OPTIONS), **change})
    with pytest.raises(InvalidValueError, match="no valid options"):
        read_options(None)


def test_the_identity_is_of_contents(tmp_path: Path) -> None:
    paths = files(tmp_path / "a", 9, 0.1, 0.2)
    task = SharedTask(model=str(paths[0]), spec=str(paths[1]), options=OPTIONS)
    mine = task.identity(load_instance(*paths))
    assert set(mine) == set(WORDS)
    same = files(tmp_path / "b", 9, 0.1, 0.2)
    assert SharedTask(model="", spec="", options=OPTIONS, threads=7).identity(load_instance(*same)) == mine
    limits = files(tmp_path / "c", 9, 0.1, 0.2000001)
    other = task.identity(load_instance(*limits))
    assert difference(mine, other) == "the property says something else"
    model = task.identity(load_instance(*files(tmp_path / "d", 8, 0.1, 0.2)))
    assert "the model has another SHA-256" in difference(mine, model)
    for change in (dataclasses.replace(task, options=ODD), dataclasses.replace(task, device="cuda:1")):
        assert difference(mine, change.identity(load_instance(*paths))) in (WORDS["options"], WORDS["device"])
    assert difference(mine, None) == "nothing is said about what it belongs to"
    assert difference(mine, {}) == ", and ".join(WORDS.values())
    assert difference(mine, dict(mine)) == ""


def test_what_is_left_of_the_memory_is_no_part_of_the_identity(tmp_path: Path) -> None:
    """It is another in every process; the limit that was asked for is a part of it."""
    paths = files(tmp_path / "a", 9, 0.1, 0.2)
    instance = load_instance(*paths)

    def identity(gib: float | None, left: int | None) -> dict[str, str]:
        options = dataclasses.replace(OPTIONS, memory=Memory(total=left))
        return SharedTask(model="", spec="", options=options, memory=gib).identity(instance)

    assert identity(2.0, 1 << 30) == identity(2.0, 3 << 28)
    assert difference(identity(2.0, 1 << 30), identity(3.0, 1 << 30)) == WORDS["options"]
