"""Runners, which run the instances of a sweep: the protocol, and the runner for processes on this machine.

Invariant: an answer counts only if the process that gave it ended with the exit code of that answer. A process outlives
neither its time limit nor the sweep. A process that died without an answer (killed, out of memory, its machine gone) is
reported as such, and told apart from an error that a second try would give again.

    runner = Local(Settings(jobs=2), Path("out/.running"))
    runner.start("first", instance, digests(instance))
    [("first", finished)] = runner.poll(wait=1.0)
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import regular, up_to, write_whole
from vertex_softmax.graph.from_onnx.parts import LIMIT, external_files
from vertex_softmax.runs import machine
from vertex_softmax.runs.processes import CODES, PARENT
from vertex_softmax.runs.sweep.instances import SweepInstance
from vertex_softmax.runs.sweep.workers import Forked, Worker, Workers, available

T = TypeVar("T")
VERIFY = (sys.executable, "-P", "-m", "vertex_softmax", "verify")
"""`vertex verify` in a new process; -P: nothing is imported from the folder in which the sweep was started."""
COMMAND = VERIFY
"""The command for an instance; as long as it is VERIFY, a worker that has imported torch may fork instead."""
GRACE = 5.0
"""Seconds after its timeout until a process is killed."""
PATIENCE = 2.0
"""Seconds from asking processes to end until they are killed."""
ROOM = 65_536
"""Bytes that must be free on the disk; if they are not, an error is attributed to the disk and not to the instance."""
PAUSE = 0.02
"""Seconds between two polls of the processes."""
ENDED = {130: "SIGINT", 143: "SIGTERM"}
"""The exit codes of `vertex verify` after these signals."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""The environment variables that limit the threads of a process."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How every instance of a sweep is run. With the same `threads`, every machine gives the same bounds."""

    method: str = "bab"
    seed: int = 0
    device: str = "cpu"
    jobs: int | None = 1
    """how many processes run at a time; None: as many as there is room for"""
    threads: int = 0
    """the threads of each process; 0: the cores of this machine divided by the jobs"""
    memory: float | None = None
    """the memory limit of each process in GiB"""
    runner: str = "local"
    """`local` or `ray`"""

    def __post_init__(self) -> None:
        if self.memory is not None and not 0 < self.memory < 1 << 20:
            raise InvalidValueError(f"--memory is {self.memory}; it must be a number of GiB above 0")
        if self.threads < 1:
            object.__setattr__(self, "threads", max(1, machine.cores() // (self.jobs or machine.cores())))

    def key(self, instance: SweepInstance) -> str:
        """The instance's key in the journal."""
        names = [name.replace("\\", "\\\\").replace("|", "\\|") for name in (instance.model, instance.spec)]
        return "|".join((*names, repr(instance.timeout), self.method, str(self.seed)))


@dataclasses.dataclass(frozen=True)
class Finished:
    """The result of one process."""

    answer: Mapping[str, Any]
    """plain JSON with at least `status` and `reason`"""
    counterexample: str | None = None
    """the text of the counterexample if the status is `sat`"""
    seconds: float = 0.0
    died: bool = False
    """the process was ended from outside, or could not be started: a second try may succeed"""

    @property
    def failed(self) -> bool:
        """Whether there is no answer."""
        return bool(self.answer["status"] == "error")


def failure(reason: str, seconds: float = 0.0, died: bool = False) -> Finished:
    """The result of a process that gave no answer."""
    return Finished({"status": "error", "reason": reason}, seconds=seconds, died=died)


class Runner(Protocol):
    """Runs instances, several at a time: `start` one while `has_room`, `poll` for results, `stop` at the end."""

    note: str
    """a remark about the runner for the user; may be empty"""

    def has_room(self) -> bool:
        """Whether another instance may be started now."""

    def start(self, key: str, instance: SweepInstance, files: Mapping[str, str]) -> None:
        """Start an instance; `files` has the SHA-256 of its files. Never raises: a failed start counts as died."""

    def poll(self, wait: float) -> list[tuple[str, Finished]]:
        """The instances that finished since the last call; waits at most `wait` seconds for the first.

        Raises if the runner cannot go on: a full disk, a lost cluster. No finished instance is lost then.
        """

    def stop(self) -> None:
        """End all processes and remove their files. May be called twice."""


