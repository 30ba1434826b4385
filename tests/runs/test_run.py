from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs.records import packed, unpacked
from vertex_softmax.runs.run import (
    Attacked,
    AttentionHeads,
    Data,
    Model,
    OtherSlack,
    Radius,
    Run,
    RunAnswer,
    RunInput,
    SlackMap,
    read,
    write,
)

PIXELS = packed(np.arange(4.0).reshape(1, 2, 2) / 4)
RUN = Run(
    title="t",
    version="0",
    created="2026-11-15T00:00:00+00:00",
    model=Model("m", "ab", 0.5, {"dim": 4, "norm": None}),
    data=Data("d", (1, 2, 2), (0.0, 1.0), ("a", "b")),
    methods=("crown", "joint"),
    eps=(0.1, 0.2),
    inputs=(RunInput(3, 0, 0, 1.5, PIXELS), RunInput(4, 1, 0, -0.5, PIXELS)),
    answers=(
        RunAnswer(0, "joint", 0.1, "verified", 0.5, 1, 0.1),
        RunAnswer(1, "joint", 0.1, "falsified", None, 0, 0.1, "misclassified"),
        RunAnswer(0, "crown", 0.1, "unknown", -0.5, 1, 0.1),
    ),
    attacks=(Attacked(0, 0.1, 0.7, 1), Attacked(1, 0.1, -1.0, 0, PIXELS)),
    radii=(Radius(0, "joint", 0.15, 0.16, None, 1.0), Radius(1, "joint", 0.0, 0.0, 0.0, 1.0)),
    slack=SlackMap(0.1, "joint", 1, 0.5, (AttentionHeads("a", [[0.1]], [[[0.2]]]),), (OtherSlack("b", "Relu", 0.4),)),
    settings={"threads": 1, "note": "x", "rate": 0.5, "flag": True, "none": None},
)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(RUN, tmp_path)
    assert read(tmp_path) == RUN
    assert read(tmp_path / "run.json") == RUN


def test_rates_count_every_input() -> None:
    assert RUN.rate("joint", 0.1) == 0.5
    assert RUN.rate("crown", 0.1) is None  # not every input was asked
    assert RUN.rate("joint", 0.2) is None
    assert RUN.ceiling(0.1) == 0.5
    assert RUN.certified_accuracy("joint", 0.15) == 0.5
    assert RUN.certified_accuracy("joint", 0.1501) == 0
    assert RUN.certified_accuracy("joint", 0.0) == 0.5  # the misclassified one has no radius, not radius 0
    assert RUN.certified_accuracy("crown", 0.1) is None


def test_packing_is_exact() -> None:
    x = np.array([[0.1, -1e300, 5e-324], [1 / 3, 0.0, 2.0]])
    assert (unpacked(packed(x), (2, 3)) == x).all()


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("format",), "other", "format"),
        (("extra",), 1, "unknown field 'extra'"),
        (("title",), None, "run.title"),
        (("answers", 0, "input"), 2, "no input 2"),
        (("answers", 0, "input"), -1, "no input -1"),
        (("answers", 0, "input"), True, "answers[0].input"),
        (("answers", 0, "method"), "magic", "'magic'"),
        (("answers", 0, "eps"), 0.15, "0.15"),
        (("answers", 0, "verdict"), "certainly", "'certainly'"),
        (("answers", 0, "bound"), "1", "answers[0].bound"),
        (("answers", 0, "bound"), 1e301, "answers[0].bound"),
        (("attacks", 1, "adversarial"), "AAAA", "picture"),
        (("attacks", 1, "adversarial"), "!", "base64"),
        (("inputs", 0, "pixels"), packed(np.array([np.nan] * 4)), "finite"),
        (("inputs", 0), {"index": 1}, "lacks"),
        (("inputs",), {}, "run.inputs"),
        (("data", "shape"), [1, 2, 0], "shape"),
        (("data", "shape"), [1 << 20, 1 << 20], "shape"),
        (("data", "clip"), [0.0], "1 entries, not 2"),
        (("settings", "x"), [1], "settings.x"),
        (("slack", "attentions", 0, "row_slack"), [["a"]], "row_slack[0][0]"),
        (("radii", 0, "method"), "magic", "'magic'"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, path: tuple[Any, ...], value: object, text: str) -> None:
    data = json.loads(json.dumps(RUN.json()))
    at = data
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    (tmp_path / "run.json").write_text(json.dumps(data))
    with pytest.raises(VertexError, match=r"run\.json") as error:
        read(tmp_path)
    assert text in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": NaN}', "[" * 100_000, "\x00", "1e999"])
def test_what_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(VertexError, match="is not a run"):
        read(tmp_path)


def test_a_missing_run_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(VertexError, match="vertex certify"):
        read(tmp_path)


PLAIN = json.loads(json.dumps(RUN.json()))
WORDS = st.sampled_from([None, True, -1, 0, 1e400, 1e308, "x", [], {}, [[]], "</script>", 2**70])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_change_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    changed = copy.deepcopy(PLAIN)
    at: Any = changed
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if isinstance(at[key], dict | list) and data.draw(st.booleans()):
            at = at[key]
            continue
        at[key] = data.draw(WORDS)
        break
    place = tmp_path_factory.mktemp("run") / "run.json"
    place.write_text(json.dumps(changed))
    try:
        found = read(place)
    except VertexError:
        return
    assert json.loads(json.dumps(found.json(), allow_nan=False))["format"] == "vertex-run/1"


def test_a_page_has_room_for_so_many_curves(tmp_path: Path) -> None:
    data = RUN.json()
    for name, values in (("methods", [f"m{i}" for i in range(65)]), ("eps", [i / 4097 for i in range(4097)])):
        (tmp_path / "run.json").write_text(
            json.dumps({**data, "answers": [], "attacks": [], "radii": [], name: values})
        )
        with pytest.raises(VertexError, match=r"methods and .* are read"):
            read(tmp_path)
