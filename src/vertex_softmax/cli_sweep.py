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
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vertex_softmax.cli_common import errors, quiet, reporting
from vertex_softmax.cli_names import CASCADE, DEVICES, one_of
from vertex_softmax.errors import InvalidValueError

if TYPE_CHECKING:
    from vertex_softmax.experiments.journal import Trial
    from vertex_softmax.sweep import State, Watch

ROWS = 12
"""Finished instances that the live table shows."""
WIDTH = 120
"""Of the table where stdout is no terminal."""
STYLES = {"unsat": "green", "sat": "red", "unknown": "yellow", "timeout": "yellow", "error": "bold red"}


@reporting
def sweep(
    instances: Annotated[Path, typer.Argument(help="CSV file with lines model,spec,timeout.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(help="Where journal, results and counterexamples go.", show_default="out/sweep/FOLDER-OF-THE-CSV"),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for each instance.", show_default="those in the CSV file")
    ] = None,
    method: Annotated[
        str, typer.Option(autocompletion=one_of(CASCADE), help="As for verify: attack, crown, joint, bab, ...")
    ] = "bab",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time; they share the cores.")] = 1,
    device: Annotated[str, typer.Option(autocompletion=one_of(DEVICES), help="cpu, or cuda.")] = "cpu",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.", show_default="all")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the attacks.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON on stdout.")] = False,
) -> None:
    """Verify every instance of a benchmark: counts per model here, and files in the competition's form.

    Paths in the CSV file are relative to its folder; model.onnx may be there as model.onnx.gz. Every finished instance
    is a line of OUT/journal.jsonl: after a kill, a crash or Ctrl-C the same command goes on where it was; only those
    that ended in an error are tried again. OUT/results.csv is in VNN-COMP's form, OUT/summary.json has the table,
    OUT/counterexamples one file per falsified property.

    Exit codes: 0 all have an answer, 1 some ended in an error, 2 bad input, 130 and 143 if it was interrupted.

    Examples:
        vertex sweep benchmark/instances.csv --out out/benchmark
        vertex sweep benchmark/instances.csv --timeout 60 --jobs 2 --limit 4
    """
    from vertex_softmax import sweep as library
    from vertex_softmax.sweep_instances import read_instances

    _check(method, device)
    chosen = read_instances(instances, timeout)[:limit]
    place = Path("out/sweep") / chosen[0].benchmark if out is None else out
    settings = library.Settings(method, seed, device, jobs)
    with _signals() as caught, _shown(len(chosen), place) as watch:
        state = library.run(chosen, place, settings, stopping=lambda: bool(caught), watch=watch)
    if state.interrupted:
        done = f"{len(state.lines)} of {len(chosen)} instances are finished and kept in {place}"
        _say(f"interrupted: {done}; the same command goes on from there", "yellow")
        raise typer.Exit(128 + caught[0])
    found = library.summary(state)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = max(console.width, WIDTH)
        console.print(_table(found))
    _say(f"written: {place / 'results.csv'}, summary.json, journal.jsonl")
    if failed := found["total"]["error"]:
        _say(f"{failed} of {len(chosen)} ended in an error; the same command tries those again", "red")
        raise typer.Exit(1)


def _say(text: str, style: str | None = None) -> None:
    """On stderr, in one line and as it is: paths may hold what rich takes for markup. -q leaves only what is wrong."""
    if style is not None or not quiet():
        errors.print(Text(text, style or ""), highlight=False, soft_wrap=True)


def _check(method: str, device: str) -> None:
    """Refuse now what every instance would refuse."""
    import torch

    if method not in CASCADE:
        raise InvalidValueError(f"--method is {method!r}; choose one of {', '.join(CASCADE)}")
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
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
    """What is shown while a sweep runs."""

    def __init__(self, total: int, place: Path) -> None:
        self.total, self.place = total, place
        self.began = self.drawn = -math.inf
        self.fresh: list[Trial] = []

    def plain(self, state: State, line: Trial | None) -> None:
        """One line per finished instance, and one at the beginning about what is kept."""
        self._begin(state)
        if line is not None:
            self.fresh.append(line)
            bound, reason = _worst(line), f": {line['reason']}" if line["status"] == "error" else ""
            text = f"[{len(state.lines)}/{self.total}] {line['status']:<7} {line['run_time']:7.1f} s"
            _say(f"{text}  bound {bound:>9}  {line['model']} {line['spec']}{reason}")

    def live(self, live: Live, state: State, line: Trial | None) -> None:
        """The table again, some times a second."""
        self._begin(state)
        if line is not None:
            self.fresh.append(line)
            if line["status"] == "error":
                _say(f"error: {line['model']} {line['spec']}: {line['reason']}", "red")
        now = time.perf_counter()
        if line is not None or now - self.drawn > 0.5:
            self.drawn = now
            live.update(self.table(state), refresh=True)

    def table(self, state: State) -> Group:
        """The last finished instances, those that run, and a line of counts with the time left."""
        table = Table("instance", "status", title=f"sweep of {self.total} instances")
        table.add_column("seconds", justify="right")
        table.add_column("worst bound", justify="right")
        for line in self.fresh[-ROWS:]:
            status = Text(line["status"], STYLES.get(line["status"], ""))
            table.add_row(_instance(line["model"], line["spec"]), status, f"{line['run_time']:.1f}", _worst(line))
        now = time.perf_counter()
        for instance in state.instances:
            began = state.running.get(state.settings.key(instance))
            if began is not None:
                table.add_row(_instance(instance.model, instance.spec), "runs", f"{now - began:.1f}", "")
        return Group(table, Text(self.counts(state)))

    def counts(self, state: State) -> str:
        """In one line; the time left as if the rest took as long as what was run now."""
        found = [line["status"] for line in state.lines.values()]
        words = [f"{found.count(status)} {status}" for status in STYLES]
        left = self.total - len(found)
        text = f"{len(found)} of {self.total}: {', '.join(words)}"
        if not self.fresh or not left:
            return text
        seconds = (time.perf_counter() - self.began) / len(self.fresh) * left
        return f"{text}; about {_duration(seconds)} left"

    def _begin(self, state: State) -> None:
        """Once: what the journal gives."""
        if self.began > 0:
            return
        self.began = time.perf_counter()
        parts = [f"{state.kept} of {self.total} are finished and kept"] * bool(state.kept)
        if state.again:
            parts.append(f"tried again, as it was an error: {state.again}")
        if state.changed:
            parts.append(f"run again, as a file has changed: {state.changed}")
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
