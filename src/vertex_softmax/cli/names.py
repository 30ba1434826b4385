"""The names that options accept, for the shell's completion.

The lists are repeated here because importing the registries takes seconds; a test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

METHODS = ("ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint", "bab")
CASCADE = tuple(dict.fromkeys(("attack", "crown", "joint", "bab", *METHODS)))
"""The values of --method of `vertex verify`: how far the cascade goes, or a single method."""
DATA_SETS = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar10-gray")
DEVICES = ("cpu", "cuda")
NORMS = ("inf", "2", "1")


def one_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """A completion function for one of the names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def some_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """A completion function for a list of names with commas between them; names that are given are not repeated."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in given]

    return complete
