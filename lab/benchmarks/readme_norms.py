"""The tables of docs/norms.md, from lab/benchmarks/runs."""

from __future__ import annotations

import statistics

from readme_measure import MEASURES
from readme_runs import Runs, table

SENTENCES = [(layers, norm) for norm in ("standard", "no-variance") for layers in (3, 6, 12)]


def sentences(runs: Runs) -> list[str]:
    """One row for each network of sst.py: medians over its sentences."""
    rows = []
    for layers, norm in SENTENCES:
        found = runs(f"sst-{layers}-{norm}")
        of, network = found["rows"], found["network"]
        radius = {name: statistics.median(row[name]["radius"] for row in of) for name in ("attack", "crown")}
        ratio = statistics.median(row["attack"]["radius"] / row["crown"]["radius"] for row in of)
        seconds = statistics.median(row["crown"]["seconds per question"] for row in of)
        kind = "LayerNorm" if norm == "standard" else "no variance"
        numbers = [f"{radius[name]:.2g}" for name in ("attack", "crown")]
        rows.append(
            (str(layers), kind, f"{network['test']:.3f}", str(len(of)), *numbers, f"{ratio:.1f}", f"{seconds:.1f} s")
        )
    head = (
        "layers",
        "norm",
        "test accuracy",
        "sentences",
        "attack",
        "`crown`",
        "attack / `crown`",
        "per question",
    )
    return [*table(head, rows), "", f"Command: `{MEASURES['sst'].command}`"]


def digits(runs: Runs) -> list[str]:
    """One row for each network of norms.py: medians over its images."""
    rows = []
    for name, found in runs("norms")["networks"].items():
        median, fall = found["median"], found["fall in clean margins"]
        rows.append(
            (
                name,
                f"{found['accuracy']:.3f}",
                str(found["images"]),
                f"{median['attack']:.3g}",
                f"{median['crown']:.3g}",
                f"{found['attack / crown']:.1f}",
                f"{found['seconds per image and ε']['crown']:.2f} s",
                f"{fall['median']:.1f} ({fall['most']:.1f})",
            )
        )
    head = ("network", "accuracy", "images", "attack", "`crown`", "attack / `crown`", "per image and ε", "fall (most)")
    return [*table(head, rows), "", f"Command: `{MEASURES['norms'].command}`"]
