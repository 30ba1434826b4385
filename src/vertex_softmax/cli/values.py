"""What numbers an option may be: each function returns its argument, or raises an error that names the option.

Invariant: what passes here ends nothing that it is handed to: torch's thread pool, a generator's seed, a timer, the
system's limits. typer's own `min` and `max` let NaN through, and say nothing of what infinity or 10^30 would do.
"""

from __future__ import annotations

import math

from vertex_softmax.foundation.errors import InvalidValueError

MOST_SECONDS = 1e7
"""Of a timeout: some four months. Timers of the system end at 9.2e9."""
MOST_SEED = 2**32 - 1
"""The largest that every generator takes, torch's and numpy's."""
MOST_THREADS = 512
"""More are not started: each has a stack, and torch ends the process where one cannot be made."""
MOST_GIB = 2**20
"""Of memory; more than any machine has."""
MOST_JOBS = 4096
"""Processes at a time."""
MOST_MINUTES = 1e6
MOST_COUNT = 2**31 - 1


def seconds(option: str, value: float) -> float:
    """A time: above 0, and no longer than anybody waits."""
    if not 0 < value <= MOST_SECONDS:
        raise InvalidValueError(f"{option} is {value}; it must be a number above 0 and at most {MOST_SECONDS:.0f}")
    return value


def seed(option: str, value: int) -> int:
    """A seed that every generator takes."""
    return count(option, value, 0, MOST_SEED)


def threads(option: str, value: int | None) -> int | None:
    """A number of threads, if one is given."""
    return None if value is None else count(option, value, 1, MOST_THREADS)


def gib(option: str, value: float | None) -> float | None:
    """An amount of memory, if one is given."""
    if value is not None and not 0 < value <= MOST_GIB:
        raise InvalidValueError(f"{option} is {value}; it must be a number of GiB above 0 and at most {MOST_GIB}")
    return value


def jobs(option: str, value: int | None) -> int | None:
    """A number of processes, if one is given."""
    return None if value is None else count(option, value, 1, MOST_JOBS)


def count(option: str, value: int, least: int, most: int = MOST_COUNT) -> int:
    """A whole number from `least` to `most`."""
    if not least <= value <= most:
        shown = str(value) if abs(value) < 10**30 else f"a number of {len(str(abs(value)))} digits"
        raise InvalidValueError(f"{option} is {shown}; it must be a whole number from {least} to {most}")
    return value


def number(option: str, value: float, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number from `least` to `most`."""
    if not math.isfinite(value) or not least <= value <= most:
        raise InvalidValueError(f"{option} is {value}; it must be a number from {least:g} to {most:g}")
    return value
