"""The process that uses Ray for a shared search: it hands lines on between the search and the actors on the nodes.

Invariant: every line has one answer, or its worker is reported to have left; nothing is retried here. When stdin is
closed, because the search has ended in whatever way, all actors are ended, and so is this process.
"""

from __future__ import annotations

import contextlib
import math
import queue
from pathlib import Path
from typing import Any

from vertex_softmax.foundation.errors import ClusterError
from vertex_softmax.runs.shared.ray_actor import RayActor
from vertex_softmax.runs.sweep import ray_driver
from vertex_softmax.runs.sweep.ray_driver import LOOK, DiedError, RayConnection


class Relay(RayConnection):
    """The actors of a search: as many as there is room for, or as were asked for."""

    what = "a worker"

    def __init__(self, ray: Any, first: dict[str, Any], say: Any) -> None:
        super().__init__(ray, first, say)
        self.first, self.most = first, first["workers"] or math.inf
        self.actors: dict[str, Any] = {}
        self.begun = 0

    def run(self, orders: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        """Hand lines on until the end of the orders."""
        while True:
            self._beat()
            self._fill()
            with contextlib.suppress(queue.Empty):
                while True:
                    order = orders.get(timeout=LOOK) if not self.running else orders.get_nowait()
                    if order is None:
                        return
                    self._begin(order)
            if self.running:
                ready, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=LOOK)
                for reference in ready:
                    name = self.running.pop(reference, None)
                    if name is not None:  # else its actor has left, with an answer that was ready before
                        self._ended(name, reference)

    def _fill(self) -> None:
        """Start an actor wherever there is room for one."""
        while len(self.actors) < min(self.room, self.most):
            try:
                names, references = self._stored(Path(self.first["model"]), self.first["files"])
                spec = self.read(Path(self.first["spec"]), self.first["files"]["spec"])
            except (OSError, ValueError) as error:
                raise ClusterError(f"the files cannot be sent to the cluster: {error}") from error
            self.begun += 1
            name = f"worker {self.begun} of Ray"
            task = {"names": names, "spec": self.first["spec"], "threads": self.settings["threads"]}
            actor = self.ray.remote(RayActor).options(max_restarts=0, max_task_retries=0, **self.options)
            self.actors[name] = actor.remote({**task, "command": self.first["command"]}, spec, *references)
            self.say(joined=name)

    def _begin(self, order: dict[str, Any]) -> None:
        name = order["worker"]
        if name not in self.actors:
            return
        if "drop" in order:
            self._leave(name, order["drop"])
        else:
            self.running[self.actors[name].ask.remote(order["line"])] = name

    def _ended(self, name: str, reference: Any) -> None:
        try:
            found = self.got(reference)
        except DiedError as error:
            found = {"left": str(error)}
        if name not in self.actors:
            return
        if "left" in found:
            self._leave(name, found["left"])
        else:
            self.say(worker=name, line=found["line"])

    def _leave(self, name: str, reason: str) -> None:
        self.ray.kill(self.actors.pop(name))
        self.running = {reference: who for reference, who in self.running.items() if who != name}
        self.say(left=name, reason=reason)

    def leave(self) -> None:
        """End all actors and disconnect."""
        for actor in self.actors.values():
            self.ray.kill(actor)
        self.running.clear()
        super().leave()


if __name__ == "__main__":
    ray_driver.main(Relay)
