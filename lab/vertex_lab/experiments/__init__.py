"""The paper's tables, remade: one module per name, each `run` writes a table with the published figures beside ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vertex_lab.experiments import (
    block,
    bootstrap,
    interval,
    numerical,
    paired,
    patch,
    runtime,
    slack,
    strong,
    sweep,
    threshold,
)
from vertex_lab.experiments.request import Progress, Request
from vertex_lab.experiments.result import Column, ExperimentResult

__all__ = ["EXPERIMENTS", "Column", "Experiment", "ExperimentResult", "Progress", "Request"]


@dataclass(frozen=True)
class Experiment:
    """An experiment that can be named: `table` is the LaTeX label of what it reproduces."""

    name: str
    title: str
    run: Callable[[Request], ExperimentResult]
    """does it, writes its files into `request.out`, and returns its table"""
    table: str


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(threshold.NAME, threshold.TITLE, threshold.run, "tab:threshold_runtime_app"),
        Experiment(interval.NAME, interval.TITLE, interval.run, "tab:numerical_status_app"),
        Experiment(slack.NAME, slack.TITLE, slack.run, "tab:slack_decomposition_app"),
        Experiment(sweep.NAME, sweep.TITLE, sweep.run, "tab:scalable_sweep"),
        Experiment(patch.NAME, patch.TITLE, patch.run, "tab:mnist_patch_attention"),
        Experiment(block.NAME, block.TITLE, block.run, "tab:full_mlp_nonmnist"),
        Experiment(strong.NAME, strong.TITLE, strong.run, "tab:selected_strong_baselines_app"),
        Experiment(runtime.NAME, runtime.TITLE, runtime.run, "tab:runtime_breakdown_app"),
        Experiment(paired.NAME, paired.TITLE, paired.run, "tab:paired_nonmnist_app"),
        Experiment(bootstrap.NAME, bootstrap.TITLE, bootstrap.run, "tab:bootstrap_ci_app"),
        Experiment(numerical.NAME, numerical.TITLE, numerical.run, "tab:numerical_status_app"),
    )
}
