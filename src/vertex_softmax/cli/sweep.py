"""`vertex sweep`: every instance of a list, each in its own process, and a table of what came out.

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

from vertex_softmax.cli import values as cli_values
from vertex_softmax.cli.common import errors, quiet, reporting
from vertex_softmax.cli.names import CASCADE, DEVICES, one_of
from vertex_softmax.foundation.errors import InvalidValueError

if TYPE_CHECKING:
    from vertex_softmax.runs.journal import Trial
    from vertex_softmax.runs.sweep.sweep import Begin, State, Watch

ROWS = 12
"""Finished instances that the live table shows, and at most so many that run."""
REDRAWN = 0.1
"""Seconds between two tables, at least."""
RUNNERS = ("local", "ray")
WIDTH = 120
"""Of the table where stdout is no terminal."""
STYLES = {"unsat": "green", "sat": "red", "unknown": "yellow", "timeout": "yellow", "error": "bold red"}


Folder = Annotated[
    Path | None,
    typer.Option(help="Where journal, results and counterexamples go.", show_default="out/sweep/FOLDER-OF-THE-CSV"),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Processes at a time.", show_default="1; with Ray as many as the cluster has room for"),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of each process; the same number gives the same bounds anywhere.",
        show_default="the cores shared by the jobs; with Ray 1",
    ),
]
Where = Annotated[
    str, typer.Option(autocompletion=one_of(("local", "ray")), help="Where they run: local, or ray, a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option(help="Of the Ray cluster: auto, or HOST:PORT.", show_default="a Ray of this machine is started"),
]


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
        typer.Option(help="GiB for each process; no more start than fit in what is free.", show_default="no limit"),
    ] = None,
    runner: Where = "local",
    address: Address = None,
    device: Annotated[str, typer.Option(autocompletion=one_of(DEVICES), help="cpu, or cuda.")] = "cpu",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.", show_default="all")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the attacks.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON on stdout.")] = False,
) -> None:
    """Verify every instance of a benchmark: counts per model here, and files in the competition's form.

    Paths in the CSV file are relative to its folder; model.onnx may be there as model.onnx.gz. Every finished instance
    is a line of OUT/journal.jsonl: after a kill, a crash or Ctrl-C the same command goes on where it was; only those
    that ended in an error are tried again. A process that dies (no memory left, a machine gone) is tried once more, and
    that is reported. OUT/results.csv is in VNN-COMP's form, OUT/summary.json has the table, OUT/counterexamples one
    file per falsified property.

    Exit codes: 0 all have an answer, 1 some ended in an error, 2 bad input, 130 and 143 if it was interrupted.

    Examples:
        vertex sweep benchmark/instances.csv --out out/benchmark
        vertex sweep benchmark/instances.csv --timeout 60 --jobs 8 --memory 4
        vertex sweep benchmark/instances.csv --runner ray
    """
    from vertex_softmax.runs.sweep import sweep as library
    from vertex_softmax.runs.sweep.instances import read_instances
    from vertex_softmax.runs.sweep.runner import Settings, check_memory

    cli_values.jobs("--jobs", jobs)
    cli_values.threads("--threads", threads)
    cli_values.gib("--memory", memory)
    cli_values.seed("--seed", seed)
    begin, here = _begin(runner, address), runner == "local"
    _check(method, device, here)
    settings = Settings(
        method, seed, device, jobs or (1 if here else None), threads or (0 if here else 1), memory, runner
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
    _tell(library.summary(state), len(chosen), place, as_json=as_json)


def _tell(found: dict[str, Any], count: int, place: Path, *, as_json: bool) -> None:
    """The summary, where it is, and what went wrong; exit code 1 if an instance ended in an error."""
    if as_json:
        typer.echo(json.dumps(found))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = max(console.width, WIDTH)
        console.print(_table(found))
    _say(f"written: {place / 'results.csv'}, summary.json, journal.jsonl")
    if again := found["retried"]:
        _say(f"{again} of {count} were run twice, as the first try died; the journal says how (retried)", "yellow")
    if failed := found["total"]["error"]:
        _say(f"{failed} of {count} ended in an error; the same command tries those again", "red")
        raise typer.Exit(1)


def _begin(runner: str, address: str | None) -> Begin | None:
    """What makes the runner that is asked for."""
    if runner not in RUNNERS:
        raise InvalidValueError(f"--runner is {runner!r}; choose one of {', '.join(RUNNERS)}")
    if runner == "local":
        if address is not None:
            raise InvalidValueError("--address is a Ray cluster's: give --runner ray too")
        return None
    from vertex_softmax.runs.sweep.ray import Ray, needed

    needed()
    return partial(Ray, address=address)


def _say(text: str, style: str | None = None) -> None:
    """On stderr, in one line and as it is: paths may hold what rich takes for markup. -q leaves only what is wrong."""
    if style is not None or not quiet():
        errors.print(Text(text, style or ""), highlight=False, soft_wrap=True)


def _check(method: str, device: str, here: bool) -> None:
    """Refuse now what every instance would refuse; `here`: they run on this machine, with its devices."""
    import torch

    if method not in CASCADE:
        raise InvalidValueError(f"--method is {method!r}; choose one of {', '.join(CASCADE)}")
    if device != "cpu" and not (device.startswith("cuda") and (not here or torch.cuda.is_available())):
        raise InvalidValueError(f"--device is {device!r}; cpu is there, and cuda where torch sees a GPU")


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, and end nothing by themselves: no line is cut while it is written."""
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
    """A live table where stderr is a terminal, else one line per finished instance."""
    view = _View(total, place)
    if not errors.is_terminal or quiet():
        yield view.plain
        return
    with Live(console=errors, auto_refresh=False, transient=True) as live:
        yield lambda state, line: view.live(live, state, line)


