"""`vertex certify` and `vertex radius`: many inputs, several methods; a table on stdout, RUN/run.json for the report.

Exit codes: 0 done; 1 an answer contradicts the attack, which is a bug in Vertex; 2 bad input; 130 interrupted: the same
command goes on from there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vertex_softmax.cli import values
from vertex_softmax.cli.common import complain, errors, progress_bar, quiet, reporting, say
from vertex_softmax.cli.names import DATA_SETS, METHODS, one_of, some_of
from vertex_softmax.foundation.errors import InvalidValueError

if TYPE_CHECKING:
    from vertex_softmax.runs.evaluate import EvaluatedPart
    from vertex_softmax.runs.run import Run
    from vertex_softmax.runs.subject import Inputs

Model = Annotated[Path, typer.Argument(help="An ONNX file, or a model that `vertex demo` wrote.", show_default=False)]
DataName = Annotated[
    str,
    typer.Option(
        "--data",
        autocompletion=one_of(DATA_SETS),
        help="digits, mnist, ...; or a file .npz or .safetensors with inputs and labels.",
    ),
]
DataDir = Annotated[Path, typer.Option("--data-dir", envvar="VERTEX_DATA", help="The folder of the data sets.")]
Clip = Annotated[
    str | None,
    typer.Option(help="LOW,HIGH: the range of an input's entries.", show_default="0,1 for a data set, none for a file"),
]
Count = Annotated[int | None, typer.Option("--count", min=1, help="How many inputs.", show_default="all")]
First = Annotated[int, typer.Option(min=0, help="Number of the first input, from 0.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Number of threads.", show_default="all cores")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
DATA_FOLDER = Path("data")
"""The default of --data-dir."""


# More than six parameters: the arguments and options of the command. So has `radius`.
@reporting
def certify(
    model: Model,
    eps: Annotated[str, typer.Option(help="ε, or several: 0.01,0.02,0.05")],
    data: DataName = "digits",
    methods: Annotated[
        str, typer.Option(autocompletion=some_of(METHODS), help="ibp, crown, alpha-crown, vertex, hybrid, joint, bab")
    ] = "crown,joint",
    count: Count = None,
    first: First = 0,
    clip: Clip = None,
    out: Annotated[Path, typer.Option(help="Folder for run.json and the journal.")] = Path("out/certify"),
    verdicts_only: Annotated[bool, typer.Option("--verdicts-only", help="Stop a bound once it decides.")] = False,
    data_dir: DataDir = DATA_FOLDER,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Certify labelled inputs by several methods at several ε, and attack them.

    Each entry of an input may change by at most ε, within --clip; an input is certified if no point of that set is
    misclassified. Every finished piece is kept in OUT/journal.jsonl: after an interruption the same command continues.
    `vertex report OUT` makes a page of the results.

    Examples:
        vertex certify out/demo/model --eps 0.02,0.05 --count 5
        vertex certify model.onnx --data inputs.npz --eps 0.1 --methods crown
    """
    from vertex_softmax.runs.evaluate import Plan, contradictions, evaluate
    from vertex_softmax.runs.subject import read_model

    radii = _numbers("--eps", eps)
    files = _files(model, data, out)
    _set_threads(threads)
    inputs = _read_inputs(data, data_dir, clip, first, count)
    subject = read_model(model, inputs)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    plan = Plan(bounds_at=() if verdicts_only else None)
    with watching(names, radii) as watch:
        run = evaluate(subject, inputs, names, radii, out, plan, watch, files)
    if as_json:
        typer.echo(json.dumps({"run": str(out / "run.json"), **summary(run)}))
    else:
        Console().print(table(run))
    say(f"written: {out / 'run.json'}; a page of it: vertex report {out}")
    if wrong := contradictions(run):
        complain("\n".join(["Vertex contradicts itself; please report this:", *wrong]))
        raise typer.Exit(1)


