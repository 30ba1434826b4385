"""The choices of a forward proof while a certificate is made: what looks better is taken, and written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.certificate.checker.forward.choices import Lines
from vertex_softmax.certificate.checker.rounding import ProvedInterval


class Recorded:
    """Choices (checker/forward/choices.py) that the prover makes."""

    def __init__(
        self,
        keep: Callable[[str, NDArray[Any]], str],
        lines: Callable[[int, ProvedInterval], Lines],
        look: Callable[[], None],
    ) -> None:
        self.keep, self.lines_over, self.look = keep, lines, look
        self.names: dict[str, str] = {}
        """the choices of the step, by node and name; those that are all true are left out"""

    def pick(self, number: int, name: str, better: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """What looks better."""
        self.look()
        if not better.all():
            self.names[f"{number}.{name}"] = self.keep(f"forward.{number}.{name}", better)
        return better

    def lines(self, number: int, box: ProvedInterval) -> Lines:
        """Slopes of a curve's lines and band over the box of its input, and where they touch."""
        return self.lines_over(number, box)
