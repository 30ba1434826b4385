"""The table of docs/scale.md: branch and bound of one instance in one process, and shared among workers."""

from __future__ import annotations

from readme_measure import MEASURES
from readme_runs import Runs, filled, table


def shared_tree(runs: Runs) -> list[str]:
    """Seconds and CPU seconds by number of workers; the ratio is to one worker, in the same run."""
    found = runs("shared-tree")
    rows = []
    for row in found["rows"]:
        one = next(each for each in found["rows"] if each["instance"] == row["instance"] and each["workers"] == 1)
        who = "one process" if not row["workers"] else f"{row['workers']} worker{'s' * (row['workers'] != 1)}"
        ratio = "" if not row["workers"] else f"**{one['branching'] / row['branching']:.2f}×**"
        idle = "" if row["idle"] is None else f"{row['idle']:.0%}"
        seconds = f"{row['branching']:.1f}"
        cells = (seconds, ratio, f"{row['cpu_seconds']:.1f}", idle, f"{row['domains']:,}", row["status"])
        rows.append((f"{found['model']}_{row['instance']}, {who}", *cells))
    head = ("", "seconds of branch and bound", "ratio", "CPU seconds in all", "idle", "parts", "answer")
    loads = [row["load"] for row in found["rows"]]
    said = (
        f"One thread for each process, on {found['cores']} cores of an {found['processor']}, one run after the other. "
        "The seconds include the rest of the workers' start and all that is sent; the CPU seconds are those of all "
        "processes, with what comes before branch and bound. Idle is the share of the workers' time without parts. The "
        f"system's load when these runs began was {min(loads):.1f} to {max(loads):.1f}: above 1, others used the cores."
    )
    return [*table(head, rows), "", filled(said), "", f"Command: `{MEASURES['shared-tree'].command}`"]
