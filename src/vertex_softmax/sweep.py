"""Many instances, each in a process of its own: one line of a journal per finished instance, whatever happens.

Invariant: an answer counts only if the process that gave it ended with the exit code that belongs to the answer; it is
on the disk before the next instance starts; and it is used again only for the same bytes of model and property, the
same timeout, method and seed, and the same sources of Vertex. A crash, a kill or a lack of memory is one `error`.

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
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from vertex_softmax import __version__
from vertex_softmax.__main__ import PARENT
from vertex_softmax.cli_verify import CODES
from vertex_softmax.errors import InvalidValueError, VertexError
from vertex_softmax.experiments.journal import Journal, Trial, fingerprint
from vertex_softmax.files import write_whole
from vertex_softmax.sweep_instances import Instance

STATUSES = {"unsat": "verified", "sat": "falsified", "unknown": "unknown", "timeout": "timeout", "error": "error"}
"""The competition's word → the summary's."""
COMMAND = (sys.executable, "-P", "-m", "vertex_softmax", "verify")
"""-P: nothing in the folder where the sweep was started is imported."""
GRACE = 5.0
"""Seconds after its timeout until a process is killed."""
PATIENCE = 2.0
"""Seconds from asking processes to end until they are killed."""
ROOM = 65_536
"""Bytes that the disk has to take, or an error is the disk's and not the instance's."""
PAUSE = 0.02
"""Seconds between two looks at the processes."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How every instance is run."""

    method: str = "bab"
    seed: int = 0
    device: str = "cpu"
    jobs: int = 1

    def key(self, instance: Instance) -> str:
        """What the journal calls the instance."""
        names = [name.replace("\\", "\\\\").replace("|", "\\|") for name in (instance.model, instance.spec)]
        return "|".join((*names, repr(instance.timeout), self.method, str(self.seed)))

    @property
    def threads(self) -> int:
        """Of each process: the cores, shared."""
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, there // self.jobs)


@dataclasses.dataclass(frozen=True)
class Finished:
    """What came of one process: an answer as plain JSON with `status` and `reason`, and the counterexample of `sat`."""

    answer: Mapping[str, Any]
    counterexample: str | None = None


class Running(Protocol):
    """An instance under way."""

    def poll(self) -> Finished | None:
        """What came of it; None while it runs."""

    def stop(self, force: bool) -> bool:
        """Ask it to end, or with `force` end it; whether it has ended."""


Start: TypeAlias = Callable[[Instance, Settings, Path], Running]
"""Start an instance, with an empty folder for its files."""


@dataclasses.dataclass
class State:
    """Where a sweep stands; `lines` are the journal's, by key."""

    instances: Sequence[Instance]
    settings: Settings
    lines: dict[str, Trial] = dataclasses.field(default_factory=dict)
    running: dict[str, float] = dataclasses.field(default_factory=dict)
    """key → when it began, by time.perf_counter"""
    kept: int = 0
    again: int = 0
    """that were `error` before and are tried again"""
    changed: int = 0
    """whose model, property or counterexample is no longer the file that the journal speaks of"""
    others: bool = False
    """the journal is not empty"""
    interrupted: bool = False

    def line(self, instance: Instance) -> Trial | None:
        """The instance's answer, if it is there."""
        return self.lines.get(self.settings.key(instance))


Watch: TypeAlias = Callable[[State, Trial | None], None]
"""Told at every look, and with the line when an instance has finished."""


def source() -> str:
    """The fingerprint of everything that an answer hangs on."""
    return fingerprint("specs", "methods", "cli_verify.py")


def run(
    instances: Sequence[Instance],
    out: Path,
    settings: Settings,
    *,
    start: Start | None = None,
    stopping: Callable[[], bool] = lambda: False,
    watch: Watch = lambda _state, _line: None,
) -> State:
    """Run what the journal in `out` does not know; afterwards `out` has results.csv and summary.json of all answers.

    `stopping` is asked between two looks: then what runs is ended, what is finished is kept, and `interrupted` is set.
    """
    begin = start or Process
    state = State(instances, settings)
    with Journal(out / "journal.jsonl", source()) as journal:
        pending = deque(_unknown(state, journal, out))
        running: dict[str, _Task] = {}
        places = out / ".running"
        watch(state, None)
        try:
            _clear(places)
            while (pending or running) and not stopping():
                while pending and len(running) < settings.jobs:
                    instance = pending.popleft()
                    key = settings.key(instance)
                    files = _digests(instance)
                    state.running[key] = time.perf_counter()
                    process = _begun(begin, instance, settings, places / _name(instance, key))
                    running[key] = _Task(instance, files, process)
                for key, task in list(running.items()):
                    finished = task.process.poll()
                    if finished is not None:
                        if finished.answer["status"] == "error":
                            _check_room(places)
                        del running[key]
                        seconds = time.perf_counter() - state.running.pop(key)
                        line = _recorded(finished, task, settings, seconds, out)
                        journal.add([line])
                        state.lines[key] = line
                        _write(out / "results.csv", results(state))
                        watch(state, line)
                watch(state, None)
                if running:
                    time.sleep(PAUSE)
            state.interrupted = bool(pending or running)
        except BaseException:
            _end(running)
            state.interrupted = True
            with contextlib.suppress(VertexError):
                _save(state, out)
            raise
        _end(running)
        with contextlib.suppress(OSError):
            shutil.rmtree(places)
        state.running.clear()
        _save(state, out)
    return state


