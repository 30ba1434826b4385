"""What a node of a Ray cluster does for an instance: `vertex verify` in a process of its own, exactly as at home.

Invariant: files are those that the sweep sent, in a folder of this node alone that is removed afterwards; the process
ends with this worker, however that ends. Nothing here imports torch, or Ray.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs import sources
from vertex_softmax.runs.sweep.runner import PAUSE, Finished, Process, Settings, check_room

PREFIX = "vertex-sweep-"
OLD = 60.0
"""Seconds after which a folder that nobody holds is removed: its worker was killed."""


def work(task: dict[str, Any], spec: bytes, *model: bytes) -> dict[str, Any]:
    """Run one instance; what became of it as plain JSON, or `unfit`: why this node cannot run any.

    `model` has the bytes of the files task["names"]: the model itself, and others with its numbers.
    """
    node = platform.node()
    if sources.of_answers(built=False) != task["source"]:
        return {"unfit": f"the node {node} has other sources of Vertex than this sweep; install the same version there"}
    try:
        with folder() as place:
            for name, data in zip(task["names"], model, strict=True):
                _put(place / "model" / name, data)
            paths = {"model": place / "model" / task["names"][0], "spec": place / "spec" / Path(task["spec"]).name}
            _put(paths["spec"], spec)
            run = place / "run"
            run.mkdir()
            finished = _run(paths, task, run)
            if finished.failed:
                check_room(place)
    except OSError as error:
        return {"unfit": f"on the node {node}, {error.filename or tempfile.gettempdir()}: {error.strerror}; make room"}
    except InvalidValueError as error:
        return {"unfit": f"on the node {node}, {error}"}
    reason = str(finished.answer["reason"])
    for what, path in paths.items():  # as it would be said at home
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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _run(paths: dict[str, Path], task: dict[str, Any], place: Path) -> Finished:
    """Until it has finished; if this is interrupted, the process is ended."""
    settings = Settings(**task["settings"])
    process = Process(paths["model"], paths["spec"], task["timeout"], settings, place, task["command"])
    try:
        while (finished := process.poll()) is None:
            time.sleep(PAUSE)
    finally:
        process.stop(force=True)
    return finished


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder that is held while it is used, and removed afterwards; those of killed workers are removed too."""
    base = Path(tempfile.gettempdir())
    for left in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > OLD:
                with (left / "held").open("rb") as file:
                    _hold(file)
                    shutil.rmtree(left)
    place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    try:
        with (place / "held").open("wb") as file:
            _hold(file)
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _hold(file: Any) -> None:
    """Raises OSError if another process holds it."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
