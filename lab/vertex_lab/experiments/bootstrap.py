"""Do the gains hold across seeds? Seed-resampling intervals of certified rates: the paper's tab:bootstrap_ci_app.

Per seed the difference of two certified rates on the same images; seeds are drawn with replacement and the 2.5 and 97.5
percentiles of the mean are given. With few seeds a check of stability, not a test.
"""

from __future__ import annotations

from collections.abc import Sequence

from vertex_lab.experiments import block, patch, tables
from vertex_lab.experiments.learned import Setting
from vertex_lab.experiments.published import CROWN, HYBRID
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import Cell, Column, ExperimentResult, Row, Timer
from vertex_lab.experiments.statistics import DRAWS, resampled
from vertex_softmax.runs.journal import Trial

NAME = "bootstrap"
TITLE = "Certified-rate improvements over CROWN, seeds resampled"
COLUMNS = (
    Column("Setting"),
    Column("ε", "g"),
    Column("Method"),
    Column("Denominator"),
    Column("Seeds"),
    Column("CROWN (%)", ".1f"),
    Column("Method (%)", ".1f"),
    Column("Δ pp", "+.1f"),
    Column("Interval pp"),
    Column("Status"),
)
METHODS = ("vertex", HYBRID, "joint")
CONDITIONAL, END_TO_END = "clean-correct", "end to end"
PUBLISHED = {
    ("Binary, 16 tokens", 0.03, "vertex", CONDITIONAL): (3, 20.3, 77.8, 57.5, "[+39.2, +67.4]"),
    ("Binary, 49 tokens", 0.03, "vertex", CONDITIONAL): (2, 46.5, 92.5, 46.0, "[+32.6, +59.4]"),
    ("10-class, 16 tokens", 0.02, "vertex", CONDITIONAL): (3, 3.3, 12.9, 9.5, "[+6.0, +12.0]"),
    ("MNIST d=32,h=4,m=64", 0.02, HYBRID, CONDITIONAL): (3, 10.2, 14.3, 4.2, "[+2.5, +5.5]"),
    ("Fashion-MNIST d=32,h=4,m=64", 0.02, HYBRID, END_TO_END): (5, 5.6, 14.0, 8.4, "[+5.8, +11.2]"),
    ("Fashion-MNIST d=16,h=2,m=64", 0.02, HYBRID, END_TO_END): (5, 9.6, 25.2, 15.6, "[+14.2, +16.6]"),
    ("CIFAR-10 gray d=32,h=4,m=64", 0.01, HYBRID, END_TO_END): (5, 0.4, 2.6, 2.2, "[+0.8, +3.8]"),
}


def run(request: Request) -> ExperimentResult:
    """The published rows, and the same for the other settings, ε and methods."""
    timer = Timer()
    rows: list[Row] = []
    published: list[Row] = []
    tried = (patch.found_trials(request), block.found_trials(request))
    for settings, found in tried:
        for setting in settings:
            for epsilon in setting.epsilons:
                for denominator in (CONDITIONAL,) if setting.clean_correct else (CONDITIONAL, END_TO_END):
                    for method in METHODS:
                        trials = found.of(setting.name, epsilon)
                        rows.append(_row(setting, epsilon, method, denominator, trials))
                        theirs = PUBLISHED.get((setting.name, epsilon, method, denominator))
                        names = ("Seeds", "CROWN (%)", "Method (%)", "Δ pp", "Interval pp")
                        published.append(dict(zip(names, theirs, strict=True)) if theirs else {})
    table = ExperimentResult(
        name=NAME,
        title=TITLE,
        columns=COLUMNS,
        rows=tuple(rows),
        published=tuple(published),
        notes=(
            f"Percentile intervals at 95 %, {DRAWS:,} draws of the seeds; rates are means of the seeds' rates.",
            "The trials are those of the tables `patch` and `block`; what is said there of data and methods holds.",
            "MNIST block: published over 200 clean-correct images per seed, ours over the clean-correct ones of the "
            "first 100.",
        ),
        settings=request.described(),
        seconds=timer.seconds,
    )
    return tables.derived(table, tried, request)


def _row(setting: Setting, epsilon: float, method: str, denominator: str, trials: Sequence[Trial]) -> Row:
    label: dict[str, Cell] = {
        "Setting": setting.name,
        "ε": epsilon,
        "Method": tables.LABELS[method],
        "Denominator": denominator,
    }
    counted = [trial for trial in trials if trial["correct"]] if denominator == CONDITIONAL else list(trials)
    if not counted:
        return {**label, "Status": tables.NONE_CORRECT if trials else tables.NOT_RUN}
    before, after = (rates(counted, name) for name in (CROWN, method))
    change = resampled({seed: 100 * (after[seed] - before[seed]) for seed in before})
    return {
        **label,
        "Seeds": change.seeds,
        "CROWN (%)": 100 * sum(before.values()) / len(before),
        "Method (%)": 100 * sum(after.values()) / len(after),
        "Δ pp": change.mean,
        "Interval pp": f"[{change.low:+.1f}, {change.high:+.1f}]",
        "Status": "run",
    }


def rates(trials: Sequence[Trial], method: str) -> dict[int, float]:
    """The certified share of each seed's trials; misclassified ones count as not certified."""
    found = {}
    for seed in dict.fromkeys(trial["seed"] for trial in trials):
        here = [trial for trial in trials if trial["seed"] == seed]
        found[seed] = sum(trial["correct"] and trial["bounds"][method]["certified"] for trial in here) / len(here)
    return found
