"""Tightness against time: the points of docs/tightness.svg, and the table of the same numbers in docs/results.md.

Of the one-block models a point is the mean bound over all images and the median time of an image; of the ViTs it is
over the instances for which the bounds of auto_LiRPA were recorded. Its times on the one-block models were measured
beside ours on six images; on the ViTs they are those of its own run, on one thread in float32.
"""

from __future__ import annotations

import statistics
from typing import Any

from readme_measure import MEASURES
from readme_peers import PEERS
from readme_runs import METHODS, ONE_BLOCK, VIT, Runs, filled, fixed, table

Point = tuple[float, float]
"""Median seconds, mean bound."""


def points(runs: Runs) -> dict[str, dict[str, Point]]:
    """Panel → method → its point; of auto_LiRPA too."""
    theirs = {file["file"]: file["summary"]["side_by_side"]["theirs_s"] for file in runs("anchors-peer")["files"]}
    found: dict[str, dict[str, Point]] = {}
    for file in runs("anchors")["files"]:
        s = file["summary"]
        if file["file"] in ("ten16_eps0.02", "blk10_eps0.02"):
            panel = {f"`{name}`": (s["median_s"][name], s["mean"][name]) for name in METHODS}
            panel["CROWN of auto_LiRPA"] = (theirs[file["file"]], s["recorded_mean"]["crown_lse"])
            found[ONE_BLOCK[file["file"]]] = panel
    for model, name in VIT.items():
        panel = {}
        for method in ("crown", "hybrid", "joint"):
            rows = _with_peer(runs, model, method)
            panel[f"`{method}`"] = (
                statistics.median(row["seconds"]["total"] for row in rows),
                statistics.mean(row["worst"] for row in rows),
            )
        recorded = [row["recorded"] for row in _with_peer(runs, model, "joint")]
        for key, words in PEERS.items():
            known = [row for row in recorded if key in row]
            if known:
                seconds = statistics.median(row[f"{key}_s"] for row in known)
                panel[f"{words} of auto_LiRPA"] = (seconds, statistics.mean(row[key] for row in known))
        found[f"ViT, {name}"] = panel
    return found


def _with_peer(runs: Runs, model: str, method: str) -> list[dict[str, Any]]:
    """The rows of a method about the instances for which the peer's bounds were recorded."""
    for name in ("vit", "vit-hybrid"):
        rows = [row for row in runs(name)["rows"] if (row["model"], row["method"]) == (model, method)]
        if rows:
            return [row for row in rows if "crown_lse" in row["recorded"]]
    raise SystemExit(f"no run of {model} by {method}")


def tightness(runs: Runs) -> list[str]:
    """The numbers of the picture."""
    panels = points(runs)
    methods = list(dict.fromkeys(method for panel in panels.values() for method in panel))
    rows = [
        [method, *(f"{fixed(p[method][1], 3)}, {p[method][0]:.2g} s" if method in p else "–" for p in panels.values())]
        for method in methods
    ]
    commands = [f"`{MEASURES[name].command}`" for name in ("anchors", "anchors-peer", "vit")]
    return [*table(("method", *panels), rows), "", filled(f"Commands: {', '.join(commands)}.")]
