"""The process that uses Ray for a sweep: it reads orders as lines of JSON from stdin, and writes results to stdout.

Invariant: every order has one result, an answer or the reason why its process died; nothing is retried here. When stdin
is closed, because the sweep has ended in whatever way, all tasks are ended, and so is this process.

Files are sent by content: the bytes of a model are put into Ray's object store once, and nodes need no shared disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vertex_softmax.foundation.errors import ClusterError, VertexError
from vertex_softmax.foundation.files import read_whole
from vertex_softmax.graph.from_onnx.parts import LIMIT, external_files
from vertex_softmax.runs import machine
from vertex_softmax.runs.sweep import ray_worker

BEAT = 1.0
"""Seconds between two heartbeats."""
WAIT = 60.0
"""Seconds without any node that has room, after which the sweep ends; a node that comes back before that is used."""
LOOK = 0.02
"""Seconds to wait for an order or a result."""
STORE = 512 << 20
"""Bytes of the object store of a Ray that is started here."""
MODELS = 16
"""The most models that stay in the object store."""


def main(make: Callable[[Any, dict[str, Any], Any], RayConnection] | None = None) -> None:
    """Process orders until stdin is closed; `make`: makes of Ray and the first order what processes them."""
    messages = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints must not be taken for a message
    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    first = orders.get()
    if first is None:
        return

    def say(**message: Any) -> None:
        messages.write(json.dumps(message, allow_nan=False) + "\n")
        messages.flush()

    driver = None
    try:
        import ray

        driver = (make or Driver)(ray, first, say)
        driver.run(orders)
    except VertexError as error:
        say(unfit=str(error))
    except BrokenPipeError:  # the sweep has ended
        pass
    except Exception as error:
        say(unfit=f"Ray: {type(error).__name__}: {_first_line(error)}")
        raise
    finally:
        if driver is not None:
            driver.leave()


def _read(orders: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    orders.put(None)


class DiedError(Exception):
    """A worker of Ray died: its process was killed, or its node is gone."""


class RayConnection(ABC):
    """The connection to a cluster: what runs on it, the files it has, and the room that it has."""

    what = "an instance"
    """what runs on a node, in words"""

    def __init__(self, ray: Any, first: dict[str, Any], say: Any) -> None:
        self.ray, self.say = ray, say
        self.settings = first["settings"]
        self.running: dict[Any, str] = {}
        self.files: OrderedDict[str, tuple[list[str], list[Any]]] = OrderedDict()
        self.beaten = self.had_room = -float("inf")
        self.room = 0
        """how much there was room for at the last heartbeat"""
        self.address = self._connect(first["address"])
        self.node = ray.get_runtime_context().get_node_id()
        needs = {"num_cpus": self.settings["threads"], "num_gpus": int(self.settings["device"] != "cpu")}
        if self.settings["memory"] is not None:
            needs["memory"] = int(self.settings["memory"] * 2**30)
        self.options = needs
        """what a task or an actor asks Ray for"""
        self.needs = {"CPU": needs["num_cpus"], "GPU": needs["num_gpus"], "memory": needs.get("memory", 0)}
        if not self._room()[0]:
            raise ClusterError(
                f"no node of the Ray cluster at {self.address} has room for {self.what}, which needs {self._wanted()}"
            )

    @abstractmethod
    def run(self, orders: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        """Process orders until there are no more."""

    def _connect(self, address: str | None) -> str:
        """Connect to the cluster, or start a Ray on this machine if the address is None; the cluster's address."""
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address is None:
            options |= {"num_cpus": machine.cores(), "include_dashboard": False, "object_store_memory": STORE}
        try:
            found = self.ray.init(address=address or "local", **options)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            where = "on this machine" if address is None else f"at {address}"
            raise ClusterError(f"there is no Ray cluster {where}: {_first_line(error)}") from error
        return str(found.address_info["gcs_address"])

    def _wanted(self) -> str:
        """The resources that are needed, in words."""
        words = [f"{self.needs['CPU']} cores (--threads)"]
        words += ["a GPU (--device)"] * self.needs["GPU"]
        words += [] if self.settings["memory"] is None else [f"{self.settings['memory']:g} GiB (--memory)"]
        return ", ".join(words)

    def _stored(self, model: Path, files: dict[str, str]) -> tuple[list[str], list[Any]]:
        """The model and its external data files: their names in the model's folder, and references in Ray's store."""
        digest = files["model"] + files.get("data", "")
        if digest not in self.files:
            data = _read_as(model, files["model"])
            contents = {model.name: data, **_beside(model, data)}
            self.files[digest] = list(contents), [self.ray.put(content) for content in contents.values()]
            if len(self.files) > MODELS:
                self.files.popitem(last=False)
        self.files.move_to_end(digest)
        return self.files[digest]

    def read(self, path: Path, digest: str) -> bytes:
        """The bytes of a file, which have to have this SHA-256."""
        return _read_as(path, digest)

    def got(self, reference: Any) -> dict[str, Any]:
        """What a worker of Ray returned; raises DiedError if it died, and ClusterError if its node is unfit."""
        errors = self.ray.exceptions
        died = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.RayActorError,
            errors.LocalRayletDiedError,
            errors.ObjectLostError,
        )
        try:
            found: dict[str, Any] = self.ray.get(reference)
        except died as error:
            raise DiedError(f"the worker of Ray died ({type(error).__name__}: {_first_line(error)})") from error
        except errors.RayError as error:
            cause = getattr(error, "cause", None) or error
            raise ClusterError(
                f"a node of the Ray cluster at {self.address} cannot run Vertex ({type(cause).__name__}: "
                f"{_first_line(cause)}): every node needs the same Vertex, and its extra onnx"
            ) from error
        return found

    def _room(self) -> tuple[int, int]:
        """How many instances fit on the nodes at a time, and how many nodes there are."""
        alive = [node for node in self.ray.nodes() if node["Alive"]]
        if self.node not in [node["NodeID"] for node in alive]:
            raise ClusterError(f"the node of the Ray cluster at {self.address} that is used here is gone")
        wanted = {name: number for name, number in self.needs.items() if number}
        room = sum(min(int(node["Resources"].get(name, 0) // wanted[name]) for name in wanted) for node in alive)
        return room, len(alive)

    def _beat(self) -> None:
        """Send a heartbeat with the cluster's room, if it is time to; raise if there has been no room for too long."""
        now = time.monotonic()
        if now - self.beaten < BEAT:
            return
        self.beaten = now
        self.room, nodes = self._room()
        if self.room:
            self.had_room = now
        elif now - self.had_room > WAIT:
            raise ClusterError(f"no node of the Ray cluster at {self.address} has had room for {WAIT:g} s")
        self.say(room=self.room, nodes=nodes, address=self.address)

    def leave(self) -> None:
        """Cancel all tasks and disconnect; Ray ends those that do not react when this process ends."""
        for reference in self.running:
            self.ray.cancel(reference)
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=2.0)
        self.ray.shutdown()


class Driver(RayConnection):
    """The tasks of a sweep: one for each instance."""

    def __init__(self, ray: Any, first: dict[str, Any], say: Any) -> None:
        super().__init__(ray, first, say)
        self.source, self.command = first["source"], first["command"]
        self.work = ray.remote(ray_worker.work).options(max_retries=0, **self.options)

    def run(self, orders: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        """Process orders and send results until the end of the orders."""
        while True:
            self._beat()
            with contextlib.suppress(queue.Empty):
                while True:
                    order = orders.get(timeout=LOOK) if not self.running else orders.get_nowait()
                    if order is None:
                        return
                    self._begin(order)
            if self.running:
                ready, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=LOOK)
                for reference in ready:
                    key = self.running.pop(reference)
                    self.say(key=key, **self._result(reference))

    def _begin(self, order: dict[str, Any]) -> None:
        """Submit an order to Ray; a file that cannot be read, or has changed, is an error of the instance."""
        model, spec = Path(order["model"]), Path(order["spec"])
        try:
            names, references = self._stored(model, order["files"])
            data = _read_as(spec, order["files"]["spec"])
        except (OSError, ValueError) as error:
            self.say(key=order["key"], **_failed(str(error)))
            return
        task = {"model": order["model"], "spec": order["spec"], "timeout": order["timeout"], "names": names}
        task |= {"settings": self.settings, "source": self.source, "command": self.command}
        self.running[self.work.remote(task, data, *references)] = order["key"]

    def _result(self, reference: Any) -> dict[str, Any]:
        """What the worker returned, or why it died."""
        try:
            found = self.got(reference)
        except DiedError as error:
            return _failed(str(error), died=True)
        if "unfit" in found:
            raise ClusterError(found["unfit"])
        return found


def _failed(reason: str, died: bool = False) -> dict[str, Any]:
    return {"answer": {"status": "error", "reason": reason}, "counterexample": None, "seconds": 0.0, "died": died}


def _read_as(path: Path, digest: str) -> bytes:
    """The bytes of a file; raises unless they have this SHA-256, which the sweep has recorded."""
    data = read_whole(path, LIMIT, "it was read before")
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("the model or the property was changed while it was read")
    return data


def _beside(model: Path, data: bytes) -> dict[str, bytes]:
    """The model's external data files by name. Errors in them are left to `vertex verify`, which reports them."""
    found = {name: path for name, path in external_files(model, data).items() if not os.path.isabs(name)}
    return {os.path.normpath(name): read_whole(path, LIMIT, "a model's numbers") for name, path in found.items()}


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:300]


if __name__ == "__main__":
    main()
