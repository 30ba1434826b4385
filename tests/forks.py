"""Processes that have read the package when they begin: forked from one that has imported it and done nothing else.

For tests of signals, exit codes and what is left behind, where a process is needed and its start is not what is tested.
Each is a process of its own, with its own output and working folder. Where the start counts, use `subprocess`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing import get_context as _get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
READ = (
    "vertex_softmax.cli.main",
    "vertex_softmax.cli.check",
    "vertex_softmax.cli.sweep",
    "vertex_softmax.cli.verify",
    "vertex_softmax.graph.from_onnx.importer",
    "vertex_softmax.runs.report.run_page",
    "vertex_softmax.runs.sweep.sweep",
    "vertex_softmax.search.cascade",
    "onnx",
    "onnxruntime",
)


def context() -> Any:
    """The context of `multiprocessing` whose processes begin so."""
    found = _get_context("forkserver")
    found.set_forkserver_preload(list(READ))
    with contextlib.chdir(ROOT):
        forkserver.ensure_running()
    return found


class Forked:
    """`do(*given)` in a process in the folder, which ends as `sys.exit` says; what it writes is in .stdout, .stderr."""

    def __init__(self, folder: Path, do: Callable[..., None], *given: Any) -> None:
        self._files = [folder / f".{os.getpid()}-{time.monotonic_ns()}.{name}" for name in ("stdout", "stderr")]
        self._process = context().Process(target=_begin, args=(folder, self._files, do, given))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, −n where signal n ended it; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """What it wrote, once it has ended."""
        self._process.join(timeout)
        if self.poll() is None:
            self._process.kill()
            raise TimeoutError(f"process {self.pid} did not end within {timeout} s")
        told = tuple(path.read_text() if path.exists() else "" for path in self._files)
        for path in self._files:
            path.unlink(missing_ok=True)
        return told[0], told[1]

    @property
    def returncode(self) -> int | None:
        return self.poll()


def _begin(folder: Path, files: list[Path], do: Callable[..., None], given: tuple[Any, ...]) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(folder)
    for number, path in zip((1, 2), files, strict=True):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    do(*given)


def vertex(*arguments: str | Path) -> None:
    """The command itself."""
    from vertex_softmax.cli.main import main

    sys.argv = ["vertex", *map(str, arguments)]
    main()
