"""The protocol between a process of `vertex verify` and the sweep that started it: exit codes, and ending together.

Only the standard library is imported here: `python -m vertex_softmax` imports this module before anything else.
"""

from __future__ import annotations

import os
import signal
import sys

CODES = {"unsat": 0, "sat": 10, "error": 2, "unknown": 3, "timeout": 4}
"""The exit code for each answer."""
PARENT = "VERTEX_PARENT"
"""The environment variable with the process id of the sweep that started a process."""
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ask the system to end this process when the parent named by VERTEX_PARENT ends; on Linux only."""
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if str(os.getppid()) != parent:  # the parent ended before the request was made
        sys.exit(143)
