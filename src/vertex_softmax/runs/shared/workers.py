"""Workers of a shared search: the protocol, and processes on this machine.

Invariant: a worker answers each order once, in the order in which they were sent, or it leaves. Nothing is believed of
what a worker says here: lines are handed on as they are. A worker does not outlive the search.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from typing import IO, Protocol

from vertex_softmax.runs.processes import PARENT
from vertex_softmax.runs.shared.seals import MOST_BYTES
from vertex_softmax.runs.sweep.runner import THREADS

COMMAND = (sys.executable, "-P", "-m", "vertex_softmax.runs.shared.worker")
LEAVING = 2.0
"""Seconds that a process has to end once it was killed."""


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened to a worker."""

    worker: str
    """its name, which is never used again"""
    line: str | None = None
    """what it said; None: it has joined or left"""
    left: str | None = None
    """why it has left; None: it has not"""

    @property
    def joined(self) -> bool:
        """Whether it can be sent orders from now on."""
        return self.line is None and self.left is None


class TreeWorkers(Protocol):
    """Some workers, of which each can be sent orders after it has joined."""

    @property
    def note(self) -> str:
        """A remark about them for the user; may be empty."""

    def poll(self, wait: float) -> list[Event]:
        """What happened since the last call; waits at most `wait` seconds for the first.

        Raises if there will be no workers any more.
        """

    def send(self, worker: str, line: str) -> None:
        """Send an order; if the worker is gone, `poll` says so."""

    def drop(self, worker: str, reason: str) -> None:
        """End a worker that cannot be used; `poll` says that it has left, for this reason."""

    def stop(self) -> None:
        """End all workers. May be called twice."""


class LocalWorkers:
    """So many processes on this machine; one that ends is replaced."""

    def __init__(self, count: int, threads: int, command: tuple[str, ...] = COMMAND) -> None:
        self.count, self.threads, self.command = count, threads, command
        self._begun = 0
        self._running: dict[str, _LocalProcess] = {}
        self._heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stopped = False

    @property
    def note(self) -> str:
        """How many there are."""
        return f"{self.count} worker{'s' * (self.count != 1)} on this machine"

    def poll(self, wait: float) -> list[Event]:
        """Start what is missing, and hand on what was heard."""
        found = []
        while len(self._running) < self.count and not self._stopped:
            self._begun += 1
            name = f"worker {self._begun}"
            self._running[name] = _LocalProcess(name, self.command, self.threads, self._heard)
            found.append(Event(name))
        with contextlib.suppress(queue.Empty):
            found.append(self._heard.get(timeout=0 if found else wait))
            while True:
                found.append(self._heard.get_nowait())
        for event in found:
            if event.left is not None and event.worker in self._running:
                self._running.pop(event.worker).end()
        return found

    def send(self, worker: str, line: str) -> None:
        """Queue an order."""
        if worker in self._running:
            self._running[worker].orders.put(line)

    def drop(self, worker: str, reason: str) -> None:
        """Kill the process."""
        if worker in self._running:
            self._running[worker].kill(reason)

    def stop(self) -> None:
        """Kill all processes."""
        self._stopped = True
        for process in self._running.values():
            process.kill("the search has ended")
        for process in self._running.values():
            process.end()
        self._running.clear()


class _LocalProcess:
    """One process; a thread writes its orders, and another hands on its answers, so that neither pipe blocks."""

    def __init__(self, name: str, command: tuple[str, ...], threads: int, heard: queue.SimpleQueue[Event]) -> None:
        self.name, self._heard = name, heard
        self.orders: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._reason = ""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # an interrupt from the keyboard reaches the search alone
            env={**os.environ, **dict.fromkeys(THREADS, str(threads)), PARENT: str(os.getpid())},
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._listen)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        stdin = self._process.stdin
        while (line := self.orders.get()) is not None and stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                stdin.write(line.encode(errors="surrogatepass") + b"\n")
                stdin.flush()

    def _listen(self) -> None:
        stdout = self._process.stdout
        with contextlib.suppress(OSError, ValueError):
            while stdout is not None and (line := stdout.readline(MOST_BYTES)):
                self._heard.put(Event(self.name, line=line.decode(errors="replace")))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVING)
        self._heard.put(Event(self.name, left=self._reason or self._ending()))

    def _ending(self) -> str:
        """How the process ended, with the last line that it wrote to stderr."""
        code, said = self._process.poll(), ""
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
            lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
            said = f" ({lines[-1][:300]})" if lines else ""
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"{self.name} was ended by {signal.Signals(-code).name}{said}"
        return f"{self.name} ended with exit code {code}{said}"

    def kill(self, reason: str) -> None:
        """End the process at once."""
        self._reason = self._reason or reason
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def end(self) -> None:
        """Release what a process that has ended, or was killed, still holds."""
        self.orders.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVING)
        for thread in self._threads:
            thread.join(LEAVING)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()
