"""What this machine has: cores and memory that this process may use. Where the system does not tell, None."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

SYSTEM = Path("/")
"""Where /proc and /sys are."""
NO_LIMIT = 1 << 60
"""From here on a number of bytes in a control group means that there is no limit."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, or without passing the limit of a control group."""
    found = [_fields(SYSTEM / "proc/meminfo").get("MemAvailable:")]
    known = [*(kib * 1024 for kib in found if kib is not None), *_left_in_groups()]
    return max(0, min(known)) if known else None


def memory_in_use(pid: int) -> int:
    """Bytes of memory that a process holds; 0 if it is gone or the system does not tell."""
    try:
        pages = int((SYSTEM / f"proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _left_in_groups() -> Iterator[int]:
    """What each control group above this process leaves; files that can be dropped from memory count as left."""
    for folder, limit, used, dropped in _groups():
        try:
            most, now = int((folder / limit).read_text()), int((folder / used).read_text())
        except (OSError, ValueError):  # `max`, or no such group here
            continue
        if most < NO_LIMIT:
            yield most - now + _fields(folder / "memory.stat").get(dropped, 0)


def _groups() -> Iterator[tuple[Path, str, str, str]]:
    """Folders of control groups, versions 1 and 2, with the names of limit, use and what can be dropped."""
    try:
        lines = (SYSTEM / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, name = line.split(":", 2)
        path = PurePosixPath(name.lstrip("/"))
        for group in (path, *path.parents):
            if not kinds:
                yield SYSTEM / "sys/fs/cgroup" / group, "memory.max", "memory.current", "inactive_file"
            elif "memory" in kinds.split(","):
                folder = SYSTEM / "sys/fs/cgroup/memory" / group
                yield folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def _fields(path: Path) -> dict[str, int]:
    """The lines `name number` of a file; none if it is not there."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
