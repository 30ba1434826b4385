"""The table and the picture of docs/scale.md that say what size costs."""

from __future__ import annotations

import math
from typing import Any

from readme_measure import MEASURES
from readme_runs import Runs, filled, fixed, table

SERIES = {"tokens": (16, 36, 64), "width": (48, 96, 192), "depth": (2, 4, 8)}
"""Where a series is fitted; beyond 64 tokens the blocks are reduced, which is quicker and gives less."""


def growth(runs: Runs) -> list[str]:
    """Every case before and now, and the exponents."""
    found = runs("growth")
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for row in found["rows"]:
        rows.setdefault(row["case"], {})[row["version"]] = row
    cells = [(name, *_cells(both.get("before"), both["now"])) for name, both in rows.items()]
    head = ("", "seconds before", "seconds", "ratio", "bound before", "bound", "GiB")
    slopes = [f"{exponent(runs, name):.1f} in {name} ({ends[0]} to {ends[-1]})" for name, ends in SERIES.items()]
    said = (
        f"Processor seconds on one thread, seconds on the GPU; before is the commit ae9444b; {found['machine']}. The "
        "networks have the random weights of torch's default initialisation, seed 0; Sapiens alone is trained, and is "
        "asked with `goal=0`. The rows of the GPU are in float32, measured when its boxes were not rounded outward. "
        f"The bound is the least of the margins. Exponents now: {', '.join(slopes)}."
    )
    return [*table(head, cells), "", filled(said), "", f"Command: `{MEASURES['growth'].command}`"]


def exponent(runs: Runs, name: str) -> float:
    """Of the seconds in the size, between the ends of a series."""
    first, last = SERIES[name][0], SERIES[name][-1]
    seconds = {row["case"]: row.get("seconds") for row in runs("growth")["rows"] if row["version"] == "now"}
    return math.log(seconds[f"{name} {last}"] / seconds[f"{name} {first}"]) / math.log(last / first)


def _cells(before: dict[str, Any] | None, now: dict[str, Any]) -> tuple[str, ...]:
    old = "–" if before is None else _failure(before) if "failed" in before else f"{before['seconds']:.1f}"
    if "failed" in now:
        return old, _failure(now), "–", "–", "–", "–"
    ratio = "–"
    if before is not None and "failed" not in before:
        ratio = f"**{before['seconds'] / now['seconds']:.1f}×**"
    elif before is not None and before["failed"].startswith("more than"):
        ratio = f"**> {before['limit'] / now['seconds']:.0f}×**"
    was = "–" if before is None or "failed" in before else fixed(before["bound"], 3)
    return old, f"{now['seconds']:.1f}", ratio, was, fixed(now["bound"], 3), f"{now['peak_bytes'] / 2**30:.1f}"


def _failure(row: dict[str, Any]) -> str:
    return "out of memory" if "OutOfMemory" in row["failed"] else f"> {row['limit']:g}"


def still_rows(runs: Runs) -> list[str]:
    """One token free: with all rows, and without those that cannot move."""
    found = runs("still-rows")
    cells: dict[int, dict[str, dict[str, Any]]] = {}
    for row in found["rows"]:
        cells.setdefault(row["token"], {})[row["rows"]] = row
    rows = []
    for token, pair in cells.items():
        old, new = pair["all rows"], pair["without still rows"]
        seconds = (f"{old['processor_s']:.1f}", f"{new['processor_s']:.1f}")
        ratio = f"**{old['processor_s'] / new['processor_s']:.1f}×**"
        rows.append((f"token {token + 1} of {found['tokens']}", *seconds, ratio, f"{new['bound'] - old['bound']:+.0e}"))
    head = ("stories260K, the token that is free", "CPU seconds, all rows", "without still ones", "ratio", "bound")
    said = (
        f"`crown` on one thread, ε = {found['epsilon']:g}, both in turn on two shared cores; the last column is by how "
        "much the bound changes."
    )
    return [*table(head, rows), "", filled(said), "", f"Command: `{MEASURES['still-rows'].command}`"]
