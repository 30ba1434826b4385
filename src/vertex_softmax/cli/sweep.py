"""`vertex sweep`: verify every instance of a list, each in its own process, and show a table of the answers.

Exit codes: 0 every instance has an answer that is not `error`; 1 some have not; 2 bad input or a folder that cannot be
written; 130 interrupted, 143 terminated: the same command goes on from there.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vertex_softmax.cli import values
from vertex_softmax.cli.common import errors, quiet, reporting
from vertex_softmax.cli.names import CASCADE, DEVICES, one_of
from vertex_softmax.foundation.errors import InvalidValueError

if TYPE_CHECKING:
    from vertex_softmax.runs.journal import Trial
    from vertex_softmax.runs.sweep.sweep import Begin, State, Watch

ROWS = 12
"""The most finished and the most running instances that the live table shows."""
REDRAWN = 0.1
"""The least number of seconds between two updates of the live table."""
RUNNERS = ("local", "ray")
WIDTH = 120
"""The width of the table if stdout is not a terminal."""
STYLES = {"unsat": "green", "sat": "red", "unknown": "yellow", "timeout": "yellow", "error": "bold red"}


Folder = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the journal, results and counterexamples.", show_default="out/sweep/FOLDER-OF-THE-CSV"
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, help="How many processes run at a time.", show_default="1; with Ray as many as the cluster has room for"
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads of each process; the same number gives the same bounds on every machine.",
        show_default="the cores divided by the jobs; with Ray 1",
    ),
]
RunnerName = Annotated[
    str,
    typer.Option(
        autocompletion=one_of(("local", "ray")), help="Where the instances run: local, or ray for a Ray cluster."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of the Ray cluster: auto, or HOST:PORT.", show_default="a Ray is started on this machine"
    ),
]


# More than six parameters: the arguments and options of the command.
@reporting
def sweep(
    instances: Annotated[Path, typer.Argument(help="CSV file with lines model,spec,timeout.", show_default=False)],
    out: Folder = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for each instance.", show_default="those in the CSV file")
    ] = None,
    method: Annotated[
        str, typer.Option(autocompletion=one_of(CASCADE), help="As for verify: attack, crown, joint, bab, ...")
    ] = "bab",
    jobs: Jobs = None,
    threads: Threads = None,
    memory: Annotated[
        float | None,
        typer.Option(
            help="Memory limit of each process in GiB, as for verify; only as many start as fit in the free memory.",
            show_default="no limit",
        ),
    ] = None,
    runner: RunnerName = "local",
    address: Address = None,
    device: Annotated[str, typer.Option(autocompletion=one_of(DEVICES), help="cpu or cuda.")] = "cpu",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Run only this many instances, from the first.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the attacks.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Verify every instance of a benchmark: a table of counts per model, and files in the format of VNN-COMP.

    Paths in the CSV file are relative to its folder; model.onnx may be stored as model.onnx.gz. Every finished instance
    is a line of OUT/journal.jsonl: after a crash or Ctrl-C the same command continues; only instances that ended in an
    error are tried again. A process that dies (out of memory, a lost machine) is started once more, which is reported.
    OUT/results.csv is in the format of VNN-COMP, OUT/summary.json has the table, and OUT/counterexamples has one file
    per falsified property.

    Exit codes: 0 all have an answer, 1 some ended in an error, 2 bad input, 130 and 143 if it was interrupted.

    Examples:
        vertex sweep benchmark/instances.csv --out out/benchmark
        vertex sweep benchmark/instances.csv --timeout 60 --jobs 8 --memory 4
        vertex sweep benchmark/instances.csv --runner ray
    """
    from vertex_softmax.runs.sweep import sweep as library
    from vertex_softmax.runs.sweep.instances import read_instances
    from vertex_softmax.runs.sweep.runner import Settings, check_memory

    values.jobs("--jobs", jobs)
    values.threads("--threads", threads)
    values.gib("--memory", memory)
    values.seed("--seed", seed)
    begin, here = _begin(runner, address), runner == "local"
    _check(method, device, here)
    settings = Settings(
        method=method,
        seed=seed,
        device=device,
        jobs=jobs or (1 if here else None),
        threads=threads or (0 if here else 1),
        memory=memory,
        runner=runner,
    )
    if here:
        check_memory(settings)
    chosen = read_instances(instances, timeout)[:limit]
    place = Path("out/sweep") / chosen[0].benchmark if out is None else out
    with _signals() as caught, _shown(len(chosen), place) as watch:
        state = library.run(
            chosen, place, settings, begin=begin, stopping=lambda: bool(caught), watch=watch, listed=instances
        )
    if state.interrupted:
        done = f"{len(state.lines)} of {len(chosen)} instances are finished and kept in {place}"
        _say(f"interrupted: {done}; the same command goes on from there", "yellow")
        raise typer.Exit(128 + caught[0])
    _print_summary(library.summary(state), len(chosen), place, as_json=as_json)