@dataclasses.dataclass(frozen=True)
class _Task:
    """An instance under way, and what its files were when it began."""

    instance: Instance
    files: dict[str, str]
    process: Running


def _unknown(state: State, journal: Journal, out: Path) -> list[Instance]:
    """What is to be run; the answers that are kept go to the state."""
    missing = []
    for instance in state.instances:
        key = state.settings.key(instance)
        line = journal.known.get(key)
        if line is None:
            pass
        elif line.get("status") == "error":
            state.again += 1
        elif line.get("files") != _digests(instance) or not _has_counterexample(line, out):
            state.changed += 1
        else:
            state.lines[key] = line
            continue
        missing.append(instance)
    state.kept, state.others = len(state.lines), journal.path.stat().st_size > 0
    return missing


def _has_counterexample(line: Trial, out: Path) -> bool:
    """A counterexample is as good as its file, which a crash of the machine may have taken."""
    place = out / str(line["counterexample"])
    return line["status"] != "sat" or (place.is_file() and place.stat().st_size > 0)


def _digests(instance: Instance) -> dict[str, str]:
    """SHA-256 of the files as they are on the disk; data outside an ONNX file does not count."""
    found = {}
    for what, path in (("model", instance.model_path), ("spec", instance.spec_path)):
        try:
            there = path.stat()
            found[what] = _digest(path, there.st_size, there.st_mtime_ns)
        except OSError as error:
            found[what] = f"not read: {error.strerror}"
    return found


