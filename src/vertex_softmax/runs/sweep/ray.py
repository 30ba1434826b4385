"""Instances on a Ray cluster: the sweep's end of it.

Invariant: nothing that happens to Ray happens to the sweep. Ray ends the process that uses it when its cluster is gone,
so that is a process of its own (`ray_driver`), and this one talks with it in lines of JSON. Whatever ends the
driver, or keeps it silent, is one clear error; what is finished is in the journal by then.

Ray itself never tries anything twice: the sweep does, and reports it.
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
"""Seconds until the cluster has to answer for the first time."""
SILENCE = 40.0
"""Seconds without a sign of life after which the cluster is taken for gone; the driver gives one every second."""
LEAVING = 15.0
"""Seconds for the driver to end what runs and to leave."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's switch for a Ray of this machine alone: it listens on loopback, where nobody else can reach it."""
KEPT = "what is finished is kept, and the same command goes on from there"


def needed() -> None:
    """Ray is installed, or an error says how to."""
    if find_spec("ray") is None:
        raise MissingDependencyError(
            "ray is not installed, and --runner ray needs it: pip install 'vertex-softmax[ray]'"
        )


class Ray:
    """A Ray cluster: as many instances at a time as its nodes have cores (and memory) for, or `jobs` of them."""

    def __init__(
        self, settings: Settings, places: Path, address: str | None = None, command: Sequence[str] | None = None
    ) -> None:
        """`address`: auto, or HOST:PORT; None starts a Ray of this machine alone. `places` gets the driver's log."""
        needed()
        check_room(places)
        self.settings, self.address = settings, address
        self.log = places / "ray.log"
        self.running: set[str] = set()
        self.room = 0
        self.note = ""
        self.heard = time.monotonic()
        self.ready = False
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._unfit: ClusterError | None = None
        self._lost = False
        with self.log.open("wb") as log:
            self.driver = subprocess.Popen(
                DRIVER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # an interrupt from the keyboard reaches the sweep alone
                env={**os.environ, **QUIET, **(ALONE if address is None else {})},
            )
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()
        self._say(
            address=address,
            settings=dataclasses.asdict(settings),
            source=sources.of_answers(built=False),
            command=None if command is None else list(command),
        )

    def has_room(self) -> bool:
        """Fewer run than the cluster, or `jobs`, can take."""
        return self.ready and len(self.running) < min(self.room, self.settings.jobs or math.inf)

    def start(self, key: str, instance: SweepInstance, files: Mapping[str, str]) -> None:
        """Hand it to the cluster, with the digests by which files travel."""
        self.running.add(key)
        paths = {"model": str(instance.model_path), "spec": str(instance.spec_path)}
        self._say(key=key, timeout=instance.timeout, files=dict(files), **paths)

    def poll(self, wait: float) -> list[tuple[str, Finished]]:
        """What has finished; raises ClusterError if the cluster is gone or cannot do it."""
        if self._unfit is not None:
            raise self._unfit
        found: list[tuple[str, Finished]] = []
        with contextlib.suppress(queue.Empty):
            self._take(self._answers.get(timeout=wait), found)
            while True:
                self._take(self._answers.get_nowait(), found)
        silent = time.monotonic() - self.heard
        if self._unfit is None and silent > (SILENCE if self.ready else STARTING):
            self._unfit = self._gone(f"has not answered for {silent:.0f} s")
        if self._unfit is not None and not found:
            raise self._unfit
        return found

    def _take(self, message: dict[str, Any] | None, found: list[tuple[str, Finished]]) -> None:
        """One message of the driver; None is its end."""
        self.heard = time.monotonic()
        if message is None:
            self._unfit = self._unfit or self._gone("is gone")
        elif "unfit" in message:
            self._unfit = self._unfit or ClusterError(f"{message['unfit']}; {KEPT}")
        elif "room" in message:
            self.ready, self.room = True, message["room"]
            nodes = f"{message['nodes']} node{'s' * (message['nodes'] != 1)}"
            self.note = f"Ray at {message['address']}: {nodes}, room for {self.room} at a time"
        elif message["key"] in self.running:
            self.running.remove(message["key"])
            if message["died"]:
                finished = failure(message["answer"]["reason"], message["seconds"], died=True)
            else:
                finished = Finished(message["answer"], message["counterexample"], message["seconds"])
            found.append((message["key"], finished))

    def _gone(self, what: str) -> ClusterError:
        """With the last that the driver said."""
        self._lost = True
        said = ""
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            said = f" ({lines[-1][:300]})" if lines else ""
        where = "on this machine" if self.address is None else f"at {self.address}"
        return ClusterError(f"the Ray cluster {where} {what}{said}; {KEPT}")

    def _say(self, **message: Any) -> None:
        """To the driver; if it is gone, the next look says so."""
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
        """The driver ends what runs when nobody talks to it any more; what of it is still there then is killed."""
        with contextlib.suppress(OSError):
            if self.driver.stdin is not None:
                self.driver.stdin.close()
        try:
            self.driver.wait(0.1 if self._lost else LEAVING)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()
        self._ear.join(LEAVING)  # until the last that holds the driver's stdout is gone
        self.running.clear()
