"""A sweep: many instances, each in a process of its own, and a journal with one line per finished instance.

Invariant: an answer is on the disk before the next instance starts. It is used again only for the same bytes of model
and property, the same timeout, method and seed, and the same sources of Vertex. A process that dies is started a second
time, which the answer's line and the summary report; if it dies again, the answer is `error`. The choice of the runner
changes only the times.

    instances = read_instances(Path("benchmark/instances.csv"))
    state = run(instances, Path("out"), Settings(jobs=2))
    summary(state)["total"]["verified"]
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import math
import re
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from vertex_softmax import __version__
from vertex_softmax.foundation.errors import InvalidValueError, VertexError
from vertex_softmax.foundation.files import regular, write_whole
from vertex_softmax.foundation.outputs import Outputs
from vertex_softmax.runs import sources
from vertex_softmax.runs.journal import Journal, Trial
from vertex_softmax.runs.sweep.instances import SweepInstance
from vertex_softmax.runs.sweep.runner import (
    PAUSE,
    Finished,
    Local,
    Runner,
    Settings,
    digests,
    external,
    failure,
    stamps,
)

STATUSES = {"unsat": "verified", "sat": "falsified", "unknown": "unknown", "timeout": "timeout", "error": "error"}
"""The statuses of VNN-COMP, and the words for them in the summary."""
KEPT = ("status", "run_time", "attempts", "files", "counterexample", "counterexample_sha256", "memory")
"""The fields of an answer that stay in memory; the journal has all of them."""
MOST_COUNTEREXAMPLE = 1 << 32
"""The largest file of a counterexample in bytes."""
RUNNING = ".running"
"""The folder in `out` for the files of running processes."""
INTERVAL = 1.0
"""The least number of seconds between two updates of results.csv."""
SHARE = 0.02
"""The largest share of the time that is spent on updating results.csv."""

Begin: TypeAlias = Callable[[Settings, Path], Runner]
"""Creates a runner; the path is an empty folder for its files."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A running instance."""

    instance: SweepInstance
    files: dict[str, str]
    """the SHA-256 of its files when it was started (`digests`)"""
    began: float
    """when it was started, on the clock of time.perf_counter"""
    first: str | None = None
    """why the first try died, if this is the second"""
    stamps: dict[str, object] = dataclasses.field(default_factory=dict)
    """the state of its files when it was started (`stamps`)"""


@dataclasses.dataclass
class State:
    """The state of a sweep; only its methods change it."""

    instances: Sequence[SweepInstance]
    settings: Settings
    lines: dict[str, Trial] = dataclasses.field(default_factory=dict)
    """the answers so far by key, reduced to the fields in KEPT"""
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    """how many answers have each status"""
    running: dict[str, Task] = dataclasses.field(default_factory=dict)
    """the running instances by key"""
    kept: int = 0
    """how many answers were taken from the journal"""
    again: int = 0
    """how many instances are tried again because they ended in an error before"""
    changed: int = 0
    """how many instances are run again because a file, the memory limit or the counterexample has changed"""
    others: bool = False
    """the journal is not empty"""
    note: str = ""
    """the runner's remark for the user"""
    interrupted: bool = False
    outputs: Outputs = dataclasses.field(default_factory=Outputs)
    """the files that the sweep may write"""

    def line(self, instance: SweepInstance) -> Trial | None:
        """The answer of an instance; None if it has none yet."""
        return self.lines.get(self.settings.key(instance))

    def add(self, key: str, line: Trial) -> None:
        """Add an answer."""
        self.lines[key] = line
        self.counts[line["status"]] += 1

    def begin(self, key: str, task: Task) -> None:
        """Note that an instance runs now."""
        self.running[key] = task

    def end(self, key: str) -> Task:
        """Note that an instance runs no more, and return what was running."""
        return self.running.pop(key)

    def remark(self, note: str) -> None:
        """Note the runner's remark for the user."""
        self.note = note

    def finish(self, *, interrupted: bool) -> None:
        """Note that nothing runs any more."""
        self.running.clear()
        self.interrupted = interrupted


