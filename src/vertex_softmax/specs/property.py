"""A property of a network, stored as its negation: boxes of inputs, and for each box the outputs that violate it.

Invariant: the numbers are exactly those of the file. The real box of the file is represented by two boxes of floats:
[lower, upper] contains it (what is proved for this box holds for the file's box), and [inner_lower, inner_upper] is
contained in it (its points are inputs of the file's box). Inequalities have rational coefficients; only `scaled` and
`matrix` round them, for bounds in floating point, and state the error.

A property holds ("unsat") if no input of any case has an output that satisfies one of the case's conjunctions.
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
    """The exponents (base 2) that `Inequality.scaled` allows in one precision."""

    span: int
    """The most between the largest and the smallest coefficient."""
    plain: int
    """The largest coefficient may have an exponent of ±plain without being scaled."""
    most: int
    """The largest exponent of a limit."""


RANGES = {torch.float64: _Range(400, 64, 1000), torch.float32: _Range(60, 20, 120)}
"""Chosen so that the products of a row with the numbers of a network neither overflow nor underflow."""


class Row(NamedTuple):
    """The inequality Σ coefficients[k]·y_k ≤ limit on outputs y, in floats."""

    coefficients: dict[int, float]
    limit: float


@dataclasses.dataclass(frozen=True)
class Inequality:
    """The exact inequality Σ coefficients[k]·y_k ≤ limit, or < if strict, on the flattened output y."""

    coefficients: Mapping[int, Fraction]
    limit: Fraction
    strict: bool = False

    def __post_init__(self) -> None:
        if any(k < 0 for k in self.coefficients):
            raise InvalidValueError(f"output {min(self.coefficients)} does not exist; outputs are numbered from 0")

    def holds(self, output: Sequence[float]) -> bool:
        """Whether the output satisfies it, in exact arithmetic. An output that is not finite satisfies nothing."""
        values = {k: float(output[k]) for k in self.coefficients}
        if not all(np.isfinite(value) for value in values.values()):
            return False
        total = sum((a * Fraction(values[k]) for k, a in self.coefficients.items()), Fraction(0))
        return total < self.limit if self.strict else total <= self.limit

    def scaled(self, dtype: torch.dtype = torch.float64) -> Row:
        """The inequality times a power of two, in floats of this precision: a row a·y ≤ b.

        Every coefficient a is a normal number with a relative error of at most 2^-53 (2^-24 in float32); no nonzero
        coefficient becomes 0. b is the least float that is no less than the exact limit. So if a·y > b + e for all y
        with Σ |a_k|·|y_k| ≤ s, where e ≥ 2^-52·s (2^-23·s), no such y satisfies the inequality. The power of two is 1
        unless the largest coefficient is far from 1. Raises if the coefficients and the limit are too far apart for
        these floats.
        """
        span, plain, most = RANGES[dtype]
        nonzero = {k: Fraction(a) for k, a in self.coefficients.items() if a}
        sizes = [_power(a) for a in nonzero.values()]
        top, bottom = max(sizes, default=0), min(sizes, default=0)
        shift = 0 if abs(top) <= plain else -top
        if top - bottom > span or (self.limit and _power(Fraction(self.limit)) + shift > most):
            raise InvalidValueError(
                f"an inequality of the property has coefficients from 2^{bottom} to 2^{top} and a limit of about "
                f"2^{_power(Fraction(self.limit)) if self.limit else 0}: coefficients that are 2^{span} apart, or a "
                f"limit above 2^{most} of them, do not fit {str(dtype).removeprefix('torch.')}; leave out the "
                "terms that do not matter"
            )
        factor = Fraction(2) ** shift if shift else 1
        single = dtype == torch.float32
        row = {k: float(np.float32(float(a * factor)) if single else float(a * factor)) for k, a in nonzero.items()}
        return Row(row, rounded_up(self.limit * factor, single=single))


@dataclasses.dataclass(frozen=True)
class Conjunction:
    """The conjunction of inequalities; without any, every output satisfies it."""

    inequalities: tuple[Inequality, ...]

    def holds(self, output: Sequence[float]) -> bool:
        """Whether the output satisfies all of them, in exact arithmetic."""
        return all(inequality.holds(output) for inequality in self.inequalities)

    def matrix(self, outputs: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """C (m, outputs), d (m) with C y ≤ d wherever the conjunction holds, up to the error of `Inequality.scaled`."""
        rows = [inequality.scaled(dtype) for inequality in self.inequalities]
        C = torch.zeros(len(rows), outputs, dtype=dtype)
        for i, row in enumerate(rows):
            for k, a in row.coefficients.items():
                C[i, k] = a
        return C, torch.tensor([row.limit for row in rows], dtype=dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One box of flattened inputs, and the conjunctions on outputs: any one of them violates the property in the box.

    The ends are (inputs,), float64: [lower, upper] contains the file's box, [inner_lower, inner_upper] lies in it.
    """

    lower: Floats
    upper: Floats
    inner_lower: Floats
    inner_upper: Floats
    conjunctions: tuple[Conjunction, ...]

    def contains(self, x: NDArray[np.floating]) -> bool:
        """Whether the flattened x lies in the file's box, without tolerance. NaN does not."""
        flat = np.asarray(x).reshape(-1)
        if flat.shape != self.lower.shape:
            raise InvalidValueError(f"the input has {flat.size} numbers, and the property's {self.lower.size}")
        return bool(((flat >= self.inner_lower) & (flat <= self.inner_upper)).all())