def _print_summary(found: dict[str, Any], count: int, place: Path, *, as_json: bool) -> None:
    """Print the summary, the files written and what went wrong; exit code 1 if an instance ended in an error."""
    if as_json:
        typer.echo(json.dumps(found))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = max(console.width, WIDTH)
        console.print(_table(found))
    _say(f"written: {place / 'results.csv'}, summary.json, journal.jsonl")
    if again := found["retried"]:
        _say(f"{again} of {count} were run twice, as the first try died; the journal says why (retried)", "yellow")
    if failed := found["total"]["error"]:
        _say(f"{failed} of {count} ended in an error; the same command tries those again", "red")
        raise typer.Exit(1)


def _begin(runner: str, address: str | None) -> Begin | None:
    """The function that creates the runner of this name; None for the local one."""
    if runner not in RUNNERS:
        raise InvalidValueError(f"--runner is {runner!r}; choose one of {', '.join(RUNNERS)}")
    if runner == "local":
        if address is not None:
            raise InvalidValueError("--address is for a Ray cluster: give --runner ray, too")
        return None
    from vertex_softmax.runs.sweep.ray import Ray, needed

    needed()
    return partial(Ray, address=address)


def _say(text: str, style: str | None = None) -> None:
    """Print one line on stderr, without interpreting markup; -q suppresses it unless it has a style (a warning)."""
    if style is not None or not quiet():
        errors.print(Text(text, style or ""), highlight=False, soft_wrap=True)


def _check(method: str, device: str, here: bool) -> None:
    """Raise for options that every instance would refuse; `here`: the instances run on this machine's devices."""
    if method not in CASCADE:
        raise InvalidValueError(f"--method is {method!r}; choose one of {', '.join(CASCADE)}")
    if device != "cpu" and not (device.startswith("cuda") and (not here or _finds_gpu())):
        raise InvalidValueError(
            f"--device is {device!r}; cpu is always available, and cuda if torch finds a GPU on this machine"
        )


