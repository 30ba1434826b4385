"""The table of docs/scale.md: what easy instances take from the start of a process to its end, before and after."""

from __future__ import annotations

from readme_measure import MEASURES
from readme_runs import Runs, filled, table

DECIDED = {"pgd_2_3_16_566": "`crown` decides", "pgd_2_3_16_4021": "`joint` decides"}


def startup(runs: Runs) -> list[str]:
    """Seconds and CPU seconds of `vertex verify`, and of each instance of a sweep; old, new and their ratio."""
    found = runs("startup")
    rows = []
    for row in found["verify"]:
        what = f"`vertex verify`, ViT with two blocks, {DECIDED[row['instance']]}"
        rows.append((what, *_cells(row["best"]["old"], row["best"]["new"], row["ratio"])))
    swept = found["sweep"]
    counts = f"{swept['old']['instances']} instances before, {swept['new']['instances']} after"
    what = f"`vertex sweep`, each of {counts}, two at a time"
    rows.append((what, *_cells(swept["old"]["each"], swept["new"]["each"], swept["ratio"])))
    head = ("", "seconds before", "seconds", "ratio", "CPU seconds before", "CPU seconds", "ratio")
    loads = [run["load"] for row in found["verify"] for run in row["best"].values()]
    loads += [swept[side]["load"] for side in ("old", "new")]
    threads = f"{found['threads']} thread{'s' * (found['threads'] != 1)}"
    said = (
        f"Before is the commit {found['before'][:7]}. Both versions ran in turn on {found['cores']} cores of an "
        f"{found['processor']}, `vertex verify` with {threads}. The system's load when these runs began was "
        f"{min(loads):.1f} to {max(loads):.1f}: above 1, others used the cores, the seconds say little, and "
        f"the CPU seconds are somewhat too many. The sweep repeats the {len(swept['easy'])} easiest instances of the "
        f"benchmark's 60; answers that differ from those before: {len(swept['answers_that_differ'])}."
    )
    return [*table(head, rows), "", filled(said), "", f"Command: `{MEASURES['startup'].command}`"]


def _cells(old: dict[str, float], new: dict[str, float], ratio: dict[str, float]) -> list[str]:
    """For seconds and CPU seconds: before, after, and their ratio."""
    cells = []
    for unit in ("seconds", "cpu_seconds"):
        cells += [f"{old[unit]:.2f}", f"{new[unit]:.2f}", f"**{ratio[unit]:.1f}×**"]
    return cells