class DeclaredTensor(NamedTuple):
    """The name and the element type of the input or the output, as a VNNLIB 2.0 file declares them."""

    name: str
    kind: str
    """`real`, or a type of ONNX: `float32`, `float64`, …"""


@dataclasses.dataclass(frozen=True, eq=False)
class Property:
    """The cases of a property, its numbers of inputs and outputs, and their shapes if the file declares them.

    `declared`: the input and the output as a VNNLIB 2.0 file declares them; None for VNNLIB 1.0, where they are called
    X and Y.
    """

    cases: tuple[Case, ...]
    inputs: int
    outputs: int
    input_shape: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None
    declared: tuple[DeclaredTensor, DeclaredTensor] | None = None

    def require(self, input_shape: Sequence[int], output_shape: Sequence[int]) -> None:
        """Raise if the property does not fit a network with these shapes.

        The numbers of inputs and outputs must be equal. A shape that the file declares (VNNLIB 2.0) must be the
        network's, except for leading ones, such as a batch of one: they change neither the order nor the number of
        entries.
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

    def require_kinds(self, input_kind: str, output_kind: str) -> None:
        """Raise if the file declares element types that are neither `real` nor those of the network.

        A type of the network that is not known is "undefined", as in ONNX, and fits every declaration.
        """
        for tensor, kind in zip(self.declared or (), (input_kind, output_kind), strict=False):
            if tensor.kind not in ("real", kind) and kind != "undefined":
                raise InvalidValueError(
                    f"the property declares {tensor.name} with elements of type {tensor.kind}, and the network's are "
                    f"{kind}: declare the network's type, or real"
                )

    def broken_by(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> bool:
        """Whether the pair (input x, output y) violates the property, in exact arithmetic."""
        output = [float(v) for v in np.asarray(y).reshape(-1)]
        if len(output) != self.outputs:
            raise InvalidValueError(f"the output has {len(output)} numbers, and the property's {self.outputs}")
        return any(case.contains(x) and any(c.holds(output) for c in case.conjunctions) for case in self.cases)


def rounded_up(value: Fraction, *, single: bool = False) -> float:
    """The least float64 (if `single`, the least float32) that is at least the value; an error if it overflows."""
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
    """The number for a message: six digits, or a power of two if it is beyond the range of floats."""
    if not value or -1000 < _power(value) < 1000:
        return f"{float(value):.6g}"
    return f"{'-' if value < 0 else ''}2^{_power(value)}"


def _power(value: Fraction) -> int:
    """The approximate binary exponent: an e with 2^(e − 1) < |value| < 2^(e + 1)."""
    return value.numerator.bit_length() - value.denominator.bit_length()


def _core(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape without its leading ones."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return tuple(shape[first:])
