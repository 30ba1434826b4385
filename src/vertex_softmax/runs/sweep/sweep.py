"""Many instances, each in a process of its own: one line of a journal per finished instance, whatever happens.

Invariant: an answer is on the disk before the next instance starts, and it is used again only for the same bytes of
model and property, the same timeout, method and seed, and the same sources of Vertex. A process that dies is tried once
more, and both the answer's line and the summary say so; what dies twice is one `error`. Where instances run (`runner`)
changes nothing but times.

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
"""The competition's word → the summary's."""
KEPT = ("status", "run_time", "attempts", "files", "counterexample", "counterexample_sha256", "memory")
"""What of an answer stays in memory; the journal has the rest."""
MOST_COUNTEREXAMPLE = 1 << 32
"""Bytes of a counterexample's file."""
RUNNING = ".running"
"""The folder in `out` where processes have their files while they run."""
INTERVAL = 1.0
SHARE = 0.02
"""results.csv is written again after so many seconds, or later where writing takes more than this share of the time."""

Begin: TypeAlias = Callable[[Settings, Path], Runner]
"""Make a runner, with an empty folder for its files."""


@dataclasses.dataclass(frozen=True)
class Task:
    """An instance under way: what its files were when it began, and what became of its first try if this is another."""

    instance: SweepInstance
    files: dict[str, str]
    began: float
    """by time.perf_counter"""
    first: str | None = None
    stamps: dict[str, object] = dataclasses.field(default_factory=dict)
    """of its files, when it began"""


@dataclasses.dataclass
class State:
    """Where a sweep stands; `lines` are what is kept of the journal's, by key."""

    instances: Sequence[SweepInstance]
    settings: Settings
    lines: dict[str, Trial] = dataclasses.field(default_factory=dict)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    """of the lines' statuses"""
    running: dict[str, Task] = dataclasses.field(default_factory=dict)
    kept: int = 0
    again: int = 0
    """that were `error` before and are tried again"""
    changed: int = 0
    """whose model, property, memory or counterexample is no longer what the journal speaks of"""
    others: bool = False
    """the journal is not empty"""
    note: str = ""
    """the runner's"""
    interrupted: bool = False
    outputs: Outputs = dataclasses.field(default_factory=Outputs)
    """what may be written where"""

    def line(self, instance: SweepInstance) -> Trial | None:
        """The instance's answer, if it is there."""
        return self.lines.get(self.settings.key(instance))

    def add(self, key: str, line: Trial) -> None:
        """One more answer."""
        self.lines[key] = line
        self.counts[line["status"]] += 1


Watch: TypeAlias = Callable[[State, Trial | None], None]
"""Told at every look, and with the journal's line when an instance has finished, or its first try has died."""


def source() -> str:
    """The fingerprint of everything that an answer hangs on."""
    return sources.of_answers()


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
    """Run what the journal in `out` does not know; afterwards `out` has results.csv and summary.json of all answers.

    `stopping` is asked between two looks: then what runs is ended, what is finished is kept, and `interrupted` is set.
    `listed`: the file that names the instances. Nothing is written onto it, onto a model or onto a property.
    """
    outputs = _claimed(instances, out, listed)
    state = State(instances, settings, outputs=outputs)
    with Journal(out / "journal.jsonl", source(), _kept, outputs) as journal:
        pending = _unknown(state, journal, out)
        table = _Table(state, out / "results.csv")
        places = out / RUNNING
        watch(state, None)
        runner: Runner | None = None
        try:
            if pending:
                _clear(places)
                runner = (begin or Local)(settings, places)
            while runner is not None and (pending or state.running) and not stopping():
                _start(state, runner, pending)
                _look(state, runner, pending, journal, out, watch)
                table.renew()
                state.note = runner.note
                watch(state, None)
            state.interrupted = bool(pending or state.running)
        except BaseException:
            state.interrupted = True
            if runner is not None:
                runner.stop()
            with contextlib.suppress(VertexError):
                _save(state, out)
            raise
        if runner is not None:
            runner.stop()
            with contextlib.suppress(OSError):
                shutil.rmtree(places)
        state.running.clear()
        _save(state, out)
    return state


def _claimed(instances: Sequence[SweepInstance], out: Path, listed: Path | None) -> Outputs:
    """The sweep's files, refused now where they would take the place of what it reads."""
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
"""What is to be run, and what became of the first try if there was one."""


def _unknown(state: State, journal: Journal, out: Path) -> Pending:
    """What is to be run; the answers that are kept go to the state."""
    missing: Pending = deque()
    for instance in state.instances:
        key = state.settings.key(instance)
        line, first = journal.known.get(key), None
        if line is None:
            pass
        elif line["status"] == "error":
            state.again += 1
            first = line.get("retrying")
        elif line["files"] != digests(instance) or not _stands(line, state.settings, out):
            state.changed += 1
        else:
            state.add(key, line)
            continue
        missing.append((instance, first))
    state.kept, state.others = len(state.lines), journal.path.stat().st_size > 0
    return missing


def _stands(line: Trial, settings: Settings, out: Path) -> bool:
    """A counterexample is as good as its file, which a crash of the machine may have taken.

    What was decided is decided; but what is not might be with another share of memory.
    """
    if line["status"] in ("sat", "unsat"):
        return line["status"] == "unsat" or _is_there(out, str(line["counterexample"]), line["counterexample_sha256"])
    return bool(line["memory"] == settings.memory)


