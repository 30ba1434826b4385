"""The table of docs/your-model.md: the families of models that are read unmodified."""

from __future__ import annotations

from readme_measure import MEASURES
from readme_runs import Runs, table


def families(runs: Runs) -> list[str]:
    """Every family with its class, what moves, and the verdict; or why it cannot be had."""
    data = runs("families")
    cells = []
    for row in data["rows"]:
        said = row.get("why not") or f"{row['verdict']}: margin {row['bound']:.2g} ≤ {row['reached']:.2g}"
        cells.append((row["family"], f"`{row['library']}.{row['model']}`", row["moves"], said))
    versions = sorted({f"{row['library']} {row['version']}" for row in data["rows"]})
    head = ("family", "class", "what moves", f"`{data['method']}`: bound ≤ the module at points of the set")
    return [*table(head, cells), "", f"Command: `{MEASURES['families'].command}` ({', '.join(versions)})"]
