"""What a node of a Ray cluster runs for a shared search: a worker (worker.py) in a process of its own.

Invariant: the files are those that the search sent, in a temporary folder that is removed afterwards; the process ends
when this actor ends, for whatever reason. Lines are handed on as they are, except that the order to read the files
names those of this node. Nothing here imports torch or Ray.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from vertex_softmax.runs.processes import PARENT
from vertex_softmax.runs.shared.seals import opened, sealed
from vertex_softmax.runs.shared.workers import COMMAND
from vertex_softmax.runs.sweep.ray_worker import folder
from vertex_softmax.runs.sweep.runner import THREADS


class RayActor:
    """One worker of a search on a node."""

    def __init__(self, task: dict[str, Any], spec: bytes, *model: bytes) -> None:
        """`task`: the names of the files, the threads, and a command instead of COMMAND, or None.

        `model`: the bytes of the model and of its data files.
        """
        self._stack = contextlib.ExitStack()
        self._failed = ""
        try:
            home = self._stack.enter_context(folder())
            self.paths = {"model": home / "model" / task["names"][0], "spec": home / "spec" / Path(task["spec"]).name}
            for name, data in zip(task["names"], model, strict=True):
                _put(home / "model" / name, data)
            _put(self.paths["spec"], spec)
            self._errors = self._stack.enter_context((home / "stderr").open("w+b"))
            self._process = subprocess.Popen(
                task["command"] or COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **dict.fromkeys(THREADS, str(task["threads"])), PARENT: str(os.getpid())},
            )
        except OSError as error:
            place = error.filename or tempfile.gettempdir()
            self._failed = f"on the node {platform.node()}, {place}: {error.strerror}"

    def ask(self, line: str) -> dict[str, str]:
        """Hand an order on, and return the answer: its line, or why there is none."""
        if self._failed or self._process.stdin is None or self._process.stdout is None:
            return {"left": self._failed or "a pipe to a worker is missing"}
        order = opened(line)
        if order.get("do") == "load":
            line = sealed({**order, **{name: str(path) for name, path in self.paths.items()}})
        answer = b""
        with contextlib.suppress(OSError):
            self._process.stdin.write(line.encode(errors="surrogatepass") + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer.endswith(b"\n"):
            return {"left": f"the worker on the node {platform.node()} ended ({self._said()})"}
        return {"line": answer.decode(errors="replace")}

    def _said(self) -> str:
        """The end of what the process wrote to stderr."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit code {self._process.poll()}"


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
