"""A process that has imported torch and forks once for each instance: `vertex verify` without the time to start.

Invariant: nothing passes from one instance to the next. This process imports modules, and neither reads a model nor
computes anything; every instance runs in a fork of it, a process of its own, which reads its files itself and ends with
the exit code of its answer. If a fork dies in whatever way, this process is as it was before. It forks only while it
has one thread, so that a fork never inherits a lock that another thread holds; onnxruntime, which starts a thread when
it is imported, is left to the forks.

Orders are lines of JSON on stdin, reports are lines of JSON on stdout (the other end is runs/sweep/workers.py). When
stdin is closed, or the sweep ends in whatever way, so does this process, and with it the fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from vertex_softmax.runs.processes import PARENT, end_with_parent

IMPORTED = (
    "torch",
    "onnx",
    "onnx.defs",
    "onnx.helper",
    "onnx.inliner",
    "onnx.numpy_helper",
    "google.protobuf.message",
    "typer._adapters",
    "vertex_softmax.cli.main",
    "vertex_softmax.search.verify_files",
)
"""What every instance imports; what is not installed is left to the instance, which says so."""
FOR_FORKS = (signal.SIGTERM, signal.SIGINT)
"""Signals to the process group that are for the fork; this process blocks them, so that none is lost after a fork."""
TASKS = Path("/proc/self/task")


def main() -> None:
    """Serve until stdin is closed."""
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, FOR_FORKS)
    orders, reports = os.dup(0), os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(quiet, 1)  # a module that prints does not disturb the reports
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that a fork's collections do not copy the memory that it shares with this process
    with open(orders, "rb") as lines, open(reports, "wb", buffering=0) as said:
        if len(os.listdir(TASKS)) != 1:
            _say(said, unfit=True)
            return
        _say(said, ready=True)
        while line := lines.readline():
            order = json.loads(line)
            process = os.fork()
            if process == 0:
                _run(order, (orders, reports))
            _say(said, order=order["order"], pid=process)
            _, status = os.waitpid(process, 0)
            _say(said, order=order["order"], code=os.waitstatus_to_exitcode(status))


def _say(reports: Any, **report: Any) -> None:
    """Write one report: a single write of a short line, which a pipe takes as a whole."""
    reports.write(json.dumps(report).encode() + b"\n")


def _run(order: dict[str, Any], pipes: tuple[int, ...]) -> NoReturn:
    """Be the process of one instance: the command's arguments, and the folder for what it prints. Never returns."""
    code = 1
    try:
        os.environ[PARENT] = str(os.getppid())
        end_with_parent()
        for name, number in (("stdout", 1), ("stderr", 2)):
            file = os.open(Path(order["folder"]) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, number)
            os.close(file)
        for pipe in pipes:
            os.close(pipe)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_FORKS)  # those that came since the fork arrive now
        sys.argv = ["vertex", "verify", *order["arguments"]]
        from vertex_softmax.cli.main import main as vertex

        vertex()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        if sys.exc_info()[0] is not None:  # a crash, which is not an answer
            traceback.print_exc()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
