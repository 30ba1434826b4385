"""Choices of the forward proof: every choice is sound, so that they may come from anywhere.

When a certificate is made each choice is what looks better, and it is written down; when it is checked, the choices
are those of the file. So that a last bit, which another machine rounds differently, does not make another proof of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..file import File, Rejected
from ..rounding import Array, ProvedInterval

Pick = Callable[[str, NDArray[np.bool_]], NDArray[np.bool_]]
"""A choice of an op: its name and what looks better → what is taken, of the same shape."""
Lines = tuple[Array, ...]
"""Of a curve: the seven arrays of network.Known.lines."""


class Choices(Protocol):
    """Where the choices of all nodes come from."""

    def pick(self, number: int, name: str, better: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """What is taken at a node: an array of the shape of `better`."""

    def lines(self, number: int, box: ProvedInterval) -> Lines:
        """The lines of the curve at a node over the box of its input."""


class Given:
    """The choices that a step of a certificate names; lines are those of its part."""

    def __init__(self, step: dict[str, Any], file: File, lines: dict[int, Lines]) -> None:
        self.names, self.file, self.known = dict(step["choices"]), file, lines

    def pick(self, number: int, name: str, better: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The array of the file, rejected if it has another shape; all true where the step does not name it."""
        given = self.names.get(f"{number}.{name}")
        return np.ones_like(better) if given is None else np.asarray(self.file.array(given, "b", better.shape))

    def lines(self, number: int, box: ProvedInterval) -> Lines:  # noqa: ARG002
        """The lines of the part; rejected if there are none."""
        if number not in self.known:
            raise Rejected(f"node {number}: a curve without lines")
        return self.known[number]


__all__ = ["Choices", "Given", "Lines", "Pick"]