@cache
def _digest(path: Path, _size: int, _time: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(instance: Instance, key: str) -> str:
    """Of the instance's files: readable, and unlike that of every other instance."""
    parts = [
        re.sub(r"(\.onnx|\.vnnlib)?(\.gz)?$", "", Path(text).name)[:40] for text in (instance.model, instance.spec)
    ]
    readable = re.sub(r"[^\w.-]", "_", "_".join(parts), flags=re.ASCII).lstrip(".-")
    return f"{readable}_{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:10]}"


def _recorded(finished: Finished, task: _Task, settings: Settings, seconds: float, out: Path) -> Trial:
    """The journal's line; a counterexample is in its own file before the line says so."""
    instance, key = task.instance, settings.key(task.instance)
    if _digests(instance) != task.files:
        finished = Finished({"status": "error", "reason": "the model or the property was changed while it was read"})
    place = None
    if finished.counterexample is not None:
        place = f"counterexamples/{_name(instance, key)}.txt"
        _write(out / place, finished.counterexample)
    return {
        **finished.answer,
        "key": key,
        "model": instance.model,
        "spec": instance.spec,
        "timeout": instance.timeout,
        **dataclasses.asdict(settings),
        "threads": settings.threads,
        "files": task.files,
        "counterexample": place,
        "run_time": seconds,
    }


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
    _write(out / "results.csv", results(state))
    _write(out / "summary.json", json.dumps(summary(state), indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode(errors="surrogateescape"))
    except OSError as error:
        raise InvalidValueError(
            f"{path} cannot be written ({error.strerror}); what is in the journal beside it is kept; "
            "make room, or choose another --out; the same command goes on from there"
        ) from error


def _clear(places: Path) -> None:
    """An empty folder; the journal's lock says that nobody else uses it."""
    try:
        if places.exists():
            shutil.rmtree(places)
        places.mkdir()
    except OSError as error:
        raise InvalidValueError(f"{places} cannot be written ({error.strerror}); choose another --out") from error
    _check_room(places)


def _check_room(places: Path) -> None:
    """Refuse to go on where there is no room for what a process writes: each would end in an error."""
    probe = places / "probe"
    _write(probe, " " * ROOM)
    probe.unlink()


def _begun(begin: Start, instance: Instance, settings: Settings, place: Path) -> Running:
    try:
        place.mkdir()
        return begin(instance, settings, place)
    except OSError as error:
        return _Never(f"no process could be started: {error.strerror}")


def _end(running: Mapping[str, _Task]) -> None:
    """Ask all to end, and end those that have not after a while."""
    alive = [task.process for task in running.values()]
    limit = time.perf_counter() + PATIENCE
    while (alive := [process for process in alive if not process.stop(force=False)]) and time.perf_counter() < limit:
        time.sleep(PAUSE)
    for process in alive:
        process.stop(force=True)


class _Never:
    """An instance that could not be started."""

    def __init__(self, why: str) -> None:
        self.why = why

    def poll(self) -> Finished:
        return Finished({"status": "error", "reason": self.why})

    def stop(self, force: bool) -> bool:  # noqa: ARG002
        return True


class Process:
    """An instance in a process and a session of its own, which neither outlives its time nor this process."""

    def __init__(
        self, instance: Instance, settings: Settings, place: Path, command: Sequence[str] | None = None
    ) -> None:
        self.place = place
        self.limit = instance.timeout + GRACE
        options = {
            "timeout": instance.timeout,
            "method": settings.method,
            "device": settings.device,
            "threads": settings.threads,
            "seed": settings.seed,
            "json": (place / "answer.json").absolute(),
            "counterexample": (place / "counterexample.txt").absolute(),
        }
        arguments = [str(instance.model_path), str(instance.spec_path)]
        arguments += [f"--{name}={value}" for name, value in options.items()]
        self.asked = False
        with (place / "stdout").open("wb") as stdout, (place / "stderr").open("wb") as stderr:
            self.began = time.perf_counter()
            self.process = subprocess.Popen(
                [*(COMMAND if command is None else command), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # an interrupt from the keyboard reaches the sweep alone
                env={**os.environ, PARENT: str(os.getpid())},
            )

    def poll(self) -> Finished | None:
        """The answer; `timeout` if it had to be killed; `error` if it cannot be believed."""
        code = self.process.poll()
        if code is None:
            if time.perf_counter() - self.began <= self.limit:
                return None
            self.stop(force=True)
            finished = Finished({"status": "timeout", "reason": f"it was killed {GRACE:g} s after its time was over"})
        else:
            finished = self._believed(code)
        shutil.rmtree(self.place, ignore_errors=True)
        return finished

    def stop(self, force: bool) -> bool:
        """SIGTERM once, or SIGKILL, for the whole session."""
        if self.process.poll() is None and (force or not self.asked):
            self.asked = True
            number = getattr(signal, "SIGKILL", signal.SIGTERM) if force else signal.SIGTERM
            with contextlib.suppress(ProcessLookupError):
                if hasattr(os, "killpg"):
                    os.killpg(self.process.pid, number)
                else:
                    self.process.kill()
            if force:
                with contextlib.suppress(subprocess.TimeoutExpired):  # the system holds it
                    self.process.wait(PATIENCE)
        return self.process.poll() is not None

    def _believed(self, code: int) -> Finished:
        """The answer if exit code and JSON agree, and a counterexample is there for `sat`."""
        try:
            answer = json.loads((self.place / "answer.json").read_bytes(), parse_constant=_refuse)
            status = answer["status"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return self._error(_ended(code) + " without an answer")
        if not isinstance(status, str) or CODES.get(status) != code:
            return self._error(f"{_ended(code)}, but its answer is {status!r}")
        answer.pop("counterexample", None)
        answer.setdefault("reason", "")
        if status != "sat":
            return Finished(answer)
        try:
            text = (self.place / "counterexample.txt").read_text(errors="surrogateescape")
        except OSError:
            text = ""
        text = text.rstrip()
        return Finished(answer, f"{text}\n") if text else self._error("it said sat, but gave no counterexample")

    def _error(self, reason: str) -> Finished:
        """With the end of what the process wrote to stderr."""
        said = ""
        with contextlib.suppress(OSError), (self.place / "stderr").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            said = re.sub(r"\x1b\[[0-9;]*m", "", file.read().decode(errors="replace")).strip()
        return Finished({"status": "error", "reason": reason + (f"; it said: {said}" if said else "")})


def _ended(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the process was ended by {name}" + (" (is there no memory left?)" if name == "SIGKILL" else "")


def _refuse(text: str) -> float:
    raise ValueError(text)
