"""`vertex reproduce`: a table of the paper, or all, with the published figures beside ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vertex_lab.commands.names import EXPERIMENTS
from vertex_softmax.cli.common import complain, progress_bar, reporting, say
from vertex_softmax.cli.names import DATA_SETS, DEVICES, one_of
from vertex_softmax.foundation.errors import InvalidValueError, VertexError

if TYPE_CHECKING:
    from vertex_lab.experiments import Experiment, ExperimentResult, Request

MOST_DIGITS = 9
"""of a seed: generators are seeded with multiples of it, which have to fit into 64 bits"""

ENDINGS = ("json", "md", "csv", "tex", "svg", "png")


Data = Annotated[
    str | None,
    typer.Option(
        autocompletion=one_of(DATA_SETS),
        help="Data set of every row, e.g. digits.",
        show_default="those of the paper that are at hand",
    ),
]


@reporting
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=one_of(("all", *EXPERIMENTS)), help="Which experiment, or all.", show_default=False
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="A reduced run, on digits unless --data says else.")] = False,
    data: Data = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the data files.", show_default="$VERTEX_DATA, else data")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, as 0,1,2 or 0-4.", show_default="the experiment's own")
    ] = None,
    device: Annotated[
        str, typer.Option(autocompletion=one_of(DEVICES), help="cpu or cuda, for the bounds of trained models.")
    ] = "cpu",
    out: Annotated[Path, typer.Option(help="Where tables, plots, journals and models go.")] = Path("out/reproduce"),
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout; of all: by name.")] = False,
) -> None:
    """Remake a table of the paper: Markdown, CSV, LaTeX, JSON, plots, and OUT/index.html over all of them.

    Every finished trial is one line of OUT/journals/NAME.jsonl: after a kill the same command goes on where it was.
    Rows whose data is not in --data-dir say so and are not run. Exit code 1: a check of a table does not hold.

    Examples:
        vertex reproduce slack
        vertex reproduce all --quick
    """
    if name != "all" and name not in EXPERIMENTS:
        raise InvalidValueError(f"there is no experiment {name!r}; choose one of {', '.join(EXPERIMENTS)} or all")
    if data is not None and data not in DATA_SETS:
        raise InvalidValueError(f"there is no data set {data!r}; choose one of {', '.join(DATA_SETS)}")
    from vertex_lab.experiments import EXPERIMENTS as KNOWN
    from vertex_lab.experiments import summary
    from vertex_lab.experiments.request import Request
    from vertex_softmax.runs.demo.training import one_thread

    _check_device(device)
    numbers = None if seeds is None else _seeds(seeds)
    results = {}
    for experiment in KNOWN.values() if name == "all" else [KNOWN[name]]:
        with progress_bar() as progress, one_thread():  # the tensors are too small for more
            request = Request(out, quick, numbers, data, data_dir, device, progress)
            result = _run(experiment, request)
        results[experiment.name] = result
        if not as_json:
            typer.echo(result.markdown())
        endings = [f".{ending}" for ending in ENDINGS if (out / f"{experiment.name}.{ending}").exists()]
        say(f"written: {out / experiment.name}{', '.join(endings)}")
    if as_json:
        found = {each: json.loads(result.json()) for each, result in results.items()}
        typer.echo(json.dumps(found.get(name, found), indent=2, ensure_ascii=False))
    say(f"summary: {summary.write(out)}")
    _complain(results)


def _complain(results: dict[str, ExperimentResult]) -> None:
    """Say what does not hold in the tables; exit code 1 if there is anything."""
    failures = [f"{name}: {failure}" for name, result in results.items() for failure in result.failures]
    for failure in failures:
        complain(f"does not hold: {failure}")
    if failures:
        raise typer.Exit(1)


def _run(experiment: Experiment, request: Request) -> ExperimentResult:
    """The table. A journal that was there is nobody's word: what does not fit together then may be its fault."""
    there = any((request.out / "journals").glob("*.jsonl"))
    try:
        return experiment.run(request)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        if not there or isinstance(error, VertexError):
            raise
        raise InvalidValueError(
            f"{experiment.name} cannot go on ({type(error).__name__}: {str(error)[:200]}): a line of a journal in "
            f"{request.out / 'journals'} may not be what this version wrote; move the journals away and run it again"
        ) from error


def _check_device(device: str) -> None:
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise InvalidValueError(f"device is {device!r}; choose cpu or cuda") from error
    if kind not in {"cpu", "cuda"}:
        raise InvalidValueError(f"device is {device!r}; choose cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidValueError("device is cuda, but torch finds no CUDA device here; choose cpu")


def _seeds(text: str) -> tuple[int, ...]:
    """0,1,2 and 0-4, also mixed."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidValueError(f"seeds is {text!r}; write numbers with commas, or a range: 0,1,2 or 0-4")
        if max(len(first), len(last)) > MOST_DIGITS:
            raise InvalidValueError(f"seeds is {text!r}; a seed has at most {MOST_DIGITS} digits")
        ends = (int(first), int(last if dash else first))
        if ends[1] < ends[0] or ends[1] - ends[0] >= 10_000:
            raise InvalidValueError(f"seeds is {text!r}; {part!r} is not a range of at most 10,000 seeds")
        found += range(ends[0], ends[1] + 1)
    return tuple(dict.fromkeys(found))