class Local:
    """Processes on this machine: at most `jobs` at a time, and no more than memory allows if each has a limit."""

    def __init__(self, settings: Settings, places: Path, command: Sequence[str] | None = None) -> None:
        """`places`: an empty folder for the processes' files."""
        self.settings, self.places, self.command = settings, places, command
        self.jobs = settings.jobs or max(1, machine.cores() // settings.threads)
        self.running: dict[str, Process | Finished] = {}
        self.note = ""
        self._begun = 0
        self._unfit: InvalidValueError | None = None
        forks = command is None and COMMAND == VERIFY and available(settings.device)
        self._workers = Workers(places, _environment(settings)) if forks else None
        check_memory(settings)
        check_room(places)

    def has_room(self) -> bool:
        """Whether fewer than `jobs` run, and memory is enough if all processes, and one more, use their whole limit."""
        if len(self.running) >= self.jobs:
            return False
        if self.settings.memory is None or not self.running:
            return True
        free, share = machine.available_memory(), int(self.settings.memory * 2**30)
        if free is None:
            return True
        processes = [process for process in self.running.values() if isinstance(process, Process)]
        left = free - sum(max(0, share - machine.memory_in_use(each.process.pid)) for each in processes)
        if left < share and not self.note:
            self.note = (
                f"{len(self.running)} at a time and not {self.jobs}, as each may use {self.settings.memory:g} GiB "
                f"(--memory) and {free / 2**30:.1f} are free while {len(self.running)} run"
            )
        return left >= share

    def start(self, key: str, instance: SweepInstance, files: Mapping[str, str]) -> None:  # noqa: ARG002
        """Start a process in a folder of its own: a fork of a worker, or a new one."""
        self._begun += 1
        folder = self.places / str(self._begun)
        forks = self._workers is not None and not self._workers.unfit
        try:
            folder.mkdir()
            self.running[key] = Process(
                instance.model_path,
                instance.spec_path,
                instance.timeout,
                self.settings,
                folder,
                self._workers.take() if self._workers is not None and forks else self.command,
            )
        except OSError as error:
            self.running[key] = failure(f"no process could be started: {error.strerror}", died=True)

    def poll(self, wait: float) -> list[tuple[str, Finished]]:
        """The finished instances. Errors due to a full disk are not reported as theirs: the next call raises."""
        if self._unfit is not None:
            raise self._unfit
        found = self._finished()
        limit = time.perf_counter() + wait
        while not found and time.perf_counter() < limit:
            time.sleep(PAUSE)
            found = self._finished()
        if any(finished.failed for _, finished in found):
            try:
                check_room(self.places)
            except InvalidValueError as error:
                self._unfit = error
                return [(key, finished) for key, finished in found if not finished.failed]
        return found

    def _finished(self) -> list[tuple[str, Finished]]:
        """Remove the processes that have ended from `running`, and return their results."""
        found = []
        for key, process in list(self.running.items()):
            finished = process if isinstance(process, Finished) else process.poll()
            if finished is not None:
                del self.running[key]
                found.append((key, finished))
                self._release(process)
        return found

    def _release(self, process: Process | Finished) -> None:
        """Take back the worker of a process that has ended."""
        if self._workers is not None and isinstance(process, Process) and process.worker is not None:
            self._workers.give_back(process.worker)

    def stop(self) -> None:
        """Ask all processes to end, and kill those that have not ended after PATIENCE."""
        end([process for process in self.running.values() if isinstance(process, Process)])
        for process in self.running.values():
            self._release(process)
        self.running.clear()
        if self._workers is not None:
            self._workers.end()


def end(processes: Sequence[Process]) -> None:
    """Send SIGTERM, and after PATIENCE SIGKILL to the processes that still run."""
    limit = time.perf_counter() + PATIENCE
    while (processes := [each for each in processes if not each.stop(force=False)]) and time.perf_counter() < limit:
        time.sleep(PAUSE)
    for process in processes:
        process.stop(force=True)


def check_memory(settings: Settings) -> None:
    """Raise if there is not enough free memory for one process with its memory limit."""
    free = machine.available_memory()
    if settings.memory is not None and free is not None and free < settings.memory * 2**30:
        raise InvalidValueError(
            f"--memory is {settings.memory:g} GiB for each process, and {free / 2**30:.1f} are free; give less"
        )


def check_room(places: Path) -> None:
    """Raise if the disk has no room for the files of a process: every process would end in an error."""
    probe = places / "probe"
    try:
        write_whole(probe, b" " * ROOM)
        probe.unlink()
    except OSError as error:
        raise InvalidValueError(
            f"{places} cannot be written ({error.strerror}); what is finished is kept; make room, or choose another "
            "--out; the same command goes on from there"
        ) from error


def digests(instance: SweepInstance) -> dict[str, str]:
    """The SHA-256 of the files of an instance; `data` is that of the model's external data files, if it has any."""
    hashes = {"model": _current(_digest, instance.model_path), "spec": _current(_digest, instance.spec_path)}
    data_files = _current(_data_files, instance.model_path)
    if isinstance(data_files, dict) and data_files:
        each = {name: _current(_digest, path) for name, path in data_files.items()}
        hashes["data"] = hashlib.sha256(repr(each).encode(errors="surrogatepass")).hexdigest()
    return hashes


def external(model: Path) -> list[Path]:
    """The external data files of a model; an empty list if the model cannot be read."""
    data_files = _current(_data_files, model)
    return list(data_files.values()) if isinstance(data_files, dict) else []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stamp:
    """The state of a file according to the file system: it changes when the file is replaced or edited."""

    inode: int
    size: int
    modified: int
    """the time of the last change of the content, in nanoseconds"""
    changed: int
    """the time of the last change of content, name or permissions, in nanoseconds"""


def stamps(instance: SweepInstance) -> dict[str, object]:
    """The state of each file of an instance, by path, without the time of changes of name or permissions.

    It also differs from an earlier state if a file was replaced meanwhile and put back.
    """
    data_files = _current(_data_files, instance.model_path)
    paths = [instance.model_path, instance.spec_path, *(data_files.values() if isinstance(data_files, dict) else ())]
    return {str(path): _current(lambda _, stamp: (stamp.inode, stamp.size, stamp.modified), path) for path in paths}


def _current(compute: Callable[[Path, Stamp], T], path: Path) -> T | str:
    """`compute` for a file in its current state, which a cached function may have seen already; else the error."""
    try:
        status = path.stat()
        stamp = Stamp(inode=status.st_ino, size=status.st_size, modified=status.st_mtime_ns, changed=status.st_ctime_ns)
        return compute(path, stamp)
    except OSError as error:
        return f"not read: {error.strerror}"


@lru_cache(maxsize=4096)
def _digest(path: Path, _stamp: Stamp) -> str:
    """The SHA-256 of a file."""
    with regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=4096)
