"""The runner of a sweep that uses a Ray cluster.

Invariant: a failure of Ray does not end the sweep's process. Ray ends the process that uses it when its cluster is
gone, so that process is a separate one (the driver, ray_driver.py), with which this module exchanges lines of JSON. If
the driver ends, or stops answering, there is one clear error; all finished instances are in the journal by then.

Ray never retries a task: the sweep does, and reports it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vertex_softmax.foundation.errors import ClusterError, MissingDependencyError
from vertex_softmax.runs import sources
from vertex_softmax.runs.sweep.instances import SweepInstance
from vertex_softmax.runs.sweep.runner import Finished, Settings, check_room, failure

DRIVER = (sys.executable, "-P", "-m", "vertex_softmax.runs.sweep.ray_driver")
STARTING = 90.0
"""Seconds until the cluster must have answered for the first time."""
SILENCE = 40.0
"""Seconds without a message after which the cluster counts as lost; the driver sends one every second."""
LEAVING = 15.0
"""Seconds that the driver has to end its tasks and itself."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}
"""Environment variables that silence Ray."""
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""The environment variable for a Ray of this machine alone: it listens on loopback, where nobody else can reach it."""
KEPT = "what is finished is kept, and the same command goes on from there"


def needed() -> None:
    """Raise an error that says how to install Ray if it is not installed."""
    if find_spec("ray") is None:
        raise MissingDependencyError(
            "ray is not installed, and --runner ray needs it: pip install 'vertex-softmax[ray]'"
        )


class RayLink:
    """The end of the driver, the process that uses Ray, in the process that started it."""

    def __init__(self, driver: Sequence[str], log: Path, address: str | None, kept: str = KEPT) -> None:
        """`log`: the file for what the driver writes to stderr. `kept`: what an error says about finished work."""
        self.address, self.log, self.kept = address, log, kept
        self.room = 0
        self.note = ""
        self.heard = time.monotonic()
        self.ready = False
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._unfit: ClusterError | None = None
        self._lost = False
        with self.log.open("wb") as file:
            self.driver = subprocess.Popen(
                driver,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,  # an interrupt from the keyboard reaches this process alone
                env={**os.environ, **QUIET, **(ALONE if address is None else {})},
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def messages(self, wait: float) -> list[dict[str, Any]]:
        """What the driver said about the work; raises ClusterError if the cluster is lost or cannot run Vertex."""
        if self._unfit is not None:
            raise self._unfit
        found: list[dict[str, Any]] = []
        with contextlib.suppress(queue.Empty):
            self._receive(self._answers.get(timeout=wait), found)
            while True:
                self._receive(self._answers.get_nowait(), found)
        silent = time.monotonic() - self.heard
        if self._unfit is None and silent > (SILENCE if self.ready else STARTING):
            self._unfit = self._lost_cluster(f"has not answered for {silent:.0f} s")
        if self._unfit is not None and not found:
            raise self._unfit
        return found

    def _receive(self, message: dict[str, Any] | None, found: list[dict[str, Any]]) -> None:
        """Process one message of the driver; None means that it has ended. One about the work is added to `found`."""
        self.heard = time.monotonic()
        if message is None:
            self._unfit = self._unfit or self._lost_cluster("is gone")
        elif "unfit" in message:
            self._unfit = self._unfit or ClusterError(f"{message['unfit']}; {self.kept}")
        elif "room" in message:
            self.ready, self.room = True, message["room"]
            nodes = f"{message['nodes']} node{'s' * (message['nodes'] != 1)}"
            self.note = f"Ray at {message['address']}: {nodes}, room for {self.room} at a time"
        else:
            found.append(message)

    def _lost_cluster(self, what: str) -> ClusterError:
        """The error for a lost cluster, with the last line of the driver's log."""
        self._lost = True
        said = ""
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            said = f" ({lines[-1][:300]})" if lines else ""
        where = "on this machine" if self.address is None else f"at {self.address}"
        return ClusterError(f"the Ray cluster {where} {what}{said}; {self.kept}")

    def send(self, **message: Any) -> None:
        """Send a message to the driver; if the driver has ended, the next `messages` says so."""
        with contextlib.suppress(OSError, ValueError):
            if self.driver.stdin is not None:
                self.driver.stdin.write(json.dumps(message).encode() + b"\n")
                self.driver.stdin.flush()

    def _listen(self) -> None:
        if self.driver.stdout is not None:
            with contextlib.suppress(OSError, ValueError), self.driver.stdout as messages:
                for line in messages:
                    self._answers.put(json.loads(line))
        self._answers.put(None)

    def stop(self) -> None:
        """Close the driver's input, upon which it ends its tasks and itself; kill it if it does not."""
        with contextlib.suppress(OSError):
            if self.driver.stdin is not None:
                self.driver.stdin.close()
        try:
            self.driver.wait(0.1 if self._lost else LEAVING)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()
        self._listener.join(LEAVING)  # until the last process with the driver's stdout has ended


class Ray(RayLink):
    """A Ray cluster: runs as many instances at a time as its nodes have cores and memory for, at most `jobs`."""

    def __init__(
        self, settings: Settings, places: Path, address: str | None = None, command: Sequence[str] | None = None
    ) -> None:
        """`address`: auto, or HOST:PORT; None starts a Ray on this machine. `places`: a folder for the log."""
        needed()
        check_room(places)
        self.settings = settings
        self.running: set[str] = set()
        super().__init__(DRIVER, places / "ray.log", address)
        self.send(
            address=address,
            settings=dataclasses.asdict(settings),
            source=sources.of_answers(built=False),
            command=None if command is None else list(command),
        )

    def has_room(self) -> bool:
        """Whether fewer instances run than the cluster has room for, and fewer than `jobs`."""
        return self.ready and len(self.running) < min(self.room, self.settings.jobs or math.inf)

    def start(self, key: str, instance: SweepInstance, files: Mapping[str, str]) -> None:
        """Send an instance to the cluster, with the SHA-256 of its files."""
        self.running.add(key)
        paths = {"model": str(instance.model_path), "spec": str(instance.spec_path)}
        self.send(key=key, timeout=instance.timeout, files=dict(files), **paths)

    def poll(self, wait: float) -> list[tuple[str, Finished]]:
        """The instances that have finished; raises ClusterError if the cluster is lost or cannot run Vertex."""
        found: list[tuple[str, Finished]] = []
        for message in self.messages(wait):
            if message["key"] in self.running:
                self.running.remove(message["key"])
                if message["died"]:
                    finished = failure(message["answer"]["reason"], message["seconds"], died=True)
                else:
                    finished = Finished(message["answer"], message["counterexample"], message["seconds"])
                found.append((message["key"], finished))
        return found

    def stop(self) -> None:
        """End the driver, and forget what was running."""
        super().stop()
        self.running.clear()
