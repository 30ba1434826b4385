"""Processes that a test has an eye on, and limits that it sets for its own."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def gone(pid: int) -> bool:
    """The process ends within two seconds; what nobody has waited for yet does not count as running."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file may grow beyond this size: the system itself cuts the write and then refuses, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