def _data_files(path: Path, stamp: Stamp) -> dict[str, Path]:
    """The external data files of a model, by the names it has for them."""
    with regular(path) as file:
        return external_files(path, up_to(file, LIMIT)) if stamp.size <= LIMIT else {}


class Process:
    """One instance in a process and a session of its own, which outlives neither its time limit nor this process."""

    def __init__(
        self,
        model: Path,
        spec: Path,
        timeout: float,
        settings: Settings,
        folder: Path,
        start: Sequence[str] | Worker | None = None,
    ) -> None:
        """`folder`: for the files of the process; it is removed at the end.

        `start`: a command instead of COMMAND, or a worker that forks.
        """
        self.folder = folder
        self.question = {"model": str(model), "spec": str(spec)}
        self.worker = start if isinstance(start, Worker) else None
        self.limit = timeout + GRACE
        options = {
            "timeout": timeout,
            "method": settings.method,
            "device": settings.device,
            "threads": settings.threads,
            "seed": settings.seed,
            "json": "-",
            "counterexample": (folder / "counterexample.txt").absolute(),
        }
        if settings.memory is not None:
            options["memory"] = settings.memory
        arguments = [str(model), str(spec), *(f"--{name}={value}" for name, value in options.items())]
        self.asked = False
        self.process: subprocess.Popen[bytes] | Forked
        self.began = time.perf_counter()
        if isinstance(start, Worker):
            self.process = start.begin(arguments, folder)
            return
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                [*(COMMAND if start is None else start), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # an interrupt from the keyboard reaches the sweep alone
                env={**_environment(settings), PARENT: str(os.getpid())},
            )

    def _seconds(self) -> float:
        """Seconds since the process began; 0 while its worker still imports what it needs to fork it."""
        if isinstance(self.process, Forked):
            return 0.0 if self.process.began is None else time.perf_counter() - self.process.began
        return time.perf_counter() - self.began

    def poll(self) -> Finished | None:
        """The result if the process has ended or its time is over, else None.

        The status is `timeout` if the process had to be killed, and `error` if its answer is not valid.
        """
        code = self.process.poll()
        seconds = self._seconds()
        if code is None:
            if seconds <= self.limit:
                return None
            self.stop(force=True)
            finished = Finished({"status": "timeout", "reason": f"it was killed {GRACE:g} s after its time was over"})
        else:
            finished = self._validated(code)
        shutil.rmtree(self.folder, ignore_errors=True)
        return dataclasses.replace(finished, seconds=seconds)

    def stop(self, force: bool) -> bool:
        """Send SIGTERM (once), or with `force` SIGKILL, to the whole session; whether the process has ended."""
        if self.process.poll() is None and (force or not self.asked):
            self.asked = True
            number = getattr(signal, "SIGKILL", signal.SIGTERM) if force else signal.SIGTERM
            with contextlib.suppress(ProcessLookupError):
                if isinstance(self.process, Forked):
                    self.process.worker.signal(number)
                elif hasattr(os, "killpg"):
                    os.killpg(self.process.pid, number)
                else:
                    self.process.kill()
            if force:
                with contextlib.suppress(subprocess.TimeoutExpired):  # it cannot be ended now
                    self.process.wait(PATIENCE)
        return self.process.poll() is not None

    def _validated(self, code: int) -> Finished:
        """The answer if exit code and JSON agree, and `sat` has a counterexample; else an error."""
        died = code < 0 or code in ENDED
        try:
            answer = json.loads((self.folder / "stdout").read_bytes(), parse_constant=_refuse)
            status = answer["status"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return self._error(_ended(code) + " without an answer", died)
        if not isinstance(status, str) or CODES.get(status) != code:
            return self._error(f"{_ended(code)}, but its answer is {status!r}", died)
        if any(answer.get(name, asked) != asked for name, asked in self.question.items()):
            return self._error("its answer is about other files than it was asked about")
        answer.pop("counterexample", None)
        answer.setdefault("reason", "")
        if status != "sat":
            return Finished(answer)
        try:
            text = (self.folder / "counterexample.txt").read_text(errors="surrogateescape")
        except OSError:
            text = ""
        text = text.rstrip()
        return Finished(answer, f"{text}\n") if text else self._error("it said sat, but gave no counterexample")

    def _error(self, reason: str, died: bool = False) -> Finished:
        """A failure with this reason and the end of what the process wrote to stderr."""
        said = ""
        with contextlib.suppress(OSError), (self.folder / "stderr").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            said = re.sub(r"\x1b\[[0-9;]*m", "", file.read().decode(errors="replace")).strip()
        return failure(reason + (f"; it said: {said}" if said else ""), died=died)


def _environment(settings: Settings) -> dict[str, str]:
    """The environment of a process: this one's, with the number of threads."""
    return {**os.environ, **dict.fromkeys(THREADS, str(settings.threads))}


def _ended(code: int) -> str:
    """How a process with this exit code ended, in words."""
    if code in ENDED:
        return f"the process was ended by {ENDED[code]}"
    if code >= 0:
        return f"the process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the process was ended by {name}" + (" (is there no memory left?)" if name == "SIGKILL" else "")


def _refuse(text: str) -> float:
    raise ValueError(text)
