"""The cores and the memory that this process may use; None where the system does not provide the number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SYSTEM = Path("/")
"""The root of /proc and /sys; tests replace it."""
NO_LIMIT = 1 << 60
"""A limit of at least this many bytes in a control group means that there is no limit."""


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int | None:
    """The bytes that can be allocated without swapping and without exceeding the limit of a control group."""
    found = [_fields(SYSTEM / "proc/meminfo").get("MemAvailable:")]
    known = [*(kib * 1024 for kib in found if kib is not None), *_left_in_groups()]
    return max(0, min(known)) if known else None


def memory_in_use(pid: int) -> int:
    """The resident memory of a process in bytes; 0 if the process has ended or the system does not provide it."""
    try:
        pages = int((SYSTEM / f"proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _left_in_groups() -> Iterator[int]:
    """The bytes that each control group of this process leaves; cached files that can be dropped count as free."""
    for group in _groups():
        try:
            most, now = int((group.folder / group.limit).read_text()), int((group.folder / group.used).read_text())
        except (OSError, ValueError):  # the limit is `max`, or there is no such group
            continue
        if most < NO_LIMIT:
            yield most - now + _fields(group.folder / "memory.stat").get(group.droppable, 0)


@dataclass(frozen=True, kw_only=True)
class _ControlGroup:
    """A control group of Linux, and the names of its files and fields about memory."""

    folder: Path
    limit: str
    """the file with the limit in bytes"""
    used: str
    """the file with the bytes in use"""
    droppable: str
    """the field of memory.stat with the bytes of cached files that can be dropped"""


def _groups() -> Iterator[_ControlGroup]:
    """The control groups, versions 1 and 2, that this process belongs to, from the innermost outwards."""
    try:
        lines = (SYSTEM / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, name = line.split(":", 2)
        path = PurePosixPath(name.lstrip("/"))
        for group in (path, *path.parents):
            if not kinds:
                yield _ControlGroup(
                    folder=SYSTEM / "sys/fs/cgroup" / group,
                    limit="memory.max",
                    used="memory.current",
                    droppable="inactive_file",
                )
            elif "memory" in kinds.split(","):
                yield _ControlGroup(
                    folder=SYSTEM / "sys/fs/cgroup/memory" / group,
                    limit="memory.limit_in_bytes",
                    used="memory.usage_in_bytes",
                    droppable="total_inactive_file",
                )


def _fields(path: Path) -> dict[str, int]:
    """The lines `name number` of a file; empty if the file does not exist."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
