"""A process that has imported what is slow to import, none of it ours, and forks once for every run of pytest.

It reads one JSON object per line, {"arguments", "environment", "log", "seconds"}, and answers with one, {"code"}: the
exit status of that run, negative for a signal, null where it was not done in time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

HEAVY = ("numpy", "torch", "torch.export", "flint", "hypothesis.strategies", "onnx", "sklearn", "safetensors", "pytest")


def run(arguments: list[str], environment: dict[str, str], log: str) -> int:
    """In the child: pytest, its output in a file."""
    os.setpgid(0, 0)
    with Path(log).open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    import pytest

    return int(pytest.main(arguments))


def waited(child: int, seconds: float) -> int | None:
    """The child's exit status; after so many seconds it is ended, with all that it started."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main() -> None:
    """Serve until the input ends."""
    for name in HEAVY:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(name)
    ours = [name for name in sys.modules if name.split(".")[0] == "vertex_softmax"]
    if ours:
        raise RuntimeError(f"{ours[0]} was imported before the fork")
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = run(asked["arguments"], asked["environment"], asked["log"])
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        try:
            print(json.dumps({"code": waited(child, asked["seconds"])}), flush=True)
        except BrokenPipeError:  # whoever asked has ended
            os._exit(1)


if __name__ == "__main__":
    main()
