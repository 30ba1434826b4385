"""A property of a network, as its negation: boxes of inputs, and for each what an output would have to be to break it.

Invariant: the numbers are those of the file, exactly. A box of floats stands for the real one twice: `lower`, `upper`
contain it (what is proved of them holds of the file's box), `inner_lower`, `inner_upper` lie in it (what is inside them
is inside the file's box). Inequalities are rationals; only `scaled` and `matrix` round them, for bounds in floating
point, and say by how much.

A property holds ("unsat") if no input of any case has an output that any of the case's conjunctions is true of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError

Floats = NDArray[np.float64]


class _Range(NamedTuple):
    """Powers of two that a row of numbers may span, and its largest number have, before it is scaled; of a limit."""

    span: int
    plain: int
    most: int


RANGES = {torch.float64: _Range(400, 64, 1000), torch.float32: _Range(60, 20, 120)}
"""So chosen that what a pass through a network multiplies a row by stays far from the ends of the exponents."""


class Row(NamedTuple):
    """Σ coefficients[k]·y_k ≤ limit in floats."""

    coefficients: dict[int, float]
    limit: float


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

    def scaled(self, dtype: torch.dtype = torch.float64) -> Row:
        """The inequality times a power of two, in floats of this precision: a row a·y ≤ b.

        Every coefficient a is a normal number and off by at most 2^-53 of itself (2^-24 in float32), never 0 where the
        inequality's is not; b is no less than the inequality's, and the next float below it is. So a·y > b + e for all
        y with Σ |a_k|·|y_k| ≤ s and e ≥ 2^-52·s (2^-23·s) excludes the inequality. The factor is 1 unless the largest
        coefficient is far from 1. Raises where coefficients, or the limit, are too far apart for these floats.
        """
        span, plain, most = RANGES[dtype]
        held = {k: Fraction(a) for k, a in self.coefficients.items() if a}
        sizes = [_power(a) for a in held.values()]
        top, bottom = max(sizes, default=0), min(sizes, default=0)
        shift = 0 if abs(top) <= plain else -top
        if top - bottom > span or (self.limit and _power(Fraction(self.limit)) + shift > most):
            raise InvalidValueError(
                f"an inequality of the property has coefficients from 2^{bottom} to 2^{top} and a limit of about "
                f"2^{_power(Fraction(self.limit)) if self.limit else 0}: coefficients that are 2^{span} apart, or a "
                f"limit above 2^{most} of them, are not held by {str(dtype).removeprefix('torch.')}; leave out the "
                "terms that do not matter"
            )
        factor = Fraction(2) ** shift if shift else 1
        single = dtype == torch.float32
        found = {k: float(np.float32(float(a * factor)) if single else float(a * factor)) for k, a in held.items()}
        return Row(found, rounded_up(self.limit * factor, single=single))


@dataclasses.dataclass(frozen=True)
class Conjunction:
    """All of these inequalities; none at all is true of every output."""

    inequalities: tuple[Inequality, ...]

    def holds(self, output: Sequence[float]) -> bool:
        """Are all true of this output?"""
        return all(inequality.holds(output) for inequality in self.inequalities)

    def matrix(self, outputs: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """C (m, outputs) and d (m): C y ≤ d wherever the conjunction holds, but for what `Inequality.scaled` rounds."""
        rows = [inequality.scaled(dtype) for inequality in self.inequalities]
        C = torch.zeros(len(rows), outputs, dtype=dtype)
        for i, row in enumerate(rows):
            for k, a in row.coefficients.items():
                C[i, k] = a
        return C, torch.tensor([row.limit for row in rows], dtype=dtype)


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
        """Raise if the property is of other inputs or outputs than a network of these shapes has.

        Their numbers are equal. Where the file declares a shape (VNNLIB 2.0), it is the network's; ones at the front,
        such as a batch of one, may be more or fewer: they change neither the order nor the number of entries.
        """
        sizes = (("inputs", input_shape, self.inputs), ("outputs", output_shape, self.outputs))
        for name, shape, theirs in sizes:
            if (ours := math.prod(shape)) != theirs:
                raise InvalidValueError(f"the network has {ours} {name}, the property speaks of {theirs}")
        shapes = (("input", input_shape, self.input_shape), ("output", output_shape, self.output_shape))
        for name, shape, declared in shapes:
            if declared is not None and _core(shape) != _core(declared):
                raise InvalidValueError(
                    f"the network's {name} has shape {list(shape)}, and the property declares {list(declared)}: the "
                    "two may differ by ones at the front, no more; declare the network's shape"
                )

    def broken_by(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> bool:
        """Is (input, output) a counterexample, exactly?"""
        output = [float(v) for v in np.asarray(y).reshape(-1)]
        if len(output) != self.outputs:
            raise InvalidValueError(f"the output has {len(output)} numbers, and the property's {self.outputs}")
        return any(case.contains(x) and any(c.holds(output) for c in case.conjunctions) for case in self.cases)


def rounded_up(value: Fraction, *, single: bool = False) -> float:
    """The least float64 (or float32, as a float64) that is no less than the value; raises beyond the largest."""
    kind = np.float32 if single else np.float64
    try:
        near = kind(float(value))
        if Fraction(float(near)) < value:
            near = np.nextafter(near, kind(np.inf))
    except OverflowError:
        near = kind(np.inf)
    if not np.isfinite(near):
        raise InvalidValueError(f"a limit of the property is above the largest {kind.__name__}; scale the inequality")
    return float(near)


def shown(value: Fraction) -> str:
    """The number for a reader: some digits, or its power of two where floats end."""
    if not value or -1000 < _power(value) < 1000:
        return f"{float(value):.6g}"
    return f"{'-' if value < 0 else ''}2^{_power(value)}"


def _power(value: Fraction) -> int:
    """An e with 2^(e − 1) < |value| < 2^(e + 1)."""
    return value.numerator.bit_length() - value.denominator.bit_length()


def _core(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape without the ones at its front."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return tuple(shape[first:])
