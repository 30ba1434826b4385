"""Processes that a test has an eye on."""

from __future__ import annotations

import time
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
