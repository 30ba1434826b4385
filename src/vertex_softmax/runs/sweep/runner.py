"""Where instances run: the protocol, and processes on this machine.

Invariant: an answer counts only if the process that gave it ended with the exit code that belongs to the answer. A
process neither outlives its time nor whoever started it. What died without an answer (killed, out of memory, its
machine gone) says so, and is told apart from an error that would come again.

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
from typing import Any, NamedTuple, Protocol, TypeVar

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import regular, up_to, write_whole
from vertex_softmax.graph.from_onnx.parts import LIMIT, external_files
from vertex_softmax.runs import machine
from vertex_softmax.runs.processes import CODES, PARENT
from vertex_softmax.runs.sweep.instances import Instance

T = TypeVar("T")
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
ENDED = {130: "SIGINT", 143: "SIGTERM"}
"""Exit codes of `vertex verify` where a signal has ended it."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How every instance is run. The same numbers come out wherever it runs if `threads` is the same."""

    method: str = "bab"
    seed: int = 0
    device: str = "cpu"
    jobs: int | None = 1
    """at a time; None: as many as there is room for"""
    threads: int = 0
    """of each process; 0: the cores of this machine, shared by the jobs"""
    memory: float | None = None
    """GiB for each process"""
    runner: str = "local"

    def __post_init__(self) -> None:
        if self.memory is not None and not 0 < self.memory < 1 << 20:
            raise InvalidValueError(f"--memory is {self.memory}; it must be a number of GiB above 0")
        if self.threads < 1:
            object.__setattr__(self, "threads", max(1, machine.cores() // (self.jobs or machine.cores())))

    def key(self, instance: Instance) -> str:
        """What the journal calls the instance."""
        names = [name.replace("\\", "\\\\").replace("|", "\\|") for name in (instance.model, instance.spec)]
        return "|".join((*names, repr(instance.timeout), self.method, str(self.seed)))


@dataclasses.dataclass(frozen=True)
class Finished:
    """What came of one process: an answer as plain JSON with `status` and `reason`, and the counterexample of `sat`."""

    answer: Mapping[str, Any]
    counterexample: str | None = None
    seconds: float = 0.0
    died: bool = False
    """it was ended from outside, or could not be started: another try may do better"""

    @property
    def failed(self) -> bool:
        """There is no answer."""
        return bool(self.answer["status"] == "error")


def failure(reason: str, seconds: float = 0.0, died: bool = False) -> Finished:
    """No answer, and why."""
    return Finished({"status": "error", "reason": reason}, seconds=seconds, died=died)


class Runner(Protocol):
    """A place where instances run, several at a time; `start` one where `has_room`, `poll` them, `stop` at the end."""

    note: str
    """what whoever waits should know about this place, or nothing"""

    def has_room(self) -> bool:
        """One more may be started now."""

    def start(self, key: str, instance: Instance, files: Mapping[str, str]) -> None:
        """Begin; `files` are the digests of what is to be read. It never fails: what cannot be begun has died."""

    def poll(self, wait: float) -> list[tuple[str, Finished]]:
        """What has finished since the last time; waits at most so many seconds for the first.

        Raises where the place is no longer fit: a full disk, a cluster that is gone. Nothing finished is lost then.
        """

    def stop(self) -> None:
        """End all that runs. Nothing is left behind; twice does no harm."""


class Local:
    """Processes on this machine: as many at a time as `jobs`, and as the memory allows if each has a share of it."""

    def __init__(self, settings: Settings, places: Path, command: Sequence[str] | None = None) -> None:
        """`places` is an empty folder, for the processes' files."""
        self.settings, self.places, self.command = settings, places, command
        self.jobs = settings.jobs or max(1, machine.cores() // settings.threads)
        self.running: dict[str, Process | Finished] = {}
        self.note = ""
        self._begun = 0
        self._unfit: InvalidValueError | None = None
        check_memory(settings)
        check_room(places)

    def has_room(self) -> bool:
        """Fewer than `jobs` run, and another could take all of its memory while the others take all of theirs."""
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

    def start(self, key: str, instance: Instance, files: Mapping[str, str]) -> None:  # noqa: ARG002
        """Begin a process in a folder of its own."""
        self._begun += 1
        place = self.places / str(self._begun)
        try:
            place.mkdir()
            self.running[key] = Process(
                instance.model_path, instance.spec_path, instance.timeout, self.settings, place, self.command
            )
        except OSError as error:
            self.running[key] = failure(f"no process could be started: {error.strerror}", died=True)

    def poll(self, wait: float) -> list[tuple[str, Finished]]:
        """What has finished. An error that is the disk's is not given to anyone: the next look raises."""
        if self._unfit is not None:
            raise self._unfit
        found = self._look()
        limit = time.perf_counter() + wait
        while not found and time.perf_counter() < limit:
            time.sleep(PAUSE)
            found = self._look()
        if any(finished.failed for _, finished in found):
            try:
                check_room(self.places)
            except InvalidValueError as error:
                self._unfit = error
                return [(key, finished) for key, finished in found if not finished.failed]
        return found

    def _look(self) -> list[tuple[str, Finished]]:
        found = []
        for key, process in list(self.running.items()):
            finished = process if isinstance(process, Finished) else process.poll()
            if finished is not None:
                del self.running[key]
                found.append((key, finished))
        return found

    def stop(self) -> None:
        """Ask all to end, and end those that have not after a while."""
        end([process for process in self.running.values() if isinstance(process, Process)])
        self.running.clear()


def end(processes: Sequence[Process]) -> None:
    """SIGTERM, and SIGKILL for those that still run after PATIENCE."""
    limit = time.perf_counter() + PATIENCE
    while (processes := [each for each in processes if not each.stop(force=False)]) and time.perf_counter() < limit:
        time.sleep(PAUSE)
    for process in processes:
        process.stop(force=True)


def check_memory(settings: Settings) -> None:
    """Refuse where there is not the memory for one process."""
    free = machine.available_memory()
    if settings.memory is not None and free is not None and free < settings.memory * 2**30:
        raise InvalidValueError(
            f"--memory is {settings.memory:g} GiB for each process, and {free / 2**30:.1f} are free; give less"
        )


def check_room(places: Path) -> None:
    """Refuse to go on where there is no room for what a process writes: each would end in an error."""
    probe = places / "probe"
    try:
        write_whole(probe, b" " * ROOM)
        probe.unlink()
    except OSError as error:
        raise InvalidValueError(
            f"{places} cannot be written ({error.strerror}); what is finished is kept; make room, or choose another "
            "--out; the same command goes on from there"
        ) from error


def digests(instance: Instance) -> dict[str, str]:
    """SHA-256 of the files as they are on the disk; `data` is of all files that the model keeps numbers in, if any."""
    found = {"model": _now(_digest, instance.model_path), "spec": _now(_digest, instance.spec_path)}
    outside = _now(_beside, instance.model_path)
    if isinstance(outside, dict) and outside:
        each = {name: _now(_digest, path) for name, path in outside.items()}
        found["data"] = hashlib.sha256(repr(each).encode(errors="surrogatepass")).hexdigest()
    return found


def external(model: Path) -> list[Path]:
    """The files beside a model that it keeps numbers in; none of a model that cannot be read."""
    found = _now(_beside, model)
    return list(found.values()) if isinstance(found, dict) else []


class Stamp(NamedTuple):
    """What the file system says of a file; who replaces or edits it leaves another one."""

    inode: int
    size: int
    time: int
    changed: int


def stamps(instance: Instance) -> dict[str, object]:
    """Of all files of an instance, but for the time of their last change of name or rights.

    They differ from those of before also where a file was replaced meanwhile and put back again.
    """
    outside = _now(_beside, instance.model_path)
    paths = [instance.model_path, instance.spec_path, *(outside.values() if isinstance(outside, dict) else ())]
    return {str(path): _now(lambda _, stamp: stamp[:3], path) for path in paths}


def _now(of: Callable[[Path, Stamp], T], path: Path) -> T | str:
    """Of a file as it is: what is known of the same file, size and times is not read again."""
    try:
        there = path.stat()
        return of(path, Stamp(there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns))
    except OSError as error:
        return f"not read: {error.strerror}"


@lru_cache(maxsize=4096)
def _digest(path: Path, _stamp: Stamp) -> str:
    with regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=4096)
def _beside(path: Path, stamp: Stamp) -> dict[str, Path]:
    with regular(path) as file:
        return external_files(path, up_to(file, LIMIT)) if stamp.size <= LIMIT else {}


class Process:
    """An instance in a process and a session of its own, which neither outlives its time nor this process."""

    def __init__(
        self,
        model: Path,
        spec: Path,
        timeout: float,
        settings: Settings,
        place: Path,
        command: Sequence[str] | None = None,
    ) -> None:
        self.place = place
        self.limit = timeout + GRACE
        options = {
            "timeout": timeout,
            "method": settings.method,
            "device": settings.device,
            "threads": settings.threads,
            "seed": settings.seed,
            "json": "-",
            "counterexample": (place / "counterexample.txt").absolute(),
        }
        if settings.memory is not None:
            options["memory"] = settings.memory
        arguments = [str(model), str(spec), *(f"--{name}={value}" for name, value in options.items())]
        self.asked = False
        with (place / "stdout").open("wb") as stdout, (place / "stderr").open("wb") as stderr:
            self.began = time.perf_counter()
            self.process = subprocess.Popen(
                [*(COMMAND if command is None else command), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # an interrupt from the keyboard reaches the sweep alone
                env={**os.environ, **dict.fromkeys(THREADS, str(settings.threads)), PARENT: str(os.getpid())},
            )

    def poll(self) -> Finished | None:
        """The answer; `timeout` if it had to be killed; `error` if it cannot be believed."""
        code = self.process.poll()
        seconds = time.perf_counter() - self.began
        if code is None:
            if seconds <= self.limit:
                return None
            self.stop(force=True)
            finished = Finished({"status": "timeout", "reason": f"it was killed {GRACE:g} s after its time was over"})
        else:
            finished = self._believed(code)
        shutil.rmtree(self.place, ignore_errors=True)
        return dataclasses.replace(finished, seconds=seconds)

    def stop(self, force: bool) -> bool:
        """SIGTERM once, or SIGKILL, for the whole session; whether it has ended."""
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
        died = code < 0 or code in ENDED
        try:
            answer = json.loads((self.place / "stdout").read_bytes(), parse_constant=_refuse)
            status = answer["status"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return self._error(_ended(code) + " without an answer", died)
        if not isinstance(status, str) or CODES.get(status) != code:
            return self._error(f"{_ended(code)}, but its answer is {status!r}", died)
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

    def _error(self, reason: str, died: bool = False) -> Finished:
        """With the end of what the process wrote to stderr."""
        said = ""
        with contextlib.suppress(OSError), (self.place / "stderr").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            said = re.sub(r"\x1b\[[0-9;]*m", "", file.read().decode(errors="replace")).strip()
        return failure(reason + (f"; it said: {said}" if said else ""), died=died)


def _ended(code: int) -> str:
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
