"""Small blocks: every trial a network of its own, measured once; every cell again from the trials."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.experiments import made
from vertex_lab.experiments import strong
from vertex_lab.experiments.learned import METHODS, Found
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import ExperimentResult
from vertex_lab.experiments.synthetic import heads
from vertex_softmax.runs.journal import Trial

PUBLISHED = {
    ("K=4, d=16, ε=0.03", "α-crown (ours)"): (0.742, 0.2912, 1.662),
    ("K=4, d=16, ε=0.03", "Vertex"): (0.742, 0.2809, 0.042),
    ("K=4, d=16, ε=0.05", "CROWN"): (0.125, -1.0350, 0.158),
    ("K=4, d=16, ε=0.05", "α-crown (ours)"): (0.500, -0.0311, 1.537),
    ("K=4, d=16, ε=0.05", "Vertex"): (0.625, 0.1327, 0.033),
    ("K=4, d=16, ε=0.05", "branch and bound"): (0.500, None, 267.806),
    ("K=4, d=32, ε=0.03", "CROWN"): (0.083, -1.2730, 0.190),
    ("K=4, d=32, ε=0.03", "α-crown (ours)"): (0.250, -0.1853, 1.752),
    ("K=4, d=32, ε=0.03", "Vertex"): (0.500, 0.0645, 0.037),
    ("K=4, d=32, ε=0.03", "branch and bound"): (0.292, None, 395.091),
    ("K=6, d=16, ε=0.03", "α-crown (ours)"): (0.583, 0.1219, 1.678),
    ("K=6, d=16, ε=0.03", "Vertex"): (0.591, 0.1255, 0.042),
    ("Residual MHA, ε=0.03", "CROWN"): (0.313, -3.901, 0.177),
    ("Residual MHA, ε=0.03", "Vertex"): (0.337, -2.631, 0.071),
    ("Residual MHA, ε=0.03", "α-crown (ours)"): (0.410, -0.455, 3.729),
    ("Residual MHA, ε=0.05", "CROWN"): (0.000, -39.475, 0.169),
    ("Residual MHA, ε=0.05", "Vertex"): (0.163, -13.054, 0.070),
    ("Residual MHA, ε=0.05", "α-crown (ours)"): (0.067, -16.334, 3.672),
}
"""tab:selected_strong_baselines_app: certified, lower, seconds"""
PAIRED = {"K=4, d=16, ε=0.05": (0.164, 0.139, 0.875, "4/1"), "K=4, d=32, ε=0.03": (0.250, 0.232, 23 / 24, "6/0")}
"""tab:paired_strong_baseline_app, Vertex − α-CROWN"""
DELTAS = ("Δ to α, mean", "Δ to α, median", "> α", "only / only α")


def trial(chance: random.Random, key: str, seed: int) -> Trial:
    attack = chance.gauss(0.3, 0.5)
    bounds = made.bounds(chance, attack)
    return {"key": key, "seed": seed, "correct": True, "attack": {"strong": attack}, "bounds": bounds}


class Made:
    """Trials by hand in the place of measured ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, residual: bool = True) -> None:
        chance = random.Random(3)
        self.heads = {
            block.name: [trial(chance, f"{block.name} {seed} {i}", seed) for seed in (0, 2) for i in range(4 + seed)]
            for block in strong.BLOCKS
        }
        monkeypatch.setattr(strong, "_heads", lambda block, _request: self.heads[block.name])
        self.residual = Found()
        self.there = residual
        monkeypatch.setattr(strong, "trials", self._trials)
        monkeypatch.setattr(strong, "with_published", lambda _name, _settings, found, _request: found)

    def _trials(self, name: str, settings: list[Any], _request: Request) -> Found:
        assert name == "strong-residual"
        if not self.residual.trials:
            self.residual = made.found(settings, without=() if self.there else [s.data for s in settings])
        return self.residual

    def of(self, setting: str) -> list[Trial]:
        if setting in self.heads:
            return self.heads[setting]
        name, epsilon = setting.rsplit(", ε=", 1)
        return [t for t in self.residual.trials if (t["setting"], t["epsilon"]) == (name, float(epsilon))]


