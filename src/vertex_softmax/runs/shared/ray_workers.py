"""Workers of a shared search on a Ray cluster: as many as its nodes have cores and memory for, or as were asked for.

Invariant: a failure of Ray does not end this process (runs/sweep/ray.py). A worker whose node is lost has left; a
cluster that is lost is one clear error.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from vertex_softmax.runs.shared.task import SharedTask
from vertex_softmax.runs.shared.workers import Event
from vertex_softmax.runs.sweep.instances import SweepInstance
from vertex_softmax.runs.sweep.ray import RayLink, needed
from vertex_softmax.runs.sweep.runner import digests

RELAY = (sys.executable, "-P", "-m", "vertex_softmax.runs.shared.ray_relay")
KEPT = "with --journal the same command goes on where this one was"


class RayWorkers:
    """The actors of a search, at the other end of the process that uses Ray."""

    def __init__(self, task: SharedTask, workers: int | None, address: str | None) -> None:
        """`workers`: how many at most. `address`: auto, or HOST:PORT; None starts a Ray on this machine."""
        needed()
        self._folder = tempfile.TemporaryDirectory(prefix="vertex-ray-")
        self._link = RayLink(RELAY, Path(self._folder.name) / "ray.log", address, KEPT)
        model, spec = Path(task.model), Path(task.spec)
        self._link.send(
            address=address,
            settings={"threads": task.threads, "device": task.device, "memory": task.memory},
            workers=workers,
            model=task.model,
            spec=task.spec,
            files=digests(SweepInstance(task.model, task.spec, 0.0, model, spec)),
            command=None,
        )

    @property
    def note(self) -> str:
        """Where the cluster is, and its room."""
        return self._link.note

    def poll(self, wait: float) -> list[Event]:
        """What happened to the workers; raises ClusterError if the cluster is lost."""
        found = []
        for message in self._link.messages(wait):
            if "joined" in message:
                found.append(Event(message["joined"]))
            elif "left" in message:
                found.append(Event(message["left"], left=message["reason"]))
            else:
                found.append(Event(message["worker"], line=message["line"]))
        return found

    def send(self, worker: str, line: str) -> None:
        """Send an order to a worker."""
        self._link.send(worker=worker, line=line)

    def drop(self, worker: str, reason: str) -> None:
        """End a worker."""
        self._link.send(worker=worker, drop=reason)

    def stop(self) -> None:
        """End the process that uses Ray, and with it all workers."""
        self._link.stop()
        self._folder.cleanup()