@reporting
def radius(
    model: Model,
    data: DataName = "digits",
    methods: Annotated[
        str, typer.Option(autocompletion=some_of(METHODS), help="One or several: crown,joint")
    ] = "joint",
    count: Count = None,
    first: First = 0,
    clip: Clip = None,
    least: Annotated[float, typer.Option(help="The smallest ε that is tried.")] = 1e-4,
    most: Annotated[float, typer.Option(help="The largest ε that is tried.")] = 0.5,
    precision: Annotated[
        float, typer.Option(help="Relative distance of the certified to the least refused ε at the end.")
    ] = 0.05,
    out: Annotated[Path, typer.Option(help="Folder for run.json and the journal.")] = Path("out/radius"),
    data_dir: DataDir = DATA_FOLDER,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Find the largest certified ε of every input, by bisection, and the curve of certified accuracy.

    A certified radius is an ε that was certified itself; the attack gives an ε at which the network was fooled; the
    true radius lies between. Every answer is kept in OUT/journal.jsonl: after an interruption the same command
    continues.

    Examples:
        vertex radius out/demo/model --count 5 --methods crown,joint
        vertex radius model.onnx --data inputs.npz --json
    """
    from vertex_softmax.runs.bisection import Bisection
    from vertex_softmax.runs.radius import radii
    from vertex_softmax.runs.subject import read_model

    how = Bisection(least=least, most=most, precision=precision)
    files = _files(model, data, out)
    _set_threads(threads)
    inputs = _read_inputs(data, data_dir, clip, first, count)
    subject = read_model(model, inputs)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    with progress_bar() as progress:
        run = radii(subject, inputs, names, out, how, watch=progress, files=files)
    if as_json:
        typer.echo(json.dumps({"run": str(out / "run.json"), **radius_summary(run)}))
    else:
        console = Console()
        console.print(radius_table(run))
        console.print(curve(run))
    say(f"written: {out / 'run.json'}; a page of it: vertex report {out}")


def _files(model: Path, data: str, out: Path) -> list[Path]:
    """The files that a run reads; raises if the run in `out` would overwrite one of them."""
    from vertex_softmax.runs.run import claimed
    from vertex_softmax.runs.sweep.runner import external

    if not model.name:
        raise InvalidValueError(f"{model} is not a model: give an ONNX file, or a model that `vertex demo` wrote")
    stems = {model.name, model.stem}
    beside = [model.with_name(f"{stem}.{ending}") for stem in stems for ending in ("json", "safetensors")]
    files = [model, *beside, *external(model), *([] if data in DATA_SETS else [Path(data)])]
    claimed(out, files)
    return files


def _set_threads(threads: int | None) -> None:
    """Set torch's number of threads, if --threads is given."""
    import torch

    if values.threads("--threads", threads) is not None:
        torch.set_num_threads(threads or 1)


def _read_inputs(data: str, data_dir: Path, clip: str | None, first: int, count: int | None) -> Inputs:
    """The inputs that the options --data, --data-dir, --clip, --first and --count select."""
    from vertex_softmax.runs.subject import read_inputs

    ends = None if clip is None else _numbers("--clip", clip)
    if ends is not None and len(ends) != 2:
        raise InvalidValueError(f"--clip is {clip!r}; give two numbers, such as 0,1")
    return read_inputs(
        data, data_dir=data_dir, clip=None if ends is None else (ends[0], ends[1]), first=first, count=count
    )


def _numbers(name: str, text: str) -> list[float]:
    """The numbers in the comma-separated value of an option."""
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InvalidValueError(
            f"{name} is {text!r}; give numbers with commas between them, such as 0.01,0.02"
        ) from error


@contextlib.contextmanager
def watching(methods: Sequence[str], eps: Sequence[float]) -> Iterator[Callable[[EvaluatedPart], None]]:
    """A live table of the progress on stderr; not shown with -q, or if stderr is not a terminal."""
    parts: dict[tuple[str, float], EvaluatedPart] = {}
    begin = time.perf_counter()

    def shown() -> Table:
        live = Table(title="certified so far")
        live.add_column("method")
        for e in eps:
            live.add_column(f"ε = {e:g}", justify="right")
        for method in (*methods, "attack"):
            live.add_row(method, *(_so_far(parts.get((method, e))) for e in eps))
        total = (len(methods) + 1) * len(eps)
        done = sum(part.done / max(1, part.total) for part in parts.values())
        live.caption = f"{time.perf_counter() - begin:.0f} s, {done:.1f} of {total} columns of inputs finished"
        return live

    if quiet() or not errors.is_terminal:
        yield lambda _part: None
        return
    with Live(console=errors, auto_refresh=False, transient=True) as live:

        def watch(part: EvaluatedPart) -> None:
            if part.method != "slack":
                parts[part.method, part.eps] = part
            live.update(shown(), refresh=True)

        yield watch


def _so_far(part: EvaluatedPart | None) -> str:
    """The certified share so far, for the live table."""
    if part is None or part.done == 0:
        return ""
    return f"{part.certified / part.done:.0%}" + ("" if part.done == part.total else f" of {part.done}")


def summary(run: Run) -> dict[str, Any]:
    """Rates, bounds and times per method and ε, as plain JSON."""
    rows = []
    for method in run.methods:
        for e in run.eps:
            answers = [a for a in run.answers if a.method == method and a.eps == e]
            bounds = [a.bound for a in answers if a.bound is not None]
            rows.append(
                {
                    "method": method,
                    "eps": e,
                    "certified": run.rate(method, e),
                    "mean_bound": sum(bounds) / len(bounds) if bounds else None,
                    "seconds_per_input": sum(a.seconds for a in answers) / max(1, len(answers)),
                }
            )
    return {
        "inputs": len(run.inputs),
        "correct": sum(x.clean > 0 for x in run.inputs),
        "rows": rows,
        "attack": [{"eps": e, "not_fooled": run.ceiling(e)} for e in run.eps],
    }


def table(run: Run, notes: Mapping[str, str] | None = None) -> Table:
    """The certified rates as a table for the terminal; the last row is the attack's ceiling. `notes`: per method."""
    found = summary(run)
    correct = f"{found['correct']} of {found['inputs']} inputs are classified correctly"
    explained = [f"{method}: {note}" for method, note in (notes or {}).items()]
    shown = Table(
        title=Text(f"{run.title}: certified of {found['inputs']} inputs"),
        caption=Text(
            "\n".join([f"{correct}; bound: mean margin to the worst class at ε = {run.eps[-1]:g}", *explained])
        ),
        caption_justify="left",
    )
    shown.add_column("method")
    for e in run.eps:
        shown.add_column(f"ε = {e:g}", justify="right")
    shown.add_column("bound", justify="right")
    shown.add_column("s per input", justify="right")
    for method in run.methods:
        rows = [row for row in found["rows"] if row["method"] == method]
        bound = rows[-1]["mean_bound"]
        cells = [*(f"{row['certified']:.0%}" for row in rows), "–" if bound is None else f"{bound:+.4g}"]
        style = "bold green" if method == run.methods[-1] else None
        shown.add_row(method, *cells, f"{rows[-1]['seconds_per_input']:.3f}", style=style)
    shown.add_section()
    margins = [a.margin for a in run.attacks if a.eps == run.eps[-1]]
    mean = sum(margins) / max(1, len(margins))
    ceilings = [f"≤ {row['not_fooled']:.0%}" for row in found["attack"]]
    shown.add_row("attack", *ceilings, f"≤ {mean:+.4g}", "", style="dim")
    return shown


def radius_summary(run: Run) -> dict[str, Any]:
    """Median radii per method, and the certified-accuracy curve, as plain JSON."""
    steps = _steps(run)
    return {
        "inputs": len(run.inputs),
        "correct": sum(x.clean > 0 for x in run.inputs),
        "median": {method: _median([r.certified for r in run.radii if r.method == method]) for method in run.methods},
        "curve": {method: [[e, run.certified_accuracy(method, e)] for e in steps] for method in run.methods},
        "radii": [
            {
                "input": run.inputs[r.input].index,
                "method": r.method,
                "certified": r.certified,
                "refused": r.refused,
                "attacked": r.attacked,
                "seconds": r.seconds,
            }
            for r in run.radii
        ],
    }


def radius_table(run: Run) -> Table:
    """The quartiles of the radii as a table for the terminal."""
    shown = Table(title=Text(f"{run.title} ({len(run.inputs)} inputs)"))
    for name in ("method", "lower quartile", "median", "upper quartile", "largest", "s/input"):
        shown.add_column(name, justify="left" if name == "method" else "right")
    for method in run.methods:
        mine = sorted(r.certified for r in run.radii if r.method == method)
        spent = sum(r.seconds for r in run.radii if r.method == method) / max(1, len(mine))
        shown.add_row(method, *(f"{_quantile(mine, q):.4g}" for q in (0.25, 0.5, 0.75, 1.0)), f"{spent:.2f}")
    attacked = sorted(float("inf") if r.attacked is None else r.attacked for r in run.radii[: len(run.inputs)])
    shown.add_section()
    cells = [f"< {_quantile(attacked, q):.4g}" for q in (0.25, 0.5, 0.75, 1.0)]
    shown.add_row("attack", *cells, "", style="dim")
    return shown


def curve(run: Run) -> Table:
    """The certified accuracy at round ε as a table for the terminal."""
    steps = _steps(run)
    shown = Table(
        title="certified accuracy: the share of inputs whose radius is at least ε",
        pad_edge=False,
        collapse_padding=True,
    )
    shown.add_column("ε")
    for e in steps:
        shown.add_column(f"{e:g}", justify="right")
    for method in run.methods:
        shown.add_row(method, *(f"{run.certified_accuracy(method, e) or 0:.0%}" for e in steps))
    return shown


def _steps(run: Run) -> list[float]:
    """Six to fifteen round values of ε, up to the first at which nothing is certified."""
    most = max((r.certified for r in run.radii), default=0.0) or 1.0
    step = next(m * 10.0**k for k in range(-9, 9) for m in (1, 2, 5) if m * 10.0**k >= most / 12)
    return [float(f"{step * i:.6g}") for i in range(1, int(most / step) + 2)]


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, max(0, round(q * (len(ordered) - 1))))] if ordered else 0.0


def _median(numbers: Sequence[float]) -> float:
    return _quantile(sorted(numbers), 0.5)