Watch: TypeAlias = Callable[[State, Trial | None], None]
"""Called after each poll with None, and with the journal's line when an instance has finished or its first try died."""


def source() -> str:
    """The fingerprint of everything that an answer depends on."""
    return sources.of_answers()


# More than six parameters: a public signature, of which the last four are optional.
def run(
    instances: Sequence[SweepInstance],
    out: Path,
    settings: Settings,
    *,
    begin: Begin | None = None,
    stopping: Callable[[], bool] = lambda: False,
    watch: Watch = lambda _state, _line: None,
    listed: Path | None = None,
) -> State:
    """Run the instances that have no answer in the journal in `out`; write results.csv and summary.json of all answers.

    `begin`: creates the runner; None: `Local`. `stopping` is called between two polls; when it returns True, running
    processes are ended, finished answers are kept, and `interrupted` is set. `listed`: the file that lists the
    instances. Neither it nor a model or a property is ever overwritten.
    """
    outputs = _claimed(instances, out, listed)
    with Journal(out / "journal.jsonl", source(), _kept, outputs) as journal:
        state, pending = _resumed(State(instances, settings, outputs=outputs), journal, out)
        table = _Table(state, out / "results.csv")
        working_folder = out / RUNNING
        watch(state, None)
        runner: Runner | None = None
        try:
            if pending:
                _clear(working_folder)
                runner = (begin or Local)(settings, working_folder)
            while runner is not None and (pending or state.running) and not stopping():
                _start(state, runner, pending)
                _record_finished(state, runner, pending, journal, out, watch)
                table.renew()
                state.remark(runner.note)
                watch(state, None)
            interrupted = bool(pending or state.running)
        except BaseException:
            state.finish(interrupted=True)
            if runner is not None:
                runner.stop()
            with contextlib.suppress(VertexError):
                _save(state, out)
            raise
        if runner is not None:
            runner.stop()
            with contextlib.suppress(OSError):
                shutil.rmtree(working_folder)
        state.finish(interrupted=interrupted)
        _save(state, out)
    return state


def _claimed(instances: Sequence[SweepInstance], out: Path, listed: Path | None) -> Outputs:
    """The sweep's output files; raises if one of them would overwrite a file that the sweep reads."""
    models, specs = {each.model_path for each in instances}, {each.spec_path for each in instances}
    inputs = {*models, *specs, *(path for model in models for path in external(model)), *([listed] if listed else [])}
    outputs = Outputs(sorted(inputs))
    for name in ("journal.jsonl", "results.csv", "summary.json"):
        outputs.claim(out / name)
    emptied = (out / RUNNING).resolve()
    if within := next((path for path in sorted(inputs) if path.resolve().is_relative_to(emptied)), None):
        raise InvalidValueError(f"{within} is in {out / RUNNING}, which a sweep empties; choose another --out")
    return outputs


Pending: TypeAlias = deque[tuple[SweepInstance, str | None]]
"""The instances that are still to be run; with each, why its first try died, if it had one."""


def _resumed(state: State, journal: Journal, out: Path) -> tuple[State, Pending]:
    """The state with the answers of the journal that are still valid, and the instances that are to be run."""
    missing: Pending = deque()
    lines: dict[str, Trial] = {}
    again = changed = 0
    for instance in state.instances:
        key = state.settings.key(instance)
        line, first = journal.known.get(key), None
        if line is None:
            pass
        elif line["status"] == "error":
            again += 1
            first = line.get("retrying")
        elif line["files"] != digests(instance) or not _still_valid(line, state.settings, out):
            changed += 1
        else:
            lines[key] = line
            continue
        missing.append((instance, first))
    resumed = dataclasses.replace(
        state,
        lines=lines,
        counts=Counter(line["status"] for line in lines.values()),
        kept=len(lines),
        again=again,
        changed=changed,
        others=journal.path.stat().st_size > 0,
    )
    return resumed, missing


