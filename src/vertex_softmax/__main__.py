"""`python -m vertex_softmax` is the command `vertex`.

A process that was started with VERTEX_PARENT set to the id of its parent ends when that parent does, however it ends:
no computation outlives the sweep that asked for it. On Linux; elsewhere the variable says nothing.
"""

from __future__ import annotations

import os
import signal
import sys

PARENT = "VERTEX_PARENT"
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if str(os.getppid()) != parent:  # it ended before this process could ask to be told
        sys.exit(143)


if __name__ == "__main__":
    _end_with_parent()
    from vertex_softmax.cli import main

    main()
