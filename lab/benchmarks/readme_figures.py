"""The README's figures, written from lab/benchmarks/runs/*.json and results/*.json: none of them is typed by hand.

python lab/benchmarks/readme_figures.py [--check]
python lab/benchmarks/readme_figures.py --measure [NAME ...] [--peer CHECKOUT] [--into DIR]

Replaces what stands between the marks in README.md; --check only says whether it would change (exit status 1).
--measure first runs again what makes the figures (readme_measure.py): the names, or all that can be run here, which
takes days; it says what cannot and why. --into puts the files into another folder, and README.md stays. Exit status 1
if something that was asked for made no file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import readme_runs
from readme_measure import MEASURES, RESULTS, ROOT, RUNS, measure

LAST = "<!-- end -->"


class Table:
    """A result file: cells of ours and of the paper, by the values of some columns."""

    def __init__(self, name: str) -> None:
        data = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        self.rows: list[dict[str, Any]] = data["rows"]
        self.published: list[dict[str, Any]] = data["published"]
        self.failures: list[str] = data["failures"]

    def at(self, **where: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The one row with these values, and the paper's."""
        names = {"benchmark": "Benchmark", "eps": "ε", "method": "Method", "setting": "Setting", "keys": "K"}
        found = [
            i for i, row in enumerate(self.rows) if all(row.get(names[key]) == value for key, value in where.items())
        ]
        if len(found) != 1:
            raise SystemExit(f"{where}: {len(found)} rows")
        return self.rows[found[0]], self.published[found[0]]


def runs() -> list[str]:
    """The lines of "Figures"."""
    found = readme_runs.Runs(RUNS)
    rows = readme_runs.rows(found, readme_runs.Runs(RESULTS))
    lines = [f"| {row.what} | {row.figure} | `{MEASURES[row.measure].command}` |" for row in rows]
    head = ["| what | figure | command |", "|---|---|---|"]
    return [readme_runs.introduction(found), "", *head, *lines, "", readme_runs.on_a_gpu(found)]


def paper() -> list[str]:
    """The lines of the table of the paper's experiments."""
    rows = [*_solver(), *_sweep(), *_patch(), *_block(), *_strong()]
    head = ["| what, and the paper's table | published | ours | command |", "|---|---|---|---|"]
    return [
        *head,
        *(f"| {what} | {theirs} | {ours} | `vertex reproduce {name}` |" for what, theirs, ours, name in rows),
    ]


Line = tuple[str, str, str, str]
SHOWN = ("CROWN", "Vertex", "Hybrid", "joint (ours)", "attack (ceiling)")


def _solver() -> list[Line]:
    slack, threshold, interval = Table("slack"), Table("threshold"), Table("interval")
    exact = "every cell equal to three decimals" if not slack.failures else "; ".join(slack.failures)
    at16, _ = threshold.at(keys=16)
    counted = [row for row in threshold.rows if row["Difference of"] == "threshold, exhaustive"]
    worst = [max(row[f"Max diff. {kind}"] for row in counted) for kind in ("float32", "float64")]
    boxes = sum(row["N"] for row in interval.rows)
    broken = sum(row["Violations"] for row in interval.rows)
    return [
        ("`slack`: where looseness comes from", "3 × up to 4 gaps", exact, "slack"),
        (
            "`threshold`: largest difference to all 2^K vertices, float32 (float64); time of enumeration at K = 16",
            "4.8e-7 (–); 308 × the solver's",
            f"{worst[0]:.1e} ({worst[1]:.1e}); {at16['Exhaustive / Threshold']:.0f} ×",
            "threshold",
        ),
        ("`interval`: violations on score boxes", "0 of 361", f"{broken} of {boxes:,}", "interval"),
    ]


def _sweep() -> list[Line]:
    table = Table("sweep")
    lines = []
    for keys in (16, 128):
        cells = [table.at(keys=keys, eps=0.02, method=name) for name in ("Wei-LSE", "Vertex")]
        more = [
            table.at(keys=keys, eps=0.02, method=f"{name} (ours)")[0]
            for name in ("vertex, objective", "crown", "joint")
        ]
        theirs = ", ".join(f"{published['Mean lower']:.3f}" for _, published in cells)
        ours = ", ".join(f"{row['Mean lower']:.3f}" for row, _ in cells)
        beyond = ", ".join(f"{row['Mean lower']:.3f}" for row in more)
        faster = cells[0][0]["Time / Vertex"]
        lines.append(
            (
                f"`sweep`, K = {keys}, ε = .02: mean bound of Wei-LSE, Vertex; of vertex on the objective, `crown`, "
                "`joint`; time of Wei-LSE over Vertex",
                f"{theirs}; –; {cells[0][1]['Time (s)'] / cells[1][1]['Time (s)']:.1f} ×",
                f"{ours}; {beyond}; {faster:.1f} ×",
                "sweep",
            )
        )
    return lines