def _still_valid(line: Trial, settings: Settings, out: Path) -> bool:
    """Whether an answer of the journal can be used again.

    `unsat` always can; `sat` only if the file of its counterexample is intact; an undecided answer only if the memory
    limit is the same, since more memory might decide it.
    """
    if line["status"] in ("sat", "unsat"):
        return line["status"] == "unsat" or _is_intact(out, str(line["counterexample"]), line["counterexample_sha256"])
    return bool(line["memory"] == settings.memory)


def _is_intact(out: Path, name: str, digest: object) -> bool:
    """Whether a file inside `out` has this SHA-256; False for any other path that the journal may name."""
    with contextlib.suppress(OSError, ValueError):
        path = (out / name).resolve()
        if path.is_relative_to(out.resolve()) and 0 < path.stat().st_size <= MOST_COUNTEREXAMPLE:
            with regular(path) as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == digest
    return False


def _kept(line: Trial) -> Trial:
    """The fields of a line that stay in memory; raises if they are not valid. Equal texts share their memory."""
    found = {name: line.get(name) for name in KEPT}
    if found["status"] not in STATUSES:
        raise ValueError(f"the status {str(found['status'])[:80]!r} is unknown")
    for name, least in (("run_time", 0), ("attempts", 1), ("memory", 0)):
        if not _number(found[name], least) and not (found[name] is None and name != "run_time"):
            raise ValueError(f"{name!r} is not a number of at least {least}")
    if not isinstance(found["counterexample"], str | None):
        raise TypeError("'counterexample' is not the name of a file")
    found["status"] = sys.intern(found["status"])
    found["files"] = {str(what): sys.intern(str(text)) for what, text in dict(found["files"] or {}).items()}
    if line.get("retrying"):
        found["retrying"] = str(line["reason"])
    return found


def _number(x: Any, least: float) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and least <= x <= 1e12


def _start(state: State, runner: Runner, pending: Pending) -> None:
    """Start as many instances as the runner has room for."""
    while pending and runner.has_room():
        instance, first = pending.popleft()
        key = state.settings.key(instance)
        before = stamps(instance)
        files = digests(instance)
        state.begin(key, Task(instance, files, time.perf_counter(), first, before))
        runner.start(key, instance, files)


def _record_finished(state: State, runner: Runner, pending: Pending, journal: Journal, out: Path, watch: Watch) -> None:
    """Write the answers of all instances that have finished to the journal at once, even if one cannot be recorded."""
    lines: list[Trial] = []
    try:
        for key, finished in runner.poll(PAUSE):
            task = state.end(key)
            line = _recorded(finished, task, state, out)
            if finished.died and line["status"] == "error" and task.first is None:
                line["retrying"] = True
                # It comes last, when few others run: it may have died because many ran.
                pending.append((task.instance, line["reason"]))
            lines.append(line)
    finally:
        if lines:
            journal.add(lines)
        for line in lines:
            if not line.get("retrying"):
                state.add(line["key"], journal.known[line["key"]])
            watch(state, line)


def _name(instance: SweepInstance, key: str) -> str:
    """The name of the files about an instance: readable, and different for each instance."""
    parts = [
        re.sub(r"(\.onnx|\.vnnlib)?(\.gz)?$", "", Path(text).name)[:40] for text in (instance.model, instance.spec)
    ]
    readable = re.sub(r"[^\w.-]", "_", "_".join(parts), flags=re.ASCII).lstrip(".-")
    return f"{readable}_{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _recorded(finished: Finished, task: Task, state: State, out: Path) -> Trial:
    """The journal's line of a finished instance; its counterexample is written to a file of its own first."""
    instance, settings = task.instance, state.settings
    key = settings.key(instance)
    if stamps(instance) != task.stamps or digests(instance) != task.files:
        finished = failure("the model or the property was changed while it was read", finished.seconds)
    name = digest = None
    if finished.counterexample is not None:
        digest = hashlib.sha256(_bytes(finished.counterexample)).hexdigest()
        name = f"counterexamples/{_name(instance, key)}.txt"
        _write(out / name, finished.counterexample, state.outputs)
    return {
        **finished.answer,
        "key": key,
        "model": instance.model,
        "spec": instance.spec,
        "timeout": instance.timeout,
        **dataclasses.asdict(settings),
        "files": task.files,
        "counterexample": name,
        "counterexample_sha256": digest,
        "run_time": finished.seconds,
        "attempts": 1 if task.first is None else 2,
        **({} if task.first is None else {"retried": task.first}),
    }


