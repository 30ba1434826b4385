"""The ops by name."""

from __future__ import annotations

from typing import TypeVar

from vertex_softmax.ops.contract import Op

OPS: dict[str, type[Op]] = {}
T = TypeVar("T", bound=type[Op])


def register(cls: T) -> T:
    """Make an op known by its class name; the contract test then tries it."""
    OPS[cls.__name__] = cls
    return cls
