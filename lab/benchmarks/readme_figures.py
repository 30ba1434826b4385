"""Writes the measured figures of README.md and docs/ from lab/benchmarks/runs/*.json and results/*.json.

python lab/benchmarks/readme_figures.py [--check]
python lab/benchmarks/readme_figures.py --measure [NAME ...] [--peer CHECKOUT] [--into DIR]

A page has blocks that begin with `<!-- figures: NAME (make figures) -->` and end with `<!-- end -->`; each is replaced
by what `BLOCKS[NAME]` makes of the files. --check changes nothing and ends with the status 1 if a page would change.
--measure first runs the commands that produce the files (readme_measure.py): the named ones, or all that can be run on
this machine, which takes days; it says which cannot be run and why. With --into the new files go to another folder and
no page is changed. The exit status is 1 if a measurement that was asked for produced no file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import readme_beside
import readme_families
import readme_growth
import readme_limits
import readme_norms
import readme_peers
import readme_runs
import readme_sets
import readme_shared
import readme_six
import readme_startup
import readme_tightness
import readme_vnncomp
from readme_measure import MEASURES, RESULTS, ROOT, RUNS, measure


class Table:
    """A result file of `vertex reproduce`: our rows and the paper's, looked up by the values of some columns."""

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


def measured(name: str) -> list[str]:
    """The table of a section of docs/results.md: its rows, each with its command."""
    rows = readme_runs.group(name, readme_runs.Runs(RUNS), readme_runs.Runs(RESULTS))
    cells = [(row.what, row.figure, f"`{MEASURES[row.measure].command}`") for row in rows]
    return readme_runs.table(("what was measured", "result", "command"), cells)


def six() -> list[str]:
    """The README's table: six results, each with a link to its section of docs/results.md and its command."""
    cells = [_cell(Table("patch"), "10-class, 16 tokens", 0.03, method) for method in SHOWN]
    certified = (
        "MNIST, ten classes, 16 tokens, ε = 0.03: images certified",
        f"CROWN {cells[0]} %, Vertex as published {cells[1]} %, `joint` {cells[3]} %; an attack leaves {cells[4]} %",
    )
    rows = readme_six.six(readme_runs.Runs(RUNS), certified)
    return readme_runs.table(
        ("what", "result", "command"),
        [(f"[{what}](docs/results.md#{at})", figure, f"`{MEASURES[name].command}`") for what, at, figure, name in rows],
    )


SHOWN = ("CROWN", "Vertex", "Hybrid", "joint (ours)", "attack (ceiling)")


def solver() -> list[str]:
    """The paper's experiments on the primitive."""
    slack, threshold, interval = Table("slack"), Table("threshold"), Table("interval")
    exact = "every cell is equal to three decimals" if not slack.failures else "; ".join(slack.failures)
    at16, _ = threshold.at(keys=16)
    counted = [row for row in threshold.rows if row["Difference of"] == "threshold, exhaustive"]
    worst = [max(row[f"Max diff. {kind}"] for row in counted) for kind in ("float32", "float64")]
    boxes = sum(row["N"] for row in interval.rows)
    broken = sum(row["Violations"] for row in interval.rows)
    rows = [
        ("`slack`: where the looseness of each bound comes from", "3 × up to 4 gaps", exact, "slack"),
        (
            "`threshold`: largest difference to the minimum over all 2^K vertices, float32 (float64); time of that "
            "enumeration at K = 16 divided by the solver's",
            "4.8e-7 (–); 308 ×",
            f"{worst[0]:.1e} ({worst[1]:.1e}); {at16['Exhaustive / Threshold']:.0f} ×",
            "threshold",
        ),
        ("`interval`: violations on score boxes", "0 of 361", f"{broken} of {boxes:,}", "interval"),
    ]
    head = ("experiment", "published", "ours", "command")
    return readme_runs.table(head, [(*cells, f"`vertex reproduce {name}`") for *cells, name in rows])


def sweep() -> list[str]:
    """The paper's synthetic sweep at ε = 0.02."""
    table, rows = Table("sweep"), []
    for keys in (16, 128):
        cells = [table.at(keys=keys, eps=0.02, method=name) for name in ("Wei-LSE", "Vertex")]
        names = ("vertex, objective", "crown", "joint")
        more = [f"{table.at(keys=keys, eps=0.02, method=f'{name} (ours)')[0]['Mean lower']:.3f}" for name in names]
        theirs = [f"{published['Mean lower']:.3f}" for _, published in cells]
        ours = [f"{row['Mean lower']:.3f}" for row, _ in cells]
        faster = cells[0][1]["Time (s)"] / cells[1][1]["Time (s)"], cells[0][0]["Time / Vertex"]
        rows.append((f"{keys}, published", *theirs, "–", "–", "–", f"{faster[0]:.1f} ×", "–"))
        rows.append((f"{keys}, ours", *ours, *more, f"{faster[1]:.1f} ×", "`vertex reproduce sweep`"))
    head = ("K", "Wei-LSE", "Vertex", "`vertex` on the objective", "`crown`", "`joint`", "time of Wei-LSE over Vertex")
    return readme_runs.table((*head, "command"), rows)


