"""A property of a network, as its negation: boxes of inputs, and for each what an output would have to be to break it.

Invariant: the numbers are those of the file, exactly. A box of floats stands for the real one twice: `lower`, `upper`
contain it (what is proved of them holds of the file's box), `inner_lower`, `inner_upper` lie in it (what is inside them
is inside the file's box).

A property holds ("unsat") if no input of any case has an output that any of the case's conjunctions is true of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.errors import InvalidValueError

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Inequality:
    """Σ coefficients[k]·y_k ≤ limit, or < if it is strict; y is the output, flattened."""

    coefficients: Mapping[int, Fraction]
    limit: Fraction
    strict: bool = False

    def __post_init__(self) -> None:
        if any(k < 0 for k in self.coefficients):
            raise InvalidValueError(f"output {min(self.coefficients)} does not exist; outputs are numbered from 0")

    def holds(self, output: Sequence[float]) -> bool:
        """Is it true of this output, in exact arithmetic? An output that is not finite satisfies nothing."""
        values = {k: float(output[k]) for k in self.coefficients}
        if not all(np.isfinite(value) for value in values.values()):
            return False
        total = sum((a * Fraction(values[k]) for k, a in self.coefficients.items()), Fraction(0))
        return total < self.limit if self.strict else total <= self.limit


@dataclasses.dataclass(frozen=True)
class Conjunction:
    """All of these inequalities; none at all is true of every output."""

    inequalities: tuple[Inequality, ...]

    def holds(self, output: Sequence[float]) -> bool:
        """Are all true of this output?"""
        return all(inequality.holds(output) for inequality in self.inequalities)

    def matrix(self, outputs: int) -> tuple[Tensor, Tensor]:
        """C (m, outputs) and d (m), float64 to nearest: C y ≤ d."""
        C = torch.zeros(len(self.inequalities), outputs, dtype=torch.float64)
        for i, inequality in enumerate(self.inequalities):
            for k, a in inequality.coefficients.items():
                C[i, k] = float(a)
        return C, torch.tensor([float(inequality.limit) for inequality in self.inequalities], dtype=torch.float64)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One box of inputs, flattened (inputs,), and the conjunctions of which any one breaks the property there."""

    lower: Floats
    upper: Floats
    inner_lower: Floats
    inner_upper: Floats
    conjunctions: tuple[Conjunction, ...]

    def contains(self, x: NDArray[np.floating]) -> bool:
        """Is x, flattened, in the file's box, without tolerance? NaN is not."""
        flat = np.asarray(x).reshape(-1)
        if flat.shape != self.lower.shape:
            raise InvalidValueError(f"the input has {flat.size} numbers, and the property's {self.lower.size}")
        return bool(((flat >= self.inner_lower) & (flat <= self.inner_upper)).all())


@dataclasses.dataclass(frozen=True, eq=False)
class Property:
    """All cases; how many inputs and outputs the property speaks of, and their shapes where the file says them."""

    cases: tuple[Case, ...]
    inputs: int
    outputs: int
    input_shape: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None

    def require(self, input_shape: Sequence[int], output_shape: Sequence[int]) -> None:
        """Raise if a network of these shapes has other numbers of inputs or outputs than the property speaks of."""
        sizes = (("inputs", input_shape, self.inputs), ("outputs", output_shape, self.outputs))
        for name, shape, theirs in sizes:
            if (ours := math.prod(shape)) != theirs:
                raise InvalidValueError(f"the network has {ours} {name}, the property speaks of {theirs}")

    def broken_by(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> bool:
        """Is (input, output) a counterexample, exactly?"""
        output = [float(v) for v in np.asarray(y).reshape(-1)]
        if len(output) != self.outputs:
            raise InvalidValueError(f"the output has {len(output)} numbers, and the property's {self.outputs}")
        return any(case.contains(x) and any(c.holds(output) for c in case.conjunctions) for case in self.cases)