class _Table:
    """results.csv, which is updated now and then: to write it after each instance would take too long."""

    def __init__(self, state: State, path: Path) -> None:
        self.state, self.path, self.due, self.rows = state, path, -math.inf, len(state.lines)

    def renew(self) -> None:
        """Write the file if there are new answers and the last update is long enough ago."""
        began = time.perf_counter()
        if len(self.state.lines) > self.rows and began >= self.due:
            self.rows = len(self.state.lines)
            _write(self.path, results(self.state), self.state.outputs)
            now = time.perf_counter()
            self.due = now + max(INTERVAL, (now - began) / SHARE)


def results(state: State) -> str:
    """The answers in VNN-COMP's format: benchmark,onnx,vnnlib,prepare_time,result,run_time, without a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for instance in state.instances:
        line = state.line(instance)
        if line is not None:
            row = (instance.benchmark, instance.model, instance.spec, 0, line["status"], f"{line['run_time']:.3f}")
            writer.writerow(row)
    return text.getvalue()


def summary(state: State) -> dict[str, Any]:
    """The counts of the statuses and the mean seconds, per model and in total, as plain JSON."""
    models: dict[str, list[Trial]] = {instance.model: [] for instance in state.instances}
    for instance in state.instances:
        line = state.line(instance)
        if line is not None:
            models[instance.model].append(line)
    every = [line for lines in models.values() for line in lines]
    return {
        "benchmark": state.instances[0].benchmark if state.instances else "",
        **dataclasses.asdict(state.settings),
        "version": __version__,
        "instances": len(state.instances),
        "finished": len(every),
        "retried": sum((line["attempts"] or 1) > 1 for line in every),
        "interrupted": state.interrupted,
        "total": _counts(every),
        "models": [{"model": model, **_counts(lines)} for model, lines in models.items()],
    }


def _counts(lines: Sequence[Trial]) -> dict[str, Any]:
    """The counts of the statuses and the mean seconds of some answers."""
    decided = [line["run_time"] for line in lines if line["status"] in ("unsat", "sat")]
    every = [line["run_time"] for line in lines]
    return {
        **{word: sum(line["status"] == status for line in lines) for status, word in STATUSES.items()},
        "mean_seconds": math.fsum(every) / len(every) if every else None,
        "mean_seconds_decided": math.fsum(decided) / len(decided) if decided else None,
    }


def _save(state: State, out: Path) -> None:
    """Write results.csv and summary.json."""
    _write(out / "results.csv", results(state), state.outputs)
    _write(out / "summary.json", json.dumps(summary(state), indent=1) + "\n", state.outputs)


def _write(path: Path, text: str, outputs: Outputs) -> None:
    try:
        write_whole(path, _bytes(text), outputs)
    except OSError as error:
        raise InvalidValueError(
            f"{path} cannot be written ({error.strerror}); the answers are kept in the journal beside it; "
            "make room, or choose another --out; the same command goes on from there"
        ) from error


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _clear(folder: Path) -> None:
    """Make the folder, or empty it; the lock of the journal guarantees that no other sweep uses it."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
    except OSError as error:
        raise InvalidValueError(f"{folder} cannot be written ({error.strerror}); choose another --out") from error