def _patch() -> list[Line]:
    table = Table("patch")
    places = (("Binary, 16 tokens", 0.03), ("Binary, 16 tokens", 0.05), ("Binary, 49 tokens", 0.03))
    return [
        _certified("patch", table, name, epsilon, "clean-correct")
        for name, epsilon in (*places, ("10-class, 16 tokens", 0.02), ("10-class, 16 tokens", 0.03))
    ]


def _block() -> list[Line]:
    table = Table("block")
    places = (("MNIST d=32,h=4,m=64", 0.02), ("MNIST d=32,h=4,m=64", 0.03), ("CIFAR-10 gray d=32,h=4,m=64", 0.01))
    return [_certified("block", table, name, epsilon, "end to end") for name, epsilon in places]


def _certified(experiment: str, table: Table, name: str, epsilon: float, denominator: str) -> Line:
    cells = [table.at(benchmark=name, eps=epsilon, method=method) for method in SHOWN]
    theirs = [f"{100 * published['Cert.']:.1f}" if "Cert." in published else "–" for _, published in cells[:3]]
    ours = [f"{100 * row['Cert.']:.1f}" for row, _ in cells]
    methods = "by CROWN, Vertex, Hybrid; `joint` (attack)"
    label = f"`{experiment}`, {name}, ε = {epsilon:g}: % certified ({denominator}) {methods}"
    return label, ", ".join(theirs), f"{', '.join(ours[:3])}; **{ours[3]}** ({ours[4]})", experiment


def _strong() -> list[Line]:
    table = Table("strong")
    lines = []
    for setting in ("K=4, d=16, ε=0.05", "K=4, d=32, ε=0.03", "Residual MHA, ε=0.05"):
        cells = [table.at(setting=setting, method=name) for name in ("α-crown (ours)", "Vertex", "joint (ours)")]
        theirs = ", ".join(f"{100 * published['Cert.']:.1f}" for _, published in cells[:2])
        ours = ", ".join(f"{100 * row['Cert.']:.1f}" for row, _ in cells[:2])
        joint = f"**{100 * cells[2][0]['Cert.']:.1f}**"
        label = f"`strong`, {setting}: % certified by α-CROWN (ours: `alpha-crown`), Vertex; `joint`"
        branched, their_branched = table.at(setting=setting, method="branch and bound")
        if "Cert." in branched:
            label += "; branch and bound (seconds a trial)"
            theirs += f"; {100 * their_branched['Cert.']:.1f} ({their_branched['Sec./trial']:.0f})"
            joint += f"; {100 * branched['Cert.']:.1f} ({branched['Sec./trial']:.1f})"
        lines.append((label, theirs, f"{ours}; {joint}", "strong"))
    return lines


def readme(text: str) -> str:
    """The README with what stands between the marks replaced."""
    for folder, lines in (("lab/benchmarks/runs/", runs()), ("results/", paper())):
        first = f"<!-- from {folder}, by lab/benchmarks/readme_figures.py -->"
        before, rest = text.split(first)
        _, after = rest.split(LAST, 1)
        text = "\n".join([before + first, *lines, LAST + after])
    return text


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether README.md would change")
    parser.add_argument("--measure", nargs="*", metavar="NAME", help=f"run these again, or all: {', '.join(MEASURES)}")
    parser.add_argument("--peer", type=Path, metavar="CHECKOUT", help="of auto_LiRPA 0.7.1, to time beside ours")
    parser.add_argument("--into", type=Path, metavar="DIR", help="put what was measured there, and leave README.md")
    asked = parser.parse_args(arguments)
    failed = []
    if asked.measure is not None:
        peer = None if asked.peer is None else asked.peer.resolve()
        failed = measure(asked.measure, lambda text: print(text, flush=True), peer, asked.into)
        if asked.into is not None:
            return int(bool(failed))
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    new = readme(text)
    if asked.check:
        return int(new != text)
    path.write_text(new, encoding="utf-8")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
