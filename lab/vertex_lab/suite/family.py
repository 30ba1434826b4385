"""What a family of the suite is made of: networks, and the questions about each of them.

Invariant: a question's centre is classified as `label` by its network, and lies in every box of the question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

Say: TypeAlias = Callable[[str], None]
Ends: TypeAlias = tuple[Tensor, Tensor]
"""The lower and the upper ends of a box, each of the shape of one input."""


@dataclass(frozen=True, eq=False)
class Question:
    """One input and the boxes around it: those of every ε, or a single one."""

    name: str
    """for file names: letters, digits and hyphens"""
    words: str
    """what the input and the box are, for the head of the property's file"""
    centre: Tensor
    """one input, without a batch, float32"""
    label: int
    around: Callable[[float], Ends] | None = None
    """the box of an ε"""
    fixed: Ends | None = None
    """the only box, where there is no ε"""
    start: float = 0.01
    """an ε to begin the search for the attack's radius with"""
    divisor: int = 2
    """bounds are asked first about the attack's radius divided by this, a power of two"""


@dataclass(frozen=True, eq=False)
class Network:
    """A module, (1, *input shape) to (1, classes), and what is asked about it."""

    name: str
    module: nn.Module
    questions: tuple[Question, ...]
    facts: Mapping[str, Any]
    """how it was made, as plain JSON: sizes, training, accuracy"""


@dataclass(frozen=True)
class Request:
    """What to make, and where the things it needs are."""

    data: Path
    """the folder with deept/ and mnist/"""
    weights: Path
    """trained weights are read from here, and written to it"""
    quick: bool = False
    """two inputs of the smallest networks only"""
    say: Say = field(default=lambda _: None, compare=False)

    def some(self, count: int) -> int:
        """How many inputs to ask about."""
        return min(2, count) if self.quick else count


@dataclass(frozen=True)
class Family:
    """A folder of the suite."""

    name: str
    title: str
    text: str
    """its paragraph in the suite's README"""
    timeout: int
    """seconds for each instance"""
    needs: Callable[[Request], str]
    """what is missing to make it, in words; empty if nothing is"""
    networks: Callable[[Request], Iterator[Network]]
