"""The limit of this process's memory, which --memory sets, and what of it is left for bounds.

Invariant: the system refuses what goes beyond the limit; before that, bounds that are given what is left
(`Memory.total`) refuse what may go beyond it.
"""

from __future__ import annotations

from pathlib import Path

from vertex_softmax.foundation.errors import InvalidValueError

SPARE = 1 << 28
"""Bytes that --memory must leave beyond the memory in use before the files are read."""
FILES = 1 << 25
"""Bytes of files, such as libraries, that may still be mapped into memory; the system's limit does not count them."""


def limit_memory(gib: float) -> None:
    """Limit the memory of this process; allocations beyond it fail."""
    try:
        import resource
    except ImportError as error:
        raise InvalidValueError("--memory is not available on this system") from error
    files = _in_use("RssFile:") + FILES
    most, used = int(gib * 2**30) - files, _in_use("VmData:")
    if most < used + SPARE:
        raise InvalidValueError(
            f"--memory is {gib:g} GiB, and {(used + files) / 2**30:.2f} are in use before anything is read: give "
            f"{(used + files + SPARE) / 2**30 + 0.005:.2f} or more"
        )
    _, ceiling = resource.getrlimit(resource.RLIMIT_DATA)
    if ceiling == resource.RLIM_INFINITY or most <= ceiling:  # else the system's own limit is the smaller one
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def memory_left() -> int | None:
    """Bytes that this process may still ask for under the limit that it has; None if it has none."""
    try:
        import resource
    except ImportError:
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if most == resource.RLIM_INFINITY else max(1, most - _in_use("VmData:"))


def _in_use(name: str) -> int:
    """The bytes in a field of the process's status; 0 if the system does not provide it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