def _finds_gpu() -> bool:
    """Whether torch finds a GPU; torch is imported for this question only."""
    import torch

    return torch.cuda.is_available()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list instead of ending the process, so that no line is written incompletely."""
    caught: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        caught.append(number)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, note)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _shown(total: int, place: Path) -> Iterator[Watch]:
    """A live table if stderr is a terminal, else one line per finished instance."""
    view = _View(total, place)
    if not errors.is_terminal or quiet():
        yield view.plain
        return
    with Live(console=errors, auto_refresh=False, transient=True) as live:
        yield lambda state, line: view.live(live, state, line)


class _View:
    """The progress of a sweep on stderr; the cost of an update does not grow with the number of instances."""

    def __init__(self, total: int, place: Path) -> None:
        self.total, self.place = total, place
        self.began = self.drawn = -math.inf
        self.done = 0
        self.fresh: deque[Trial] = deque(maxlen=ROWS)
        self.note = ""

    def plain(self, state: State, line: Trial | None) -> None:
        """Print one line per finished instance, and one at the beginning about the answers that are kept."""
        self._note(state, line)
        if line is not None and not line.get("retrying"):
            bound, reason = _worst(line), f": {line['reason']}" if line["status"] == "error" else ""
            text = f"[{len(state.lines)}/{self.total}] {line['status']:<7} {line['run_time']:7.1f} s"
            _say(f"{text}  bound {bound:>9}  {line['model']} {line['spec']}{reason}")

    def live(self, live: Live, state: State, line: Trial | None) -> None:
        """Update the live table, a few times a second."""
        self._note(state, line)
        if line is not None and line["status"] == "error" and not line.get("retrying"):
            _say(f"error: {line['model']} {line['spec']}: {line['reason']}", "red")
        now = time.perf_counter()
        last = len(state.lines) == self.total
        if last or now - self.drawn > (REDRAWN if line is not None else 5 * REDRAWN):
            self.drawn = now
            live.update(self.table(state), refresh=True)

    def table(self, state: State) -> Group:
        """The last finished instances, the running ones, and a line of counts with the time left."""
        table = Table("instance", "status", title=f"sweep of {self.total} instances")
        table.add_column("seconds", justify="right")
        table.add_column("worst bound", justify="right")
        for line in self.fresh:
            status = Text(line["status"], STYLES.get(line["status"], ""))
            table.add_row(_instance(line["model"], line["spec"]), status, f"{line['run_time']:.1f}", _worst(line))
        now = time.perf_counter()
        for task in islice(state.running.values(), ROWS):
            name = _instance(task.instance.model, task.instance.spec)
            table.add_row(name, "runs", f"{now - task.began:.1f}", "")
        if len(state.running) > ROWS:
            table.add_row(f"and {len(state.running) - ROWS} more", "run", "", "")
        return Group(table, Text(self.counts(state)))

    def counts(self, state: State) -> str:
        """The counts of statuses on one line; the time left is estimated from the instances of this run."""
        done = len(state.lines)
        words = [f"{state.counts[status]} {status}" for status in STYLES]
        left = self.total - done
        text = f"{done} of {self.total}: {', '.join(words)}"
        if not self.done or not left:
            return text
        seconds = (time.perf_counter() - self.began) / self.done * left
        return f"{text}; about {_duration(seconds)} left"

    def _note(self, state: State, line: Trial | None) -> None:
        """What both views do: remember finished instances, and print the runner's remarks and retries."""
        self._begin(state)
        if state.note != self.note:
            self.note = state.note
            _say(state.note)
        if line is None:
            return
        if line.get("retrying"):
            _say(f"tried again: {line['model']} {line['spec']}: {line['reason']}", "yellow")
            return
        self.done += 1
        self.fresh.append(line)

    def _begin(self, state: State) -> None:
        """Print once what is taken from the journal."""
        if self.began > 0:
            return
        self.began = time.perf_counter()
        parts = [f"{state.kept} of {self.total} are finished and kept"] * bool(state.kept)
        if state.again:
            parts.append(f"tried again, as it was an error: {state.again}")
        if state.changed:
            parts.append(f"run again, as a file or --memory has changed: {state.changed}")
        if not parts and state.others:
            parts.append(
                "its answers are not used: they are for other instances, another method, timeout or seed, or were "
                "computed by other sources of Vertex"
            )
        if parts:
            _say(f"{self.place / 'journal.jsonl'}: {'; '.join(parts)}")


def _instance(model: str, spec: str) -> Text:
    return Text(f"{Path(model).name} {Path(spec).name}", overflow="ellipsis", no_wrap=True)


def _worst(line: Trial) -> str:
    """The lowest bound of an answer as text; a bound above 0 for every case proves the property."""
    bounds = [math.nan if x is None else x for case in line.get("bounds") or () for x in case]
    if not bounds:
        return "–"
    return "−∞" if any(map(math.isnan, bounds)) else f"{min(bounds):.4g}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _table(found: dict[str, Any]) -> Table:
    """Counts and mean seconds per model, and in total if there are several models."""
    words = [word for word in found["total"] if not word.startswith("mean")]
    title = f"{found['benchmark']}: {found['instances']} instances, method {found['method']}"
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("model", overflow="fold")
    for word in (*words, "mean s", "decided s"):
        table.add_column(word, justify="right", no_wrap=True)
    rows = list(found["models"])
    if len(rows) > 1:
        rows.append({"model": "all", **found["total"]})
    for row in rows:
        means = [row[name] for name in ("mean_seconds", "mean_seconds_decided")]
        cells = [*(str(row[word]) for word in words), *("–" if mean is None else f"{mean:.2f}" for mean in means)]
        table.add_row(Text(row["model"]), *cells)
    return table
