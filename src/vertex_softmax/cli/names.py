"""What may be written on the command line, for the shell's completion: names alone, without what they stand for.

The lists are kept here too since reading the registries takes seconds; a test holds them against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

METHODS = ("ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint", "bab")
CASCADE = tuple(dict.fromkeys(("attack", "crown", "joint", "bab", *METHODS)))
"""What `vertex verify` takes: how far to go, or one method."""
DATA_SETS = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar10-gray")
DEVICES = ("cpu", "cuda")


def one_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Completes one of the names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def some_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Completes the last of several names with commas between them; each comes once."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in given]

    return complete