def middle(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def test_every_cell_is_what_the_trials_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = Made(monkeypatch)
    result = strong.run(Request(tmp_path))
    settings = [*by_hand.heads, "Residual MHA, ε=0.03", "Residual MHA, ε=0.05"]
    rows = list(result.rows)
    for setting in settings:
        here = by_hand.of(setting)
        ceiling = made.seed_mean(here, lambda t: min(t["attack"].values()))
        for method, label in made.LABEL.items():
            lower = made.seed_mean(here, lambda t, m=method: made.worst(t, m))
            expected = {
                "Setting": setting,
                "Method": label,
                "N": len(here),
                "Cert.": pytest.approx(made.mean(t["bounds"][method]["certified"] for t in here)),
                "Lower": pytest.approx(lower),
                "Gap": pytest.approx(ceiling - lower),
                "Sec./trial": pytest.approx(made.mean(t["bounds"][method]["seconds"] for t in here)),
                "Status": "run",
            }
            if method != "alpha-crown":
                gains = [made.worst(t, method) - made.worst(t, "alpha-crown") for t in here]
                sure = [(t["bounds"][method]["certified"], t["bounds"]["alpha-crown"]["certified"]) for t in here]
                cells = (
                    pytest.approx(made.mean(gains)),
                    pytest.approx(middle(gains)),
                    pytest.approx(made.mean(gain > 1e-9 for gain in gains)),
                    f"{sure.count((True, False))}/{sure.count((False, True))}",
                )
                expected |= dict(zip(DELTAS, cells, strict=True))
            assert rows.pop(0) == expected
        branched = rows.pop(0)
        assert (branched["Setting"], branched["Method"]) == (setting, "branch and bound")
        assert not made.numbers(branched)
    assert not rows
    assert result.settings["trials"] == sum(len(by_hand.of(setting)) for setting in settings)
    assert not result.failures


def stands(result: ExperimentResult) -> dict[tuple[str, str], dict[str, Any]]:
    pairs = zip(result.rows, result.published, strict=True)
    return {(str(ours["Setting"]), str(ours["Method"])): dict(theirs) for ours, theirs in pairs}


def test_published_figures_stand_in_their_rows_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Made(monkeypatch)
    found = stands(strong.run(Request(tmp_path)))
    assert PUBLISHED.keys() <= found.keys()
    for place, theirs in found.items():
        cells = dict(zip(("Cert.", "Lower", "Sec./trial"), PUBLISHED.get(place, (None,) * 3), strict=True))
        if place[1] == "Vertex":
            cells |= dict(zip(DELTAS, PAIRED.get(place[0], (None,) * 4), strict=True))
        assert theirs == {name: cell for name, cell in cells.items() if cell is not None}


def test_on_other_data_the_residual_rows_have_no_published_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Made(monkeypatch)
    found = stands(strong.run(Request(tmp_path, data="digits")))
    assert {place: cells for place, cells in found.items() if place[0].startswith("K=")} == {
        place: cells for place, cells in stands(strong.run(Request(tmp_path))).items() if place[0].startswith("K=")
    }
    others = {place: cells for place, cells in found.items() if not place[0].startswith("K=")}
    assert {place[0] for place in others} == {"digits Residual MHA, ε=0.06", "digits Residual MHA, ε=0.1"}
    assert not any(others.values())


def test_missing_data_and_broken_bounds_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = Made(monkeypatch, residual=False)
    planted = by_hand.heads["K=6, d=16, ε=0.03"][-1]
    planted["bounds"]["alpha-crown"]["worst"] = planted["attack"]["strong"] + 1e-3
    result = strong.run(Request(tmp_path))
    idle = [row for row in made.idle(result) if row["Method"] != "branch and bound"]
    assert {row["Setting"] for row in idle} == {"Residual MHA, ε=0.03", "Residual MHA, ε=0.05"}
    assert len(idle) == 2 * len(made.LABEL)
    assert [note for note in result.notes if "not run here" in note and "vertex data fetch mnist" in note]
    assert len(result.failures) == 1
    assert planted["key"] in result.failures[0]


@pytest.mark.parametrize("method", ["alpha-crown", made.CROWN])
def test_bounds_that_are_not_finite_leave_their_cells_open(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = Made(monkeypatch)
    setting = strong.BLOCKS[1].name
    by_hand.heads[setting][2]["bounds"][method] = {"worst": None, "certified": False, "seconds": 0.5}
    result = strong.run(Request(tmp_path))  # and the JSON has no NaN
    for row in result.rows:
        if row["Setting"] == setting and row["Method"] != "branch and bound":
            hit = row["Method"] == made.LABEL[method]
            assert (row["Lower"] is None, row["Gap"] is None) == (hit, hit)
            open_cells = hit or method == "alpha-crown" or row["Method"] == "α-crown (ours)"
            assert ("Δ to α, mean" in row) == (not open_cells)
            assert row["Cert."] is not None
    assert json.loads((tmp_path / "strong.json").read_text())


def test_the_picture_shows_the_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Made(monkeypatch)
    kept = []
    monkeypatch.setattr(strong, "save_figure", lambda figure, *_: kept.append(figure))
    result = strong.run(Request(tmp_path))
    (axes,) = kept[0].axes
    labels = ("CROWN", "α-crown (ours)", "Vertex", "joint (ours)", "branch and bound")
    for bars, label in zip(axes.containers, labels, strict=True):
        rates = [r.get("Cert.") or 0.0 for r in result.rows if r["Method"] == label]  # the residual block is not split
        assert [bar.get_height() for bar in bars] == rates
    marks = [y for line in axes.lines for y in line.get_ydata()]
    assert sorted(marks) == sorted(cells[0] for place, cells in PUBLISHED.items() if place[1] in labels)


def faked(monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[float]]:
    """Measurements that take no time; which heads they were of, by a number of theirs."""
    measured: list[float] = []
    published: list[float] = []

    def measure(head: Any, epsilon: float) -> dict[str, Any]:
        measured.append(float(head.x.sum()))
        return {"correct": True, "attack": {"strong": epsilon}, "bounds": {"vertex": {"worst": measured[-1]}}}

    def published_bounds(_graph: Any, ball: Any, label: torch.Tensor) -> list[dict[str, Any]]:
        published.append(float(ball.x.sum()))
        assert float((ball.upper - ball.x).max()) == pytest.approx(0.03)
        return [{made.CROWN: {"worst": published[-1]}, made.HYBRID: {"worst": int(label)}}]

    def branch(head: Any, epsilon: float, seconds: float) -> dict[str, Any]:
        return {"worst": float(head.x.sum()), "certified": True, "seconds": seconds}

    monkeypatch.setattr(strong, "measure", measure)
    monkeypatch.setattr(strong, "branch", branch)
    monkeypatch.setattr(strong, "published_bounds", published_bounds)
    return measured, published


def test_every_head_is_measured_once_beyond_the_first_batch_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, published = faked(monkeypatch)
    monkeypatch.setattr(strong, "TRIALS", 52)
    block = strong.BLOCKS[3]
    seen: list[tuple[str, int, int]] = []
    request = Request(tmp_path, seeds=(1, 6), progress=lambda *args: seen.append(args))
    found = strong._heads(block, request)
    drawn = [batch.at(i) for seed in (1, 6) for batch in heads(6, seed, 52) for i in range(len(batch))]
    assert measured == published == [float(head.x.sum()) for head in drawn]
    assert len(set(measured)) == len(found) == 104
    assert [t["bounds"]["vertex"]["worst"] for t in found] == measured
    assert [t["bounds"][made.CROWN]["worst"] for t in found] == measured
    assert [t["bounds"][made.HYBRID]["worst"] for t in found] == [int(head.margin() <= 0) for head in drawn]
    assert [t["seed"] for t in found] == [1] * 52 + [6] * 52
    assert len({t["key"] for t in found}) == 104
    assert all("ε=0.03" in t["key"] and "K=6, d=16" in t["key"] for t in found)
    assert seen[0] == (block.name, 0, 104)
    assert seen[-1] == (block.name, 104, 104)
    assert strong._heads(block, request) == found
    assert len(measured) == len(published) == 104
    assert len((tmp_path / "journals" / "strong.jsonl").read_text().splitlines()) == 104


def test_what_was_interrupted_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, published = faked(monkeypatch)
    block, request = strong.BLOCKS[0], Request(tmp_path, quick=True)
    of = strong._published_of

    def stop(*arguments: Any) -> dict[str, Any]:
        if len(published) == 5:
            raise KeyboardInterrupt
        return of(*arguments)

    monkeypatch.setattr(strong, "_published_of", stop)
    with pytest.raises(KeyboardInterrupt):
        strong._heads(block, request)
    assert (len(measured), len(published)) == (6, 5)
    monkeypatch.setattr(strong, "_published_of", of)
    found = strong._heads(block, request)
    assert len(found) == strong.SEEDS * strong.QUICK_TRIALS
    assert len(measured) == len(set(measured)) == len(published) == len(set(published)) == len(found)
    more = strong._heads(block, Request(tmp_path, seeds=(0,)))  # a full run goes on from a quick one
    assert len(measured) == len(found) + strong.TRIALS - strong.QUICK_TRIALS
    for ours, theirs in zip(more, found[: strong.QUICK_TRIALS], strict=False):  # but for what had another budget
        assert ours["bounds"].pop("bab")["seconds"] == strong.SECONDS
        assert theirs["bounds"].pop("bab")["seconds"] == strong.QUICK_SECONDS
        assert ours == theirs


def test_branch_and_bound_is_at_least_joint_and_below_the_attack() -> None:
    torch.set_num_threads(1)
    head = next(heads(4, 1, 40)).at(0)
    measured = strong.measure(head, 0.05)
    found = strong.branch(head, 0.05, 0.5)
    assert found["worst"] >= measured["bounds"]["joint"]["worst"]
    assert found["worst"] <= measured["attack"]["strong"]
    assert found["certified"] is (found["worst"] > 0)


@pytest.mark.parametrize("which", [0, 1])
def test_a_measured_head_is_bounded_below_what_it_reaches(which: int) -> None:
    torch.set_num_threads(1)
    batch = next(heads(4, 1, 40))
    signs = batch.sign.tolist()
    head = batch.at(signs.index([1.0, -1.0][which]))
    found = strong.measure(head, 0.05) | {"seed": 0, "key": "k"}
    found["bounds"] |= strong._published_of(head, strong.BLOCKS[1])
    assert set(found["bounds"]) == {*METHODS, made.CROWN, made.HYBRID}
    generator = torch.Generator().manual_seed(0)
    moves = torch.rand(2000, *head.x.shape, generator=generator, dtype=torch.float64) * 2 - 1
    moves[:1000] = moves[:1000].sign()
    reached = min(float(head.sign * head.margin(head.x + 0.05 * move)) for move in moves)
    attack = found["attack"]["strong"]
    assert attack <= reached + 1e-9
    assert abs(float(head.margin())) >= attack
    for method, bound in found["bounds"].items():
        assert bound["worst"] <= attack + 1e-9, method
        assert bound["certified"] == (bound["worst"] > 0)
    assert found["bounds"][made.HYBRID]["worst"] >= found["bounds"]["vertex"]["worst"] - 1e-9
    assert strong.violations([found]) == []