class _View:
    """What is shown while a sweep runs; nothing here takes longer where there are more instances."""

    def __init__(self, total: int, place: Path) -> None:
        self.total, self.place = total, place
        self.began = self.drawn = -math.inf
        self.done = 0
        self.fresh: deque[Trial] = deque(maxlen=ROWS)
        self.note = ""

    def plain(self, state: State, line: Trial | None) -> None:
        """One line per finished instance, and one at the beginning about what is kept."""
        self._look(state, line)
        if line is not None and not line.get("retrying"):
            bound, reason = _worst(line), f": {line['reason']}" if line["status"] == "error" else ""
            text = f"[{len(state.lines)}/{self.total}] {line['status']:<7} {line['run_time']:7.1f} s"
            _say(f"{text}  bound {bound:>9}  {line['model']} {line['spec']}{reason}")

    def live(self, live: Live, state: State, line: Trial | None) -> None:
        """The table again, some times a second."""
        self._look(state, line)
        if line is not None and line["status"] == "error" and not line.get("retrying"):
            _say(f"error: {line['model']} {line['spec']}: {line['reason']}", "red")
        now = time.perf_counter()
        last = len(state.lines) == self.total
        if last or now - self.drawn > (REDRAWN if line is not None else 5 * REDRAWN):
            self.drawn = now
            live.update(self.table(state), refresh=True)

    def table(self, state: State) -> Group:
        """The last finished instances, those that run, and a line of counts with the time left."""
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
        """In one line; the time left as if the rest took as long as what was run now."""
        done = len(state.lines)
        words = [f"{state.counts[status]} {status}" for status in STYLES]
        left = self.total - done
        text = f"{done} of {self.total}: {', '.join(words)}"
        if not self.done or not left:
            return text
        seconds = (time.perf_counter() - self.began) / self.done * left
        return f"{text}; about {_duration(seconds)} left"

    def _look(self, state: State, line: Trial | None) -> None:
        """What both views do: remember what is finished, and say what the runner has to say."""
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
        """Once: what the journal gives."""
        if self.began > 0:
            return
        self.began = time.perf_counter()
        parts = [f"{state.kept} of {self.total} are finished and kept"] * bool(state.kept)
        if state.again:
            parts.append(f"tried again, as it was an error: {state.again}")
        if state.changed:
            parts.append(f"run again, as a file or --memory has changed: {state.changed}")
        if not parts and state.others:
            parts.append("its answers are of other instances, another method, timeout or seed, or of other sources")
        if parts:
            _say(f"{self.place / 'journal.jsonl'}: {'; '.join(parts)}")


def _instance(model: str, spec: str) -> Text:
    return Text(f"{Path(model).name} {Path(spec).name}", overflow="ellipsis", no_wrap=True)


def _worst(line: Trial) -> str:
    """The lowest bound of an answer; above 0 everywhere is a proof."""
    bounds = [math.nan if x is None else x for case in line.get("bounds") or () for x in case]
    if not bounds:
        return "–"
    return "−∞" if any(map(math.isnan, bounds)) else f"{min(bounds):.4g}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _table(found: dict[str, Any]) -> Table:
    """Counts and mean seconds per model, and in all if there are several."""
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
