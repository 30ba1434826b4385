"""The paper's tables, remade: one module per name, each `run` writes a table with the published figures beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vertex_softmax.experiments import interval, slack, threshold
from vertex_softmax.experiments.result import Column, ExperimentResult, Progress

__all__ = ["EXPERIMENTS", "Column", "Experiment", "ExperimentResult", "Progress", "Run"]


class Run(Protocol):
    """Do the experiment, write its files into `out`, return its table. `quick` is a reduced run of about a minute."""

    def __call__(self, *, quick: bool, out: Path, progress: Progress | None = None, seed: int = 0) -> ExperimentResult:
        """Run it; `progress` is told what is being done, how much of it is done and how much there is."""


@dataclass(frozen=True)
class Experiment:
    """An experiment that can be named: `table` is the LaTeX label of what it reproduces."""

    name: str
    title: str
    run: Run
    table: str


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(threshold.NAME, threshold.TITLE, threshold.run, "tab:threshold_runtime_app"),
        Experiment(interval.NAME, interval.TITLE, interval.run, "tab:numerical_status_app"),
        Experiment(slack.NAME, slack.TITLE, slack.run, "tab:slack_decomposition_app"),
    )
}
