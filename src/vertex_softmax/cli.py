"""The command line. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done; 1 a check in the result does not hold; 2 bad input or a missing dependency; 130 interrupted.
"""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from vertex_softmax import __version__, cli_check, cli_data, cli_reproduce, cli_runs, cli_sweep, cli_verify
from vertex_softmax.cli_common import errors, progress_bar, reporting, show_tracebacks
from vertex_softmax.files import write_whole
from vertex_softmax.softmax_box import native

app = typer.Typer(
    name="vertex",
    help="Exact optimisation through softmax, and proofs about softmax-attention networks.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure: two things in one run, and their ratio.", no_args_is_help=True)
app.add_typer(bench, name="bench")
app.add_typer(cli_data.app, name="data")
app.command()(cli_reproduce.reproduce)
app.command()(cli_runs.certify)
app.command()(cli_runs.radius)
app.command()(cli_verify.verify)
app.command()(cli_check.check)
app.command()(cli_sweep.sweep)


def main() -> None:
    """Entry point of the command `vertex`."""
    app()


def _version(show: bool) -> None:
    if show:
        cuda = f"CUDA {torch.version.cuda}" if torch.cuda.is_available() else "no CUDA"
        kernel = native.variant() or "none (pure torch)"
        versions = f"Python {platform.python_version()}, torch {torch.__version__}, {cuda}, CPU kernel {kernel}"
        typer.echo(f"vertex {__version__}, {versions}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    _show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which versions run.")
    ] = False,
) -> None:
    """Exact optimisation through softmax, and proofs about softmax-attention networks."""
    show_tracebacks(debug)


@app.command()
@reporting
def demo(
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the sampled points.")] = 0,
) -> None:
    """Show the theorem on one attention row and certify a small transformer: tables here, OUT/report.html to browse.

    The transformer is trained on the embedded digits the first time, and kept in OUT.

    Example: vertex demo --out out/demo
    """
    from vertex_softmax import demo as example
    from vertex_softmax.report import page

    started = time.perf_counter()
    data = example.run(seed)
    with progress_bar() as progress:
        data["certification"] = example.certification(out, progress)
    path = page.write_demo(data, out, __version__)
    write_whole(out / "demo.json", json.dumps(data).encode())
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
        f"report: {path} ({time.perf_counter() - started:.1f} s)\n\n"
        "next:  vertex reproduce slack         a table of the paper, remade to three decimals\n"
        "       vertex reproduce all --quick   every table of the paper, reduced, in some minutes\n"
        "       vertex bench softmax-box       the speed of the primitive on this machine",
        highlight=False,
    )
    if not (data["proved"] and abs(exact - data["exhaustive"]) < 1e-12 and data["certification"]["consistent"]):
        errors.print("the demo contradicts itself: please report this", style="red")
        raise typer.Exit(1)


@bench.command("softmax-box")
@reporting
def bench_softmax_box(
    device: Annotated[str, typer.Option(help="cpu (one thread) or cuda.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes.")] = False,
    out: Annotated[Path, typer.Option(help="Where softmax-box-DEVICE.json goes.")] = Path("out/bench"),
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
) -> None:
    """Time the primitive against the paper's algorithm in plain torch, in one run.

    Example: vertex bench softmax-box --device cpu --quick
    """
    from vertex_softmax.benchmarks import softmax_box as benchmark

    result = benchmark.run(
        device=device, out=out, quick=quick, progress=lambda text: errors.print(text, highlight=False)
    )
    path = out / f"softmax-box-{device}.json"
    if result["growth"]:
        from vertex_softmax.report import plots

        for form in ("svg", "png"):
            write_whole(out / f"softmax-box-growth.{form}", plots.save(plots.growth(result["growth"]), form))
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = Console()
    title = f"{result['processor']}, kernel {result['kernel']}, ns per entry"
    table = Table(title=title)
    for column in (
        "dtype",
        "K",
        "sort",
        "ours",
        "outward",
        "torch only",
        "speed-up",
        "outward/ours",
        "of copy bandwidth",
    ):
        table.add_column(column, justify="right")
    for timing in result["timings"]:
        share = timing["bandwidth_share"]
        nanoseconds = [f"{timing[key]:.3g}" for key in ("sort_ns", "default_ns", "outward_ns", "fallback_ns")]
        ratios = [f"{timing['speedup']:.1f}x", f"{timing['outward_ratio']:.2f}"]
        table.add_row(
            timing["dtype"], str(timing["keys"]), *nanoseconds, *ratios, "–" if share is None else f"{share:.0%}"
        )
    console.print(table)
    for row in result["growth"]:
        console.print(
            f"K = {row['keys']:>6}: newton {row['newton']:.2f}, threshold {row['threshold']:.1f} ns per entry",
            highlight=False,
        )
    for keys, extra in result["extra_bytes"].items():
        console.print(f"extra memory at K = {keys}: {extra} bytes", highlight=False)
    growth = ", softmax-box-growth.svg, .png" if result["growth"] else ""
    errors.print(f"written: {path}{growth}", highlight=False)
