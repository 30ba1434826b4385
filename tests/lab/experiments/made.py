"""Trials made by hand, as the journals have them: every table can be computed from them a second time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from vertex_lab.experiments import block, patch
from vertex_lab.experiments.learned import METHODS, Found, Setting
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import Cell, ExperimentResult, Row
from vertex_lab.experiments.tables import NOT_RUN
from vertex_softmax.runs.journal import Trial

CROWN, HYBRID = "crown-published", "hybrid-published"
"""as the journals call the paper's"""
LABEL = {
    CROWN: "CROWN",
    "vertex": "Vertex",
    HYBRID: "Hybrid",
    "crown": "crown (ours)",
    "alpha-crown": "α-crown (ours)",
    "hybrid": "hybrid (ours)",
    "joint": "joint (ours)",
}


def bounds(chance: random.Random, attack: float, methods: Iterable[str] = (*METHODS, CROWN, HYBRID)) -> dict[str, Any]:
    """Bounds below the attack, some just above zero; a positive one is not always a certificate."""
    found = {}
    for method in methods:
        worst = min(attack, chance.choice([attack - chance.expovariate(1), 5e-7, 5e-5, 1e-6]))
        found[method] = {
            "worst": worst,
            "certified": worst > 0 and chance.random() < 0.9,
            "seconds": chance.uniform(0.1, 2),
        }
    return found


def trials(settings: Sequence[Setting], seeds: Sequence[int] = (0, 1, 4), images: int = 6) -> list[Trial]:
    """Of every setting and ε; seeds have different numbers of correct images, and different accuracies."""
    chance = random.Random(7)
    made: list[Trial] = []
    for setting in settings:
        for epsilon in setting.epsilons:
            for seed in seeds:
                for image in range(images + seed):
                    key = f"{setting.name} | seed {seed} | ε {epsilon:g} | image {image}"
                    trial: Trial = {"key": key, "setting": setting.name, "seed": seed, "epsilon": epsilon}
                    trial |= {"image": image, "accuracy": 0.5 + seed / 10, "machine": f"machine {seed}"}
                    trial["correct"] = setting.clean_correct or chance.random() < 0.7
                    if trial["correct"]:
                        low, more = chance.gauss(0.5, 1), chance.random()
                        trial["attack"] = {"protocol": low, "strong": low + more}
                        if chance.random() < 0.5:
                            trial["attack"] = {"protocol": low + more, "strong": low}
                        trial["bounds"] = bounds(chance, low)
                    made.append(trial)
    return made


def found(settings: Sequence[Setting], without: Sequence[str] = ()) -> Found:
    """Of all settings but those whose data is missing."""
    here = [setting for setting in settings if setting.data not in without]
    missing = {s.name: f"no files of {s.data}: `vertex data fetch {s.data}` helps" for s in settings if s not in here}
    return Found(trials(here), missing)


def correct(made: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in made if trial["correct"]]


def worst(trial: Trial, method: str) -> float:
    return float(trial["bounds"][method]["worst"])


def attacked(trial: Trial) -> float:
    return min(trial["attack"]["protocol"], trial["attack"]["strong"])


def mean(numbers: Iterable[float]) -> float:
    values = list(numbers)
    return sum(values) / len(values)


def seed_mean(made: Iterable[Trial], value: Any) -> float:
    """The mean of the seeds' means."""
    groups: dict[int, list[float]] = {}
    for trial in made:
        groups.setdefault(trial["seed"], []).append(value(trial))
    return mean(mean(values) for values in groups.values())


def numbers(row: Row) -> dict[str, Cell]:
    """The cells of a row that are figures."""
    return {name: cell for name, cell in row.items() if isinstance(cell, int | float) and name != "ε"}


def idle(result: ExperimentResult) -> list[Row]:
    """The rows that say that they were not run; nothing in them may look like a figure of ours."""
    rows = [row for row in result.rows if row["Status"] == NOT_RUN]
    assert not [row for row in rows if numbers(row)]
    return rows


def derived(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: Found, patches: Found
) -> ExperimentResult:
    """The table that a module makes of the trials of `block` and `patch`, when these are the given ones."""
    for trials_of, given in ((block, blocks), (patch, patches)):
        monkeypatch.setattr(trials_of, "found_trials", lambda _request, t=trials_of, g=given: (t.SETTINGS, g))
    result: ExperimentResult = module.run(Request(tmp_path))
    return result
