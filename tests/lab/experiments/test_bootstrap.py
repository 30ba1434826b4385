"""Certified rates and intervals again from the trials; published ones in their rows, with their denominators."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path

import pytest

from tests.lab.experiments import made
from vertex_lab.experiments import block, bootstrap, patch
from vertex_lab.experiments.learned import Found
from vertex_softmax.runs.journal import Trial

CONDITIONAL, END_TO_END = "clean-correct", "end to end"
PUBLISHED = {
    ("Binary, 16 tokens", 0.03, "Vertex", CONDITIONAL): (3, 20.3, 77.8, 57.5, "[+39.2, +67.4]"),
    ("Binary, 49 tokens", 0.03, "Vertex", CONDITIONAL): (2, 46.5, 92.5, 46.0, "[+32.6, +59.4]"),
    ("10-class, 16 tokens", 0.02, "Vertex", CONDITIONAL): (3, 3.3, 12.9, 9.5, "[+6.0, +12.0]"),
    ("MNIST d=32,h=4,m=64", 0.02, "Hybrid", CONDITIONAL): (3, 10.2, 14.3, 4.2, "[+2.5, +5.5]"),
    ("Fashion-MNIST d=32,h=4,m=64", 0.02, "Hybrid", END_TO_END): (5, 5.6, 14.0, 8.4, "[+5.8, +11.2]"),
    ("Fashion-MNIST d=16,h=2,m=64", 0.02, "Hybrid", END_TO_END): (5, 9.6, 25.2, 15.6, "[+14.2, +16.6]"),
    ("CIFAR-10 gray d=32,h=4,m=64", 0.01, "Hybrid", END_TO_END): (5, 0.4, 2.6, 2.2, "[+0.8, +3.8]"),
}
"""tab:bootstrap_ci_app"""
METHODS = {"Vertex": "vertex", "Hybrid": made.HYBRID, "joint (ours)": "joint"}
run = functools.partial(made.derived, bootstrap)


def percent(here: list[Trial], method: str) -> dict[int, float]:
    """Of each seed's trials, those that are correct and certified."""
    found: dict[int, list[bool]] = {}
    for trial in here:
        found.setdefault(trial["seed"], []).append(trial["correct"] and trial["bounds"][method]["certified"])
    return {seed: 100 * sum(hits) / len(hits) for seed, hits in found.items()}


def test_every_cell_is_what_the_trials_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made.found(block.SETTINGS), made.found(patch.SETTINGS)
    result = run(tmp_path, monkeypatch, *found)
    rows = list(result.rows)
    for setting in (*patch.SETTINGS, *block.SETTINGS):
        for epsilon in setting.epsilons:
            here = [t for f in found for t in f.trials if (t["setting"], t["epsilon"]) == (setting.name, epsilon)]
            for denominator in (CONDITIONAL,) if setting.clean_correct else (CONDITIONAL, END_TO_END):
                counted = made.correct(here) if denominator == CONDITIONAL else here
                crown = percent(counted, made.CROWN)
                for label, method in METHODS.items():
                    ours = percent(counted, method)
                    changes = [ours[seed] - crown[seed] for seed in crown]
                    row = dict(rows.pop(0))
                    ends = re.fullmatch(r"\[([+-]\d+\.\d), ([+-]\d+\.\d)\]", str(row.pop("Interval pp")))
                    assert ends is not None
                    # of 3 seeds the same one comes three times in a 27th of the draws, more than 2.5 %
                    assert float(ends[1]) == pytest.approx(min(changes), abs=0.0501)
                    assert float(ends[2]) == pytest.approx(max(changes), abs=0.0501)
                    assert row == {
                        "Setting": setting.name,
                        "ε": epsilon,
                        "Method": label,
                        "Denominator": denominator,
                        "Seeds": 3,
                        "CROWN (%)": pytest.approx(made.mean(crown.values())),
                        "Method (%)": pytest.approx(made.mean(ours.values())),
                        "Δ pp": pytest.approx(made.mean(changes)),
                        "Status": "run",
                    }
    assert not rows


def test_five_seeds_have_the_interval_of_all_their_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = block.SETTINGS[1]
    found = Found(made.trials([setting], seeds=(0, 1, 2, 3, 4), images=9))
    result = run(tmp_path, monkeypatch, found, Found())
    (row,) = [r for r in result.rows if r.get("Seeds") and r["Denominator"] == END_TO_END and r["Method"] == "Vertex"]
    crown, vertex = percent(found.trials, made.CROWN), percent(found.trials, "vertex")
    changes = [vertex[seed] - crown[seed] for seed in crown]
    means = sorted(sum(draw) / 5 for draw in itertools.product(changes, repeat=5))
    low, high = (float(end) for end in re.findall(r"[+-]\d+\.\d", str(row["Interval pp"])))
    for end, share in ((low, 0.025), (high, 0.975)):  # 10,000 draws miss a share by 0.008 in five standard errors
        least, most = means[int((share - 0.008) * 3125)], means[int((share + 0.008) * 3125)]
        assert least - 0.0501 <= end <= most + 0.0501


def test_published_figures_stand_in_their_rows_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tmp_path, monkeypatch, made.found(block.SETTINGS), made.found(patch.SETTINGS))
    seen = 0
    for ours, theirs in zip(result.rows, result.published, strict=True):
        cells = PUBLISHED.get(tuple(ours[name] for name in ("Setting", "ε", "Method", "Denominator")))  # type: ignore[arg-type]
        names = ("Seeds", "CROWN (%)", "Method (%)", "Δ pp", "Interval pp")
        assert tuple(theirs.get(name) for name in names) == (cells or (None,) * 5)
        seen += cells is not None
    assert seen == len(PUBLISHED)


def test_missing_data_and_broken_bounds_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, patches = made.found(block.SETTINGS), made.found(patch.SETTINGS, without=["mnist"])
    planted = made.correct(blocks.trials)[5]
    planted["bounds"]["vertex"]["worst"] = made.attacked(planted) + 1
    result = run(tmp_path, monkeypatch, blocks, patches)
    assert {row["Setting"] for row in made.idle(result)} == {s.name for s in patch.SETTINGS}
    assert all(set(row) == {"Setting", "ε", "Method", "Denominator", "Status"} for row in made.idle(result))
    assert len([note for note in result.notes if "vertex data fetch mnist" in note]) == 3
    assert len(result.failures) == 1
    assert planted["key"] in result.failures[0]
