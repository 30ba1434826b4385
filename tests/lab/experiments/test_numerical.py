"""Counts of margins near zero again from the trials; the primitive's rows are real, and fail if a bound does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.experiments import made
from vertex_lab.experiments import block, interval, numerical, tables
from vertex_lab.experiments.learned import Found
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import ExperimentResult
from vertex_lab.zoo.datasets import NAMES

SHOWN = (made.CROWN, "vertex", made.HYBRID, "joint")
PROVED = 5e-5
NEAR = ("Near-zero (0, 1e-6]", "Near-zero (0, 1e-4]")
FASHION = {"CROWN image margins": 28, "Vertex image margins": 70, "Hybrid image margins": 70}
"""tab:numerical_status_app, certified of 500 on the wide Fashion-MNIST block, none near zero"""


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Found, settings=block.SETTINGS, broken: int = 0
) -> ExperimentResult:
    monkeypatch.setattr(block, "found_trials", lambda _request: (settings, found))
    if broken >= 0:  # the boxes themselves are checked once, below
        counted = [(interval.FAMILIES[0], interval.Tally(360, 0, broken)), (interval.FAMILIES[1], interval.Tally(1))]
        monkeypatch.setattr(interval, "tallies", lambda _request, _families: counted)
    for name in ("case", "dataset"):  # no model is needed: proofs are tried in tests/certificate
        monkeypatch.setattr(numerical, name, lambda *_: None)
    monkeypatch.setattr(numerical, "prove", lambda _case, _epsilon, image: PROVED if image % 3 else None)
    return numerical.run(Request(tmp_path))


def test_every_count_is_what_the_trials_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made.found(block.SETTINGS)
    rows = list(run(tmp_path, monkeypatch, found).rows[2:])
    near = 0
    for setting in block.SETTINGS:
        epsilon = 0.01 if setting.data == "cifar10-gray" else 0.02
        here = [t for t in found.trials if (t["setting"], t["epsilon"]) == (setting.name, epsilon)]
        for method in SHOWN:
            sure = [made.worst(t, method) for t in made.correct(here) if t["bounds"][method]["certified"]]
            assert rows.pop(0) == {
                "Check": f"{setting.name} ε={epsilon:g}",
                "Scope": f"{made.LABEL[method]} image margins",
                "N": len(here),
                "FP cert.": len(sure),
                NEAR[0]: len([m for m in sure if 0 < m <= 1e-6]),
                NEAR[1]: len([m for m in sure if 0 < m <= 1e-4]),
                "Smallest certified margin": min(sure, default=None),
                "Status": "floating point",
            }
            near += len([m for m in sure if m <= 1e-6])
        sure = [t for t in made.correct(here) if t["bounds"]["joint"]["certified"]]
        proved = len([t for t in sure if t["image"] % 3])
        assert rows.pop(0) == {
            "Check": f"{setting.name} ε={epsilon:g}",
            "Scope": numerical.PROVED,
            "N": len(here),
            "FP cert.": proved,
            NEAR[0]: 0,
            NEAR[1]: proved,
            "Smallest certified margin": PROVED if proved else None,
            "Status": f"proved: {proved} of {len(sure)}",
        }
    assert not rows
    assert near > 10  # the trials would show a wrong count


def test_nothing_certified_has_no_smallest_margin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made.found(block.SETTINGS)
    for trial in made.correct(found.trials):
        trial["bounds"] = {m: {**b, "certified": False} for m, b in trial["bounds"].items()}
    for row in run(tmp_path, monkeypatch, found).rows[2:]:
        assert (row["FP cert."], row[NEAR[0]], row[NEAR[1]], row["Smallest certified margin"]) == (0, 0, 0, None)


def test_published_figures_stand_in_their_rows_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tmp_path, monkeypatch, made.found(block.SETTINGS))
    zero = {NEAR[0]: 0, NEAR[1]: 0}
    assert list(result.published[:2]) == [{"N": 360, **zero}, {"N": 1, **zero}]
    for ours, theirs in zip(result.rows[2:], result.published[2:], strict=True):
        certified = FASHION.get(str(ours["Scope"]))
        if ours["Check"] == "Fashion-MNIST d=32,h=4,m=64 ε=0.02" and certified:
            assert theirs == {"N": 500, "FP cert.": certified, **zero}
        else:
            assert theirs == {}
    assert sum(bool(theirs) for theirs in result.published) == 5


@pytest.mark.parametrize("data", NAMES)
def test_on_any_data_every_setting_is_counted_at_an_epsilon_it_has(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tables.on_data(block.SETTINGS, Request(tmp_path, data=data))
    result = run(tmp_path, monkeypatch, made.found(settings), settings)
    assert not made.idle(result)
    assert len(result.rows) == 2 + len(settings) * (len(SHOWN) + 1)
    assert sum(bool(theirs) for theirs in result.published[2:]) == (3 if data == "fashion-mnist" else 0)


def test_the_boxes_are_really_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path, monkeypatch, Found(), (), broken=-1)
    assert [row["N"] for row in result.rows] == [360, 1]
    assert [row[name] for row in result.rows for name in NEAR] == [0, 0, 0, 0]
    monkeypatch.setattr(interval, "check", lambda *_: pytest.fail("checked again"))
    assert interval.tallies(Request(tmp_path), interval.FAMILIES[:2])[0][1].boxes == 360  # the same journal


def test_missing_data_broken_boxes_and_broken_bounds_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made.found(block.SETTINGS, without=["cifar10-gray"])
    planted = made.correct(found.trials)[5]
    planted["bounds"]["joint"]["worst"] = made.attacked(planted) + 1
    result = run(tmp_path, monkeypatch, found, broken=2)
    assert [row["Check"] for row in made.idle(result)] == 5 * ["CIFAR-10 gray d=32,h=4,m=64 ε=0.01"]
    assert len([note for note in result.notes if "vertex data fetch cifar10-gray" in note]) == 1
    assert result.failures[0] == "2 boxes violate a proved bound"
    assert planted["key"] in result.failures[1]
    assert len(result.failures) == 2