PLACES = (
    ("patch", "Binary, 16 tokens", 0.03),
    ("patch", "Binary, 16 tokens", 0.05),
    ("patch", "Binary, 49 tokens", 0.03),
    ("patch", "10-class, 16 tokens", 0.02),
    ("patch", "10-class, 16 tokens", 0.03),
    ("block", "MNIST d=32,h=4,m=64", 0.02),
    ("block", "MNIST d=32,h=4,m=64", 0.03),
    ("block", "CIFAR-10 gray d=32,h=4,m=64", 0.01),
)
"""Experiment, benchmark and ε of the rows of certified rates."""


def certified() -> list[str]:
    """The share of images certified, published and ours."""
    rows = []
    for experiment, name, epsilon in PLACES:
        table = Table(experiment)
        published = [table.at(benchmark=name, eps=epsilon, method=method)[1] for method in SHOWN[:3]]
        theirs = ", ".join(f"{100 * cell['Cert.']:.1f}" if "Cert." in cell else "–" for cell in published)
        ours = [_cell(table, name, epsilon, method) for method in SHOWN]
        what = f"`{experiment}`: {name}, ε = {epsilon:g}"
        command = f"`vertex reproduce {experiment}`"
        rows.append((what, theirs, ", ".join(ours[:3]), f"**{ours[3]}**", ours[4], command))
    head = (
        "benchmark",
        "published: CROWN, Vertex, Hybrid",
        "ours: CROWN, Vertex, Hybrid",
        "`joint`",
        "attack",
        "command",
    )
    return readme_runs.table(head, rows)


def _cell(table: Table, name: str, epsilon: float, method: str) -> str:
    """How many of a hundred images are certified; in the paper's sense for its methods."""
    row, _ = table.at(benchmark=name, eps=epsilon, method=method)
    return f"{100 * row['Cert.']:.1f}"


def strong() -> list[str]:
    """The comparison with α-CROWN and with branch and bound."""
    table, rows = Table("strong"), []
    for setting in ("K=4, d=16, ε=0.05", "K=4, d=32, ε=0.03", "Residual MHA, ε=0.05"):
        cells = [table.at(setting=setting, method=name) for name in ("α-crown (ours)", "Vertex", "joint (ours)")]
        theirs = [f"{100 * published['Cert.']:.1f}" for _, published in cells[:2]]
        ours = [f"{100 * row['Cert.']:.1f}" for row, _ in cells]
        branched, their_branched = table.at(setting=setting, method="branch and bound")
        searched = ["–", "–"]
        if "Cert." in branched:
            searched = [
                f"{100 * their_branched['Cert.']:.1f} ({their_branched['Sec./trial']:.0f} s)",
                f"{100 * branched['Cert.']:.1f} ({branched['Sec./trial']:.1f} s)",
            ]
        rows.append((f"{setting}, published", *theirs, "–", searched[0], "–"))
        rows.append((f"{setting}, ours", *ours[:2], f"**{ours[2]}**", searched[1], "`vertex reproduce strong`"))
    head = ("setting", "α-CROWN", "Vertex", "`joint`", "branch and bound (time of a trial)", "command")
    return readme_runs.table(head, rows)


def against() -> list[str]:
    """The head of docs/results.md; the rows about the paper are from results/."""
    rows = []
    for name in ("10-class, 16 tokens", "Binary, 16 tokens"):  # the best of ours beside its own, and the worst
        row, published = Table("patch").at(benchmark=name, eps=0.03, method="Vertex")
        ours = _cell(Table("patch"), name, 0.03, "joint (ours)")
        rows.append(
            readme_beside.Beside(
                f"the paper: MNIST, {name}, ε = 0.03, images certified (the models are ours, trained as it says)",
                f"Vertex {100 * published['Cert.']:.1f} %",
                f"its method {100 * row['Cert.']:.1f} %, `joint` {ours} %",
                "see `results/README.md`",
                ("results/patch.json",),
                ("patch",),
            )
        )
    return readme_peers.against(readme_runs.Runs(RUNS), rows)


