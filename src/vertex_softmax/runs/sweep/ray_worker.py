"""The task that a node of a Ray cluster runs for an instance: `vertex verify` in a process of its own.

Invariant: the files are those that the sweep sent, in a temporary folder that is removed afterwards; the process ends
when this worker ends, for whatever reason. Nothing here imports torch or Ray.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs import sources
from vertex_softmax.runs.sweep.runner import PAUSE, Finished, Process, Settings, check_room

PREFIX = "vertex-sweep-"
OLD = 60.0
"""Seconds after which a folder without a lock is removed: its worker was killed."""


def work(task: dict[str, Any], spec: bytes, *model: bytes) -> dict[str, Any]:
    """Run one instance. The result as plain JSON, or `unfit` with the reason why this node cannot run any instance.

    `model` has the bytes of the files task["names"]: the model itself, and its external data files.
    """
    node = platform.node()
    if sources.of_answers(built=False) != task["source"]:
        return {"unfit": f"the node {node} has other sources of Vertex than this sweep; install the same version there"}
    try:
        with folder() as home:
            for name, data in zip(task["names"], model, strict=True):
                _put(home / "model" / name, data)
            paths = {"model": home / "model" / task["names"][0], "spec": home / "spec" / Path(task["spec"]).name}
            _put(paths["spec"], spec)
            run = home / "run"
            run.mkdir()
            finished = _run(paths, task, run)
            if finished.failed:
                check_room(home)
    except OSError as error:
        return {"unfit": f"on the node {node}, {error.filename or tempfile.gettempdir()}: {error.strerror}; make room"}
    except InvalidValueError as error:
        return {"unfit": f"on the node {node}, {error}"}
    reason = str(finished.answer["reason"])
    for what, path in paths.items():  # the user knows the paths on his machine, not those on this node
        reason = reason.replace(str(path), task[what]).replace(str(path.parent), str(Path(task[what]).parent))
    if finished.died:
        reason += f" (on the node {node})"
    return {
        "answer": {**finished.answer, "reason": reason},
        "counterexample": finished.counterexample,
        "seconds": finished.seconds,
        "died": finished.died,
    }


def _put(path: Path, data: bytes) -> None:
    """Write a file, and make its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _run(paths: dict[str, Path], task: dict[str, Any], working_folder: Path) -> Finished:
    """Run the process until it has finished; if this worker is interrupted, the process is ended."""
    settings = Settings(**task["settings"])
    process = Process(paths["model"], paths["spec"], task["timeout"], settings, working_folder, task["command"])
    try:
        while (finished := process.poll()) is None:
            time.sleep(PAUSE)
    finally:
        process.stop(force=True)
    return finished


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder that is locked while it is used, and removed afterwards; those of killed workers go too."""
    base = Path(tempfile.gettempdir())
    for leftover in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > OLD:
                with (leftover / "held").open("rb") as file:
                    _lock(file)
                    shutil.rmtree(leftover)
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    try:
        with (path / "held").open("wb") as file:
            _lock(file)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _lock(file: IO[bytes]) -> None:
    """Lock a file; raises OSError if another process has locked it."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
