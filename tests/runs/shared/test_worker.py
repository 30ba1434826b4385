"""A worker: it works on what it was asked about, or says why it cannot."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runs.shared.crews import Rehearsed, ask, files
from vertex_softmax.bounds.boxes import Boxes, Problem
from vertex_softmax.bounds.question import Question
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.shared.worker import TreeWorker
from vertex_softmax.search.branching import root_boxes
from vertex_softmax.search.verify_files import load_instance


@pytest.fixture
def orders(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The first order of each kind of a search, as it was sent."""
    workers = Rehearsed(1)
    assert ask(files(tmp_path, 9, 0.01, 0.02), workers)[0].verdict is Verdict.VERIFIED
    found: dict[str, dict[str, Any]] = {}
    for order in workers.told:
        found.setdefault(order["do"], order)
    assert list(found) == ["load", "root", "aim", "grow"]
    return found


def told(*orders: dict[str, Any]) -> dict[str, Any]:
    """The answer to the last of some orders."""
    worker, answer = TreeWorker(), dict[str, Any]()
    for order in orders:
        answer = worker.answer(order)
    return answer


def test_the_answer_is_about_the_parts_that_were_given(orders: dict[str, dict[str, Any]]) -> None:
    found = told(*orders.values())
    grow = orders["grow"]
    assert {answer["part"] for answer in found["answers"]} <= {part["part"] for part in grow["parts"]}
    assert (found["did"], found["order"], found["case"]) == ("grow", grow["order"], 0)
    assert set(found) == {"did", "case", "order", "answers", "bounded", "witness"}


def test_the_boxes_may_be_left_to_the_aim(orders: dict[str, dict[str, Any]]) -> None:
    assert told(orders["load"], orders["aim"])["root"] == told(*list(orders.values())[:3])["root"]


@pytest.mark.parametrize("name", ["model", "graph", "property", "options", "source", "device"])
def test_something_else_is_refused(name: str, orders: dict[str, dict[str, Any]]) -> None:
    identity = {**orders["load"]["identity"], name: "another"}
    assert "another search than it was asked for" in told({**orders["load"], "identity": identity})["unfit"]
    del identity[name]
    assert "another search" in told({**orders["load"], "identity": identity})["unfit"]
    assert "nothing is said" in told({**orders["load"], "identity": None})["unfit"]


def test_a_file_that_changes_is_refused(orders: dict[str, dict[str, Any]]) -> None:
    spec = Path(orders["load"]["spec"])
    spec.write_text(spec.read_text().replace("(<= X_0 1.0)", "(<= X_0 0.75)"))
    assert "the property says something else" in told(orders["load"])["unfit"]
    spec.unlink()
    assert "unfit" in told(orders["load"])