def _is_there(out: Path, name: str, digest: object) -> bool:
    """A file of `out` that has what was written when the journal's line was, whatever the journal names."""
    with contextlib.suppress(OSError, ValueError):
        place = (out / name).resolve()
        if place.is_relative_to(out.resolve()) and 0 < place.stat().st_size <= MOST_COUNTEREXAMPLE:
            with regular(place) as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == digest
    return False


def _kept(line: Trial) -> Trial:
    """What stays in memory of a line, if it is one; texts that are there many times are there once."""
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
    """As many as there is room for."""
    while pending and runner.has_room():
        instance, first = pending.popleft()
        key = state.settings.key(instance)
        before = stamps(instance)
        files = digests(instance)
        state.running[key] = Task(instance, files, time.perf_counter(), first, before)
        runner.start(key, instance, files)


def _look(state: State, runner: Runner, pending: Pending, journal: Journal, out: Path, watch: Watch) -> None:
    """All that has finished meanwhile goes to the journal, in one write; also if one of them cannot be recorded."""
    lines: list[Trial] = []
    try:
        for key, finished in runner.poll(PAUSE):
            task = state.running.pop(key)
            line = _recorded(finished, task, state, out)
            if finished.died and line["status"] == "error" and task.first is None:
                line["retrying"] = True
                pending.append(
                    (task.instance, line["reason"])
                )  # after all that waits: what died of a crowd is alone then
            lines.append(line)
    finally:
        if lines:
            journal.add(lines)
        for line in lines:
            if not line.get("retrying"):
                state.add(line["key"], journal.known[line["key"]])
            watch(state, line)


def _name(instance: SweepInstance, key: str) -> str:
    """Of the instance's files: readable, and unlike that of every other instance."""
    parts = [
        re.sub(r"(\.onnx|\.vnnlib)?(\.gz)?$", "", Path(text).name)[:40] for text in (instance.model, instance.spec)
    ]
    readable = re.sub(r"[^\w.-]", "_", "_".join(parts), flags=re.ASCII).lstrip(".-")
    return f"{readable}_{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _recorded(finished: Finished, task: Task, state: State, out: Path) -> Trial:
    """The journal's line; a counterexample is in its own file before the line says so."""
    instance, settings = task.instance, state.settings
    key = settings.key(instance)
    if stamps(instance) != task.stamps or digests(instance) != task.files:
        finished = failure("the model or the property was changed while it was read", finished.seconds)
    place = digest = None
    if finished.counterexample is not None:
        digest = hashlib.sha256(_bytes(finished.counterexample)).hexdigest()
        place = f"counterexamples/{_name(instance, key)}.txt"
        _write(out / place, finished.counterexample, state.outputs)
    return {
        **finished.answer,
        "key": key,
        "model": instance.model,
        "spec": instance.spec,
        "timeout": instance.timeout,
        **dataclasses.asdict(settings),
        "files": task.files,
        "counterexample": place,
        "counterexample_sha256": digest,
        "run_time": finished.seconds,
        "attempts": 1 if task.first is None else 2,
        **({} if task.first is None else {"retried": task.first}),
    }


class _Table:
    """results.csv, written again now and then: after each instance would take more time than many instances do."""

    def __init__(self, state: State, path: Path) -> None:
        self.state, self.path, self.due, self.rows = state, path, -math.inf, len(state.lines)

    def renew(self) -> None:
        """Write it if there is something new and it is time to."""
        began = time.perf_counter()
        if len(self.state.lines) > self.rows and began >= self.due:
            self.rows = len(self.state.lines)
            _write(self.path, results(self.state), self.state.outputs)
            now = time.perf_counter()
            self.due = now + max(INTERVAL, (now - began) / SHARE)


def results(state: State) -> str:
    """What is finished as VNN-COMP writes it: benchmark,onnx,vnnlib,prepare_time,result,run_time, and no header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for instance in state.instances:
        line = state.line(instance)
        if line is not None:
            row = (instance.benchmark, instance.model, instance.spec, 0, line["status"], f"{line['run_time']:.3f}")
            writer.writerow(row)
    return text.getvalue()


def summary(state: State) -> dict[str, Any]:
    """Counts and mean seconds per model and in all, as plain JSON."""
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
    decided = [line["run_time"] for line in lines if line["status"] in ("unsat", "sat")]
    every = [line["run_time"] for line in lines]
    return {
        **{word: sum(line["status"] == status for line in lines) for status, word in STATUSES.items()},
        "mean_seconds": math.fsum(every) / len(every) if every else None,
        "mean_seconds_decided": math.fsum(decided) / len(decided) if decided else None,
    }


def _save(state: State, out: Path) -> None:
    _write(out / "results.csv", results(state), state.outputs)
    _write(out / "summary.json", json.dumps(summary(state), indent=1) + "\n", state.outputs)


def _write(path: Path, text: str, outputs: Outputs) -> None:
    try:
        write_whole(path, _bytes(text), outputs)
    except OSError as error:
        raise InvalidValueError(
            f"{path} cannot be written ({error.strerror}); what is in the journal beside it is kept; "
            "make room, or choose another --out; the same command goes on from there"
        ) from error


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _clear(places: Path) -> None:
    """An empty folder; the journal's lock says that nobody else uses it."""
    try:
        if places.exists():
            shutil.rmtree(places)
        places.mkdir()
    except OSError as error:
        raise InvalidValueError(f"{places} cannot be written ({error.strerror}); choose another --out") from error
