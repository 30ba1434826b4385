"""Callbacks by which long computations report their progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of the stage, how many of its steps are done, and how many there are."""


def silent(_what: str, _done: int, _total: int) -> None:
    """Ignore the progress."""