def test_boxes_with_problems_are_not_used(orders: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in one process: where two boxes contradict each other nothing is concluded."""

    def troubled(question: Question, options: Options) -> Boxes:
        boxes = root_boxes(question, options)
        problem = Problem(question.graph.output, torch.tensor([True]), "two bounds cross")
        return dataclasses.replace(boxes, problems=(problem,))

    monkeypatch.setattr("vertex_softmax.runs.shared.worker.root_boxes", troubled)
    assert "boxes cannot be used: two bounds cross" in told(orders["load"], orders["aim"])["unfit"]


@pytest.mark.parametrize("by", [1e-6, 1.0, float("inf")])
def test_other_bounds_of_the_whole_set_are_refused(by: float, orders: dict[str, dict[str, Any]]) -> None:
    aim = orders["aim"]
    root = [(float.fromhex(text) + by).hex() for text in aim["root"]]
    answer = told(orders["load"], {**aim, "root": root})
    assert "bounds of the whole set are not those of the search" in answer["unfit"]
    close = [(float.fromhex(text) * (1 + 1e-13)).hex() for text in aim["root"]]
    assert "unfit" not in told(orders["load"], {**aim, "root": close})


@pytest.mark.parametrize(
    "change",
    [
        {"rows": []},
        {"rows": None},
        {"goals": ["nan", "nan"]},
        {"goals": [(0.0).hex()]},
        {"objectives": 3},
        {"objectives": "2"},
        {"open": [2]},
        {"open": [True]},
        {"open": 0},
        {"case": 1},
        {"case": -1},
        {"left": "soon"},
    ],
)
def test_an_aim_that_is_none_is_refused(change: dict[str, Any], orders: dict[str, dict[str, Any]]) -> None:
    assert "unfit" in told(orders["load"], {**orders["aim"], **change})


@pytest.mark.parametrize(
    "change",
    [
        {"parts": None},
        {"parts": [{}]},
        {"case": 1},
        {"seconds": 1.0},
        {"domains": None},
        {"order": None},
        {"parts": [{"part": None, "objective": 0, "splits": [], "bound": "-inf", "multipliers": []}]},
        {"parts": [{"part": 0, "objective": 9, "splits": [], "bound": "-inf", "multipliers": []}]},
        {"parts": [{"part": 0, "objective": 0, "splits": [["0 x"]], "bound": "-inf", "multipliers": []}]},
        {"parts": [{"part": 0, "objective": 0, "splits": [], "bound": "nan", "multipliers": []}]},
    ],
)
def test_parts_that_are_none_are_refused(change: dict[str, Any], orders: dict[str, dict[str, Any]]) -> None:
    assert "unfit" in told(orders["load"], orders["aim"], {**orders["grow"], **change})


def test_everything_has_its_order(orders: dict[str, dict[str, Any]]) -> None:
    assert "before it was told of a model" in told(orders["root"])["unfit"]
    assert "before it was told of a model" in told(orders["aim"])["unfit"]
    assert "has no objectives of" in told(orders["load"], orders["grow"])["unfit"]
    assert "no worker can 'dance'" in told({"do": "dance"})["unfit"]


def test_a_case_that_is_taken_again_begins_anew(orders: dict[str, dict[str, Any]]) -> None:
    first = told(*orders.values())
    again = told(*orders.values(), orders["aim"], orders["grow"])
    assert [a["tree"] for a in first["answers"]] == [a["tree"] for a in again["answers"]]


def test_time_that_is_over_is_said(orders: dict[str, dict[str, Any]]) -> None:
    for name in ("root", "aim"):
        assert told(orders["load"], {**orders[name], "left": (0.0).hex()}) == {"did": name, "late": True}
    found = told(orders["load"], orders["aim"], {**orders["grow"], "left": (0.0).hex()})
    assert (found["answers"], found["bounded"]) == ([], 0) or found["answers"][0]["tree"]


def test_memory_is_limited_if_it_is_asked_for(
    orders: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    monkeypatch.setattr("vertex_softmax.runs.shared.worker.limit_memory", limits.append)
    told({**orders["load"], "memory": 3.5})
    told(orders["load"])
    assert limits == [3.5]
    assert "unfit" in told({**orders["load"], "memory": "much"})


def test_what_descents_find_is_confirmed_by_the_workers_own_replay(tmp_path: Path) -> None:
    """y₀ is at most its least value and a little somewhere; descents from a corner find it, time and again."""
    workers, paths = Rehearsed(1), files(tmp_path, 9, -0.05, 0.02)
    assert ask(paths, workers)[0].verdict is Verdict.FALSIFIED
    orders = {order["do"]: order for order in reversed(workers.told)}
    worker = TreeWorker()
    start = torch.tensor([[1.0, 1.0], [-1.0, 1.0 + 1e-12], [-1.0, -1.0], [1.0, -1.0]]).double()
    assert worker._attack(start, [0] * 4, math.inf) is None  # of nothing
    for name in ("load", "root"):
        assert "unfit" not in worker.answer(orders[name])
    instance = load_instance(*paths)
    for _ in range(2):
        found = worker._attack(start, [1, 0, 0, 0], math.inf)
        assert found is not None
        assert found[1] == 1
        assert instance.replay.confirms(instance.prop, found[0].numpy()) is not None
        assert float(found[0].abs().max()) <= 1


def test_memory_that_is_exhausted_is_said(orders: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr("vertex_softmax.runs.shared.worker.root_boxes", short)
    assert "not enough memory" in told(orders["load"], orders["root"])["unfit"]
