"""Checks of the numbers given by options: each function returns its argument, or raises an error that names the option.

Invariant: a number that passes is safe for whatever it is used for: torch's thread pool, the seed of a generator, a
timer, the limits of the system. (typer's own `min` and `max` accept NaN, and often infinity and 10^30.)
"""

from __future__ import annotations

import math
from pathlib import Path

from vertex_softmax.cli.names import NORMS
from vertex_softmax.foundation.errors import InvalidValueError

MOST_SECONDS = 1e7
"""The longest timeout: about four months. The timers of the system end at 9.2e9 seconds."""
MOST_SEED = 2**32 - 1
"""The largest seed that the generators of both torch and numpy accept."""
MOST_THREADS = 512
"""The most threads: each has a stack, and torch ends the process if one cannot be created."""
MOST_GIB = 2**20
"""The largest memory limit: more than any machine has."""
MOST_JOBS = 4096
"""The most processes at a time."""
MOST_MINUTES = 1e6
MOST_COUNT = 2**31 - 1


def seconds(option: str, value: float) -> float:
    """A time in seconds: above 0, at most MOST_SECONDS."""
    if not 0 < value <= MOST_SECONDS:
        raise InvalidValueError(f"{option} is {value}; it must be a number above 0 and at most {MOST_SECONDS:.0f}")
    return value


def seed(option: str, value: int) -> int:
    """A seed that every generator accepts."""
    return count(option, value, 0, MOST_SEED)


def threads(option: str, value: int | None) -> int | None:
    """A number of threads, or None if the option is not given."""
    return None if value is None else count(option, value, 1, MOST_THREADS)


def gib(option: str, value: float | None) -> float | None:
    """An amount of memory in GiB, or None if the option is not given."""
    if value is not None and not 0 < value <= MOST_GIB:
        raise InvalidValueError(f"{option} is {value}; it must be a number of GiB above 0 and at most {MOST_GIB}")
    return value


def jobs(option: str, value: int | None) -> int | None:
    """A number of processes, or None if the option is not given."""
    return None if value is None else count(option, value, 1, MOST_JOBS)


def count(option: str, value: int, least: int, most: int = MOST_COUNT) -> int:
    """An integer from `least` to `most`."""
    if not least <= value <= most:
        shown = str(value) if abs(value) < 10**30 else f"a number of {len(str(abs(value)))} digits"
        raise InvalidValueError(f"{option} is {shown}; it must be a whole number from {least} to {most}")
    return value


def number(option: str, value: float, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number from `least` to `most`."""
    if not math.isfinite(value) or not least <= value <= most:
        raise InvalidValueError(f"{option} is {value}; it must be a number from {least:g} to {most:g}")
    return value


def norm(option: str, text: str | None) -> float:
    """The order of a norm: 1, 2 or inf; inf if the option is not given."""
    if text is None:
        return math.inf
    if text.strip() not in NORMS:
        raise InvalidValueError(f"{option} is {text!r}; the norms are inf, 2 and 1")
    return float(text)


def positions(option: str, text: str) -> tuple[int, ...] | None:
    """Positions with commas between them, each once and in order; None for `all`."""
    if text.strip() == "all":
        return None
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise InvalidValueError(
            f"{option} is {text!r}; give positions with commas between them, such as 1,3, or all"
        ) from error
    for position in found:
        count(option, position, -MOST_COUNT)
    return found


def shape(option: str, text: str) -> tuple[int, ...]:
    """The shape of an array, whole numbers from 1 with commas between them."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidValueError(f"{option} is {text!r}; give a shape such as 1,28,28") from error
    for size in found:
        count(option, size, 1)
    return found


def patch(option: str, text: str) -> tuple[int, int]:
    """The height and the width of a patch in pixels, such as 4x4."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise InvalidValueError(f"{option} is {text!r}; give the height and the width of a patch in pixels: 4x4")
    return count(option, int(parts[0]), 1), count(option, int(parts[1]), 1)


def path(option: str, text: str) -> Path:
    """The path of a file, which need not be there; raises for what no file can be called, as with a zero byte in it."""
    found = Path(text)
    try:
        found.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"{option} is {text[:200]!r}, which cannot be read: {error}") from error
    return found