def lost() -> list[str]:
    """What we lose; of the paper: where its figure is above ours."""
    above = []
    for experiment, name, epsilon in PLACES:
        found = Table(experiment)
        theirs = [found.at(benchmark=name, eps=epsilon, method=method)[1].get("Cert.", 0.0) for method in SHOWN[:3]]
        ours = [found.at(benchmark=name, eps=epsilon, method=method)[0]["Cert."] for method in ("Vertex", SHOWN[3])]
        if max(theirs) > ours[1]:
            shown = (
                f"{100 * max(theirs):.1f} %, ours {100 * ours[0]:.1f} % by the same method and {100 * ours[1]:.1f} %"
            )
            above.append(f"{name}, ε = {epsilon:g} ({shown} by `joint`)")
    text = f"**The paper.** Its certified rate is above ours in {len(above)} of {len(PLACES)} rows: {'; '.join(above)}."
    return readme_peers.lost(readme_runs.Runs(RUNS), [text] if above else [])


def commands() -> list[str]:
    """Every command whose figures are kept, and the files that it writes."""
    rows = []
    for what in MEASURES.values():
        folder = what.where.relative_to(ROOT).as_posix()
        files = [f"`{folder}/{file}`" for file in what.made.values() if (what.where / file).exists()]
        if files:
            rows.append((f"`{what.command}`", ", ".join(file for file in files if file.endswith(".json`"))))
    return readme_runs.table(("command", "figures"), rows)


def of_runs(make: Callable[[readme_runs.Runs], list[str] | str]) -> Callable[[], list[str]]:
    """A block that is made of lab/benchmarks/runs alone."""

    def made() -> list[str]:
        lines = make(readme_runs.Runs(RUNS))
        return [lines] if isinstance(lines, str) else lines

    return made


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "six results": six,
    "against whom": against,
    **{name: of_runs(make) for name, make in readme_vnncomp.BLOCKS.items()},
    "what we lose": lost,
    "tightness": of_runs(readme_tightness.tightness),
    "introduction": of_runs(readme_runs.introduction),
    "one-block models": of_runs(readme_runs.anchors),
    "vision transformers": of_runs(readme_runs.vit),
    **{f"rows of {name}": partial(measured, name) for name in (*readme_runs.GROUPS, "primitive")},
    "primitive on a GPU": of_runs(readme_runs.on_a_gpu),
    "sentences": of_runs(readme_norms.sentences),
    "synonyms": of_runs(readme_norms.synonyms),
    "families": of_runs(readme_families.families),
    "norms of balls": of_runs(readme_sets.deept),
    "balls and boxes": of_runs(readme_sets.balls),
    "how large": of_runs(readme_limits.how_large),
    "start-up": of_runs(readme_startup.startup),
    "growth": of_runs(readme_growth.growth),
    "still rows": of_runs(readme_growth.still_rows),
    "shared tree": of_runs(readme_shared.shared_tree),
    "norms on digits": of_runs(readme_norms.digits),
    "language models": of_runs(readme_norms.language),
    "sentences beside auto_LiRPA": of_runs(readme_norms.peer),
    "certificates of norms": of_runs(readme_norms.certificates),
    "all inputs": of_runs(readme_norms.all_inputs),
    "commands and files": commands,
    "paper: primitive": solver,
    "paper: sweep": sweep,
    "paper: certified rates": certified,
    "paper: stronger baselines": strong,
}
"""What each block of a page is made by."""
PAGES = (
    "README.md",
    "docs/results.md",
    "docs/methods.md",
    "docs/norms.md",
    "docs/certificates.md",
    "docs/sets.md",
    "docs/scale.md",
    "docs/your-model.md",
    "docs/limits.md",
)
BLOCK = re.compile(r"(<!-- figures: (.*?) \(make figures\) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """A page with its blocks made anew."""

    def made(found: re.Match[str]) -> str:
        # An empty line after a comment keeps a table apart from it, as Markdown needs.
        return "\n".join([found[1], *BLOCKS[found[2]](), "", found[3]])

    return BLOCK.sub(made, text)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether a page would change")
    parser.add_argument("--measure", nargs="*", metavar="NAME", help=f"run these again, or all: {', '.join(MEASURES)}")
    parser.add_argument("--peer", type=Path, metavar="CHECKOUT", help="of auto_LiRPA 0.7.1, to time beside ours")
    parser.add_argument("--into", type=Path, metavar="DIR", help="put what was measured there, and change no page")
    asked = parser.parse_args(arguments)
    failed = []
    if asked.measure is not None:
        peer = None if asked.peer is None else asked.peer.resolve()
        failed = measure(asked.measure, lambda text: print(text, flush=True), peer, asked.into)
        if asked.into is not None:
            return int(bool(failed))
    changed = False
    for path in (ROOT / name for name in PAGES):
        text = path.read_text(encoding="utf-8")
        new = page(text)
        changed |= new != text
        if not asked.check:
            path.write_text(new, encoding="utf-8")
    return int(changed if asked.check else bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
