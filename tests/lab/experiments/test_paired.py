"""Paired differences again from the trials, with the published ones beside Hybrid − CROWN and nowhere else."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.lab.experiments import made
from vertex_lab.experiments import block, paired, patch
from vertex_lab.experiments.learned import Setting

PUBLISHED = {
    ("Fashion-MNIST d=32,h=4,m=64", 0.01): (358, 0.215, 0.000, 0.307),
    ("Fashion-MNIST d=32,h=4,m=64", 0.02): (358, 6.402, 4.256, 0.997),
    ("Fashion-MNIST d=32,h=4,m=64", 0.03): (358, 33.608, 27.577, 1.000),
    ("Fashion-MNIST d=16,h=2,m=64", 0.02): (344, 4.608, 2.254, 0.971),
    ("CIFAR-10 gray d=32,h=4,m=64", 0.005): (188, 0.182, 0.000, 0.277),
    ("CIFAR-10 gray d=32,h=4,m=64", 0.01): (188, 4.521, 2.680, 1.000),
}
"""tab:paired_nonmnist_app"""
COMPARED = {
    "Vertex − CROWN": (made.CROWN, "vertex"),
    "Hybrid − CROWN": (made.CROWN, made.HYBRID),
    "joint (ours) − Hybrid": (made.HYBRID, "joint"),
    "joint (ours) − α-crown (ours)": ("alpha-crown", "joint"),
}
ALL: tuple[Setting, ...] = (*block.SETTINGS, *patch.SETTINGS)
run = functools.partial(made.derived, paired)


def test_every_cell_is_what_the_trials_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made.found(block.SETTINGS), made.found(patch.SETTINGS)
    result = run(tmp_path, monkeypatch, *found)
    rows = list(result.rows)
    for setting in ALL:
        for epsilon in setting.epsilons:
            here = [t for f in found for t in f.trials if (t["setting"], t["epsilon"]) == (setting.name, epsilon)]
            right = made.correct(here)
            for label, (before, after) in COMPARED.items():
                gains = sorted(made.worst(t, after) - made.worst(t, before) for t in right)
                half = len(gains) // 2
                assert rows.pop(0) == {
                    "Setting": setting.name,
                    "ε": epsilon,
                    "Compared": label,
                    "N": len(right),
                    "Mean Δ": pytest.approx(
                        made.seed_mean(right, lambda t, a=after, b=before: made.worst(t, a) - made.worst(t, b))
                    ),
                    "Median Δ": pytest.approx(gains[half] if len(gains) % 2 else (gains[half - 1] + gains[half]) / 2),
                    "Fraction improved": pytest.approx(sum(gain > 1e-9 for gain in gains) / len(gains)),
                    "Status": "run",
                }
    assert not rows
    assert not result.failures
    assert (tmp_path / "paired.tex").exists()


def test_published_figures_stand_in_their_rows_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tmp_path, monkeypatch, made.found(block.SETTINGS), made.found(patch.SETTINGS))
    seen = 0
    for ours, theirs in zip(result.rows, result.published, strict=True):
        cells = PUBLISHED.get((str(ours["Setting"]), float(str(ours["ε"]))))
        if cells and ours["Compared"] == "Hybrid − CROWN":
            assert tuple(theirs[name] for name in ("N", "Mean Δ", "Median Δ", "Fraction improved")) == cells
            seen += 1
        else:
            assert theirs == {}
    assert seen == len(PUBLISHED)


def test_bounds_that_are_not_finite_are_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made.found(block.SETTINGS)
    first, second = block.SETTINGS[0], block.SETTINGS[1]
    for trial in made.correct(found.trials):
        if trial["setting"] == second.name:
            trial["bounds"][made.CROWN]["worst"] = None
    some = [t for t in made.correct(found.of(first.name, 0.02)) if t["seed"] == 1][:2]
    for trial in some:
        trial["bounds"]["vertex"]["worst"] = None
    result = run(tmp_path, monkeypatch, found, made.found(patch.SETTINGS))
    rows = {(row["Setting"], row["ε"], row["Compared"]): row for row in result.rows}
    nothing = rows[second.name, 0.02, "Vertex − CROWN"]
    assert (nothing["N"], nothing["Status"], "Mean Δ" in nothing) == (0, "no finite bounds", False)
    partly = rows[first.name, 0.02, "Vertex − CROWN"]
    right = [t for t in made.correct(found.of(first.name, 0.02)) if t not in some]
    assert (partly["N"], partly["Status"]) == (len(right), "2 without a finite bound")
    assert partly["Mean Δ"] == pytest.approx(
        made.seed_mean(right, lambda t: made.worst(t, "vertex") - made.worst(t, made.CROWN))
    )
    assert rows[first.name, 0.02, "Hybrid − CROWN"]["Status"] == "run"


def test_missing_data_and_broken_bounds_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, patches = made.found(block.SETTINGS, without=["fashion-mnist"]), made.found(patch.SETTINGS)
    planted = made.correct(patches.trials)[5]
    planted["bounds"]["hybrid"]["worst"] = made.attacked(planted) + 1
    result = run(tmp_path, monkeypatch, blocks, patches)
    idle = made.idle(result)
    assert {row["Setting"] for row in idle} == {s.name for s in block.SETTINGS if s.data == "fashion-mnist"}
    assert len([note for note in result.notes if "vertex data fetch fashion-mnist" in note]) == 2
    assert len(result.failures) == 1
    assert planted["key"] in result.failures[0]
