"""Are the gains broad? Paired differences on the same images: the paper's tab:paired_nonmnist_app.

Over the correctly classified images of the trials of `block` and `patch`: mean difference (of the seeds' means),
median, and the share of images with a larger bound.
"""

from __future__ import annotations

import statistics

from vertex_lab.experiments import block, patch, tables
from vertex_lab.experiments.learned import Found, Setting
from vertex_lab.experiments.published import CROWN, HYBRID
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import Cell, Column, ExperimentResult, Row, Timer
from vertex_lab.experiments.statistics import IMPROVED, paired

NAME = "paired"
TITLE = "Paired lower-bound improvements"
PAIRS = ((CROWN, "vertex"), (CROWN, HYBRID), (HYBRID, "joint"), ("alpha-crown", "joint"))
COLUMNS = (
    Column("Setting"),
    Column("ε", "g"),
    Column("Compared"),
    Column("N", ","),
    Column("Mean Δ", ".3f"),
    Column("Median Δ", ".3f"),
    Column("Fraction improved", ".3f"),
    Column("Status"),
)
PUBLISHED = {
    ("Fashion-MNIST d=32,h=4,m=64", 0.01): (358, 0.215, 0.000, 0.307),
    ("Fashion-MNIST d=32,h=4,m=64", 0.02): (358, 6.402, 4.256, 0.997),
    ("Fashion-MNIST d=32,h=4,m=64", 0.03): (358, 33.608, 27.577, 1.000),
    ("Fashion-MNIST d=16,h=2,m=64", 0.02): (344, 4.608, 2.254, 0.971),
    ("CIFAR-10 gray d=32,h=4,m=64", 0.005): (188, 0.182, 0.000, 0.277),
    ("CIFAR-10 gray d=32,h=4,m=64", 0.01): (188, 4.521, 2.680, 1.000),
}
"""Hybrid − CROWN: N, mean, median, fraction improved."""


def run(request: Request) -> ExperimentResult:
    """The published table, and the same for Vertex over CROWN and joint over Hybrid and α-crown."""
    timer = Timer()
    rows: list[Row] = []
    published: list[Row] = []
    tried = (block.found_trials(request), patch.found_trials(request))
    for settings, found in tried:
        for setting in settings:
            for epsilon in setting.epsilons:
                for before, after in PAIRS:
                    rows.append(_row(setting, epsilon, before, after, found))
                    theirs = PUBLISHED.get((setting.name, epsilon)) if after == HYBRID else None
                    names = ("N", "Mean Δ", "Median Δ", "Fraction improved")
                    published.append(dict(zip(names, theirs, strict=True)) if theirs else {})
    table = ExperimentResult(
        name=NAME,
        title=TITLE,
        columns=COLUMNS,
        rows=tuple(rows),
        published=tuple(published),
        notes=(
            "N: correctly classified images of all seeds. Mean Δ: of the seeds' means; the others over images.",
            f"Improved: larger by more than {IMPROVED:g}.",
            "The trials are those of the tables `block` and `patch`; what is said there of data and methods holds.",
        ),
        settings=request.described(),
        seconds=timer.seconds,
    )
    return tables.derived(table, tried, request)


def _row(setting: Setting, epsilon: float, before: str, after: str, found: Found) -> Row:
    label: dict[str, Cell] = {
        "Setting": setting.name,
        "ε": epsilon,
        "Compared": f"{tables.LABELS[after]} − {tables.LABELS[before]}",
    }
    here = found.of(setting.name, epsilon)
    trials = [trial for trial in here if trial["correct"]]
    if not trials:
        return {**label, "Status": tables.NONE_CORRECT if here else tables.NOT_RUN}
    bounds = [(trial["seed"], trial["bounds"][before]["worst"], trial["bounds"][after]["worst"]) for trial in trials]
    finite = [(seed, a, b) for seed, a, b in bounds if a is not None and b is not None]
    if not finite:
        return {**label, "N": 0, "Status": "no finite bounds"}
    pair = paired([a for _, a, _ in finite], [b for _, _, b in finite])
    seeds = dict.fromkeys(seed for seed, _, _ in finite)
    mean = statistics.fmean(statistics.fmean(b - a for s, a, b in finite if s == seed) for seed in seeds)
    lost = len(bounds) - len(finite)
    return {
        **label,
        "N": pair.trials,
        "Mean Δ": mean,
        "Median Δ": pair.median,
        "Fraction improved": pair.improved,
        "Status": f"{lost} without a finite bound" if lost else "run",
    }
