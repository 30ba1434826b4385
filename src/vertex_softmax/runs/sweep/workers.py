"""The sweep's end of a fork server (cli/fork_server.py): one worker for each instance that runs at a time.

Invariant: a report counts only for the order that it names, and only the latest order is ever waited for, so that no
instance gets the exit code of another one. A worker that ended, however it ended, costs the instance that it was
running, and the next instance gets a new worker.

A worker and its fork are one process group, which this process leads no part of: it is signalled as a whole, and its
number cannot be another group's as long as the worker has not been waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertex_softmax.runs.processes import PARENT

SERVER = (sys.executable, "-P", "-m", "vertex_softmax.cli.fork_server")
STARTING = 120.0
"""Seconds that a worker has to import torch before its first fork."""
LEAVING = 2.0
"""Seconds that an idle worker has to end once its stdin is closed."""
PAUSE = 0.005
BLAS = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's library starts its threads at import, and a worker must have one; torch has threads of its own."""


def available(device: str) -> bool:
    """Whether instances may run in forks: on Linux, which can end them with the sweep, and not on a GPU.

    A process that has used CUDA cannot be forked.
    """
    return sys.platform.startswith("linux") and device == "cpu"


class Worker:
    """A fork server, which runs one instance at a time."""

    def __init__(self, places: Path, environment: dict[str, str]) -> None:
        """`places`: the folder for the instances' files, which is also a word of the command, for `ps`."""
        self.process = subprocess.Popen(
            [*SERVER, str(places.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt from the keyboard reaches the sweep alone
            env={**environment, **BLAS, PARENT: str(os.getpid())},
        )
        if self.process.stdin is None or self.process.stdout is None:
            raise OSError("a pipe to a worker is missing")
        self._orders, self._reports = self.process.stdin, self.process.stdout
        os.set_blocking(self._reports.fileno(), False)
        self._rest = b""
        self._count = 0
        self.unfit = False
        """whether it cannot fork: it has more than one thread"""

    def begin(self, arguments: Sequence[str], folder: Path) -> Forked:
        """Order the instance with these arguments of `vertex verify`; what it prints goes to files in the folder."""
        self._count += 1
        order = {"order": self._count, "arguments": list(arguments), "folder": str(folder.absolute())}
        with contextlib.suppress(OSError):  # a worker that has ended; its instance finds that out
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()
        return Forked(self, self._count)

    def reports(self) -> list[dict[str, Any]]:
        """The reports since the last call."""
        read = b""
        with contextlib.suppress(OSError, ValueError):  # ValueError: `end` has closed it
            read = self._reports.read() or b""
        *lines, self._rest = (self._rest + read).split(b"\n")
        found = [json.loads(line) for line in lines]
        self.unfit = self.unfit or any("unfit" in report for report in found)
        return found

    def signal(self, number: int) -> None:
        """Send a signal to the worker and its fork. The worker ignores all but SIGKILL."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def end(self) -> None:
        """End the worker, and a fork that still runs."""
        with contextlib.suppress(OSError):
            self._orders.close()
        self.signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it cannot be ended now
            self.process.wait(LEAVING)
        self._reports.close()


class Forked:
    """The process of one instance, which a worker forks: like a subprocess.Popen that the worker waits for."""

    def __init__(self, worker: Worker, order: int) -> None:
        self.worker, self.order = worker, order
        self.pid = 0
        """its process id; 0 until the worker has reported it"""
        self.ordered = time.perf_counter()
        self.began: float | None = None
        """when it was forked, as far as the worker's reports tell; None: not yet"""
        self.code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, as of a subprocess; that of SIGKILL if the worker has ended without a report of it."""
        if self.code is not None:
            return self.code
        ended = self.worker.process.poll() is not None  # before the reports are read: none comes later
        for report in self.worker.reports():
            if report.get("order") != self.order:
                continue
            self.began = self.began or time.perf_counter()
            self.pid = int(report.get("pid", self.pid))
            self.code = report.get("code")
        late = self.began is None and time.perf_counter() - self.ordered > STARTING
        if self.code is None and (ended or late or self.worker.unfit):
            self.worker.signal(signal.SIGKILL)
            self.code = -signal.SIGKILL
        return self.code

    def wait(self, timeout: float) -> int:
        """Wait until it has ended; raises subprocess.TimeoutExpired if it has not after so many seconds."""
        limit = time.perf_counter() + timeout
        while (code := self.poll()) is None:
            if time.perf_counter() >= limit:
                raise subprocess.TimeoutExpired(SERVER, timeout)
            time.sleep(PAUSE)
        return code


class Workers:
    """The workers of a sweep: those that wait for an instance."""

    def __init__(self, places: Path, environment: dict[str, str]) -> None:
        self.places, self.environment = places, environment
        self.idle: list[Worker] = []
        self.unfit = False
        """whether a worker could not fork; then none is started any more"""

    def take(self) -> Worker:
        """A worker that waits, or a new one."""
        while self.idle:
            worker = self.idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.end()
        return Worker(self.places, self.environment)

    def give_back(self, worker: Worker) -> None:
        """Keep a worker whose instance has ended, if it can run another one."""
        self.unfit = self.unfit or worker.unfit
        if worker.unfit or worker.process.poll() is not None:
            worker.end()
        else:
            self.idle.append(worker)

    def end(self) -> None:
        """End the workers that wait."""
        while self.idle:
            self.idle.pop().end()
