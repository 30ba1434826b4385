"""`vertex demo`: the theorem on one attention row, and a small transformer certified."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from vertex_softmax import __version__
from vertex_softmax.cli_common import complain, progress_bar, reporting
from vertex_softmax.files import write_whole


@reporting
def demo(
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the sampled points.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
) -> None:
    """Show the theorem on one attention row and certify a small transformer: tables here, OUT/report.html to browse.

    The transformer is trained on the embedded digits the first time, and kept in OUT. Exit code 1: the demo contradicts
    itself, which should be reported.

    Examples:
        vertex demo --out out/demo
    """
    from vertex_softmax import demo as example
    from vertex_softmax.report import page

    started = time.perf_counter()
    data = example.run(seed)
    with progress_bar() as progress:
        data["certification"] = example.certification(out, progress)
    path = page.write_demo(data, out, __version__)
    write_whole(out / "demo.json", json.dumps(data).encode())
    if as_json:
        typer.echo(json.dumps(data))
    else:
        _show(data, f"{path} ({time.perf_counter() - started:.1f} s)")
    exact = data["methods"][-1]["bound"]
    if not (data["proved"] and abs(exact - data["exhaustive"]) < 1e-12 and data["certification"]["consistent"]):
        complain("the demo contradicts itself: please report this")
        raise typer.Exit(1)


def _show(data: dict[str, Any], report: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from vertex_softmax import demo as example

    exact = data["methods"][-1]["bound"]
    table = Table(title="How low can c · softmax(s) be over one box of 8 scores?")
    for name, side in (("method", "left"), ("what it does", "left"), ("lower bound", "right"), ("slack", "right")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for method in data["methods"]:
        style = "bold green" if method["name"] == "Vertex" else None
        table.add_row(
            method["name"], method["how"], f"{method['bound']:+.6f}", f"{exact - method['bound']:.6f}", style=style
        )
    console = Console()
    console.print(table)
    proved = "passes" if data["proved"] else "FAILS"
    console.print(
        f"all {2 ** len(data['c'])} vertices, one by one: {data['exhaustive']:+.6f}; "
        f"lowest of {len(data['sampled'])} random points: {min(data['sampled']):+.6f}\n"
        f"proved: the exact minimum is in [{data['enclosure'][0]!r}, {data['enclosure'][1]!r}];\n"
        f"        the rounded-down result {data['outward']!r} {proved} the test φ(t) ≥ 0\n",
        highlight=False,
    )
    console.print(example.table(data["certification"]))
    console.print(
        f"report: {report}\n\n"
        "next:  vertex reproduce slack         a table of the paper, remade to three decimals\n"
        "       vertex reproduce all --quick   every table of the paper, reduced, in some minutes\n"
        "       vertex bench softmax-box       the speed of the primitive on this machine",
        highlight=False,
    )
