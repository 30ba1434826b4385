"""`vertex bench`: two things timed in one run, and their ratio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vertex_softmax.cli import values
from vertex_softmax.cli.common import group, reporting, say
from vertex_softmax.cli.names import DEVICES, one_of
from vertex_softmax.foundation.files import write_whole

COLUMNS = ("dtype", "K", "sort", "ours", "outward", "torch only", "speed-up", "outward/ours", "of copy bandwidth")
COUNTED = {
    **{name: name for name in ("family", "method")},
    "instances": "all",
    **{name: name for name in ("robust", "verified", "falsified", "unknown", "errors", "wrong", "lost")},
    "median_seconds": "s",
}
app = group(
    """Measure: two things in one run, and their ratio.

    Examples:
        vertex bench softmax-box --quick
        vertex bench fuzz --minutes 1
        vertex bench soundness --quick
    """
)


@app.command("softmax-box")
@reporting
def bench_softmax_box(
    device: Annotated[str, typer.Option(autocompletion=one_of(DEVICES), help="cpu (one thread) or cuda.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes.")] = False,
    out: Annotated[Path, typer.Option(help="Where softmax-box-DEVICE.json goes.")] = Path("out/bench"),
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
) -> None:
    """Time the primitive against the paper's algorithm in plain torch, in one run.

    Examples:
        vertex bench softmax-box --quick
        vertex bench softmax-box --quick --json --out out/bench
    """
    from vertex_lab import softmax_box_bench

    result = softmax_box_bench.run(device=device, out=out, quick=quick, progress=say)
    path = out / f"softmax-box-{device}.json"
    if result["growth"]:
        from vertex_softmax.runs.report import plots

        for form in ("svg", "png"):
            write_whole(out / f"softmax-box-growth.{form}", plots.save(plots.growth(result["growth"]), form))
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _show(result)
    growth = ", softmax-box-growth.svg, .png" if result["growth"] else ""
    say(f"written: {path}{growth}")


@app.command("fuzz")
@reporting
def bench_fuzz(
    minutes: Annotated[float, typer.Option(min=0.0, help="How long to look.")] = 10.0,
    out: Annotated[Path, typer.Option(help="Journal and finds; a folder that has them is gone on with.")] = Path(
        "out/fuzz"
    ),
    seed: Annotated[int, typer.Option(min=0, help="The first case of a new folder.")] = 0,
    device: Annotated[str, typer.Option(autocompletion=one_of(DEVICES), help="cpu, or cuda beside it.")] = "cpu",
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds for one case.")] = 60.0,
    workers: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 1,
    kinds: Annotated[
        str | None, typer.Option(help="Only these kinds of cases, with commas between.", show_default="all")
    ] = None,
) -> None:
    """Look for bugs: random models, files and properties through every way in, and what must hold of the answers.

    Kinds: network, tokens, modules, styles, properties, constants, precision, certificates, swaps, routes.

    Examples:
        vertex bench fuzz --minutes 120 --workers 2
        vertex bench fuzz --minutes 10 --kinds tokens,styles
        vertex bench fuzz --minutes 10 --seed 7 --out out/more
    """
    from vertex_lab.fuzz.run import fuzz

    values.number("--minutes", minutes, 0, values.MOST_MINUTES)
    values.seed("--seed", seed)
    values.seconds("--limit", limit)
    values.threads("--workers", workers)
    names = None if kinds is None else [name.strip() for name in kinds.split(",") if name.strip()]
    state = fuzz(minutes, out, seed=seed, device=device, limit=limit, workers=workers, kinds=names, progress=say)
    typer.echo(f"{sum(state['findings'].values())} findings in {state['cases']} cases")
    for kind, count in sorted(state["findings"].items()):
        typer.echo(f"{count:6d}  {kind}")
    say(f"written: {out / 'journal.jsonl'}, {out / 'finds'}")
    if state["findings"]:
        raise typer.Exit(1)


@app.command("soundness")
@reporting
def bench_soundness(
    quick: Annotated[bool, typer.Option("--quick", help="One instance of each op or kind, not all.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How many of each.")] = 1,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    family: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=one_of(("exact", "hat", "file", "tree")), help="exact, hat, file: all, if left out; or tree."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of branch and bound for each.")] = 2.0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one for each core, if left out.")] = None,
    out: Annotated[Path, typer.Option(help="Where soundness.json and the journal go.")] = Path("out/soundness"),
    as_json: Annotated[bool, typer.Option("--json", help="The counts as JSON on stdout.")] = False,
) -> None:
    """Ask what is known: networks with planted counterexamples and exact minima, by every method; 0 wrong answers.

    Examples:
        vertex bench soundness --quick
        vertex bench soundness --family exact --seeds 2 --jobs 2
        vertex bench soundness --family tree --seeds 1000
    """
    from vertex_lab.soundness.bench import FAMILIES, bench

    values.count("--seeds", seeds, 1, values.MOST_COUNT)
    values.seed("--first", first)
    values.seconds("--seconds", seconds)
    values.jobs("--jobs", jobs)
    result = bench(
        out,
        families=tuple(family or FAMILIES),
        seeds=seeds,
        first=first,
        quick=quick,
        jobs=jobs,
        seconds=seconds,
        progress=say,
    )
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _show_soundness(result)
    say(f"written: {out / 'soundness.json'}; every answer is in {out / 'soundness.jsonl'}")
    if result["wrong"]:
        raise typer.Exit(1)


def _show_soundness(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console, table = Console(), Table(box=None, pad_edge=False, collapse_padding=True)
    for column, title in COUNTED.items():
        table.add_column(title, justify="left" if column in ("family", "method") else "right")
    for row in result["table"]:
        lost = "" if row["lost"] is None else f"{row['lost']:.1g}"
        told = {**row, "lost": lost, "median_seconds": f"{row['median_seconds']:.2f}"}
        table.add_row(*(str(told[column]) for column in COUNTED))
    console.print(table)
    for name, (found, count) in result["attacked"].items():
        console.print(f"PGD finds {found} of {count} counterexamples of the family {name}", highlight=False)
    console.print(
        f"{result['answers']} answers to {result['instances']} instances, {result['wrong']} wrong", highlight=False
    )
    for text in result["mistakes"]:
        console.print(f"WRONG: {text}", highlight=False, markup=False)


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{result['processor']}, kernel {result['kernel']}, ns per entry")
    for column in COLUMNS:
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
