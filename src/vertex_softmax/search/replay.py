"""Confirmation of counterexamples by the model itself: onnxruntime on the file's bytes, in the file's precision.

Invariant: `Replay.confirms` returns only inputs that lie in the property's box as the file writes it, without
tolerance, and whose output is finite and violates the property, judged in exact arithmetic; both with and without
onnxruntime's optimisations.

    replay = Replay("model.onnx")
    found = replay.confirms(prop, x)      # x is rounded into the box of a case, evaluated, and judged
    text = counterexample_text(found, prop)    # the text that VNN-COMP requires, if found is not None
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.graph.from_onnx.file import Source
from vertex_softmax.graph.from_onnx.original import Array, OriginalFile
from vertex_softmax.specs.property import Case, Property


@dataclasses.dataclass(frozen=True, eq=False)
class Counterexample:
    """An input x in the box of `case`, whose output y satisfies one of the case's conjunctions, without tolerance."""

    x: Array
    """(*input shape), in the model's type"""
    y: Array
    """(*output shape)"""
    case: Case
    at: tuple[int, int]
    """The index of the case in the property, and of the conjunction in the case, from 0."""


class Replay:
    """A model as a function of one input, in its own precision; on the CPU, in one thread, deterministic.

    onnxruntime is handed bytes and opens no file (from_onnx/original.py). A first size that is open is 1; `output`
    names the output, by default the first.
    """

    def __init__(self, source: Source | OriginalFile, *, output: str | None = None) -> None:
        original = source if isinstance(source, OriginalFile) else OriginalFile(source, output=output)
        if output is not None and original.output != output:
            raise InvalidValueError(f"the model was opened for its output {original.output!r}, not {output!r}")
        original.open(optimised=True)
        self.shape, self.dtype = original.shape, original.dtype
        self._run: Callable[[Array], Array] = functools.partial(original.run, optimised=True)
        self._again: Callable[[Array], Array] | None = original.run
        """The model without optimisations; None if there is no such variant."""
        self._floats: tuple[Property, Array, Array] | None = None

    @classmethod
    def of_function(
        cls, function: Callable[[Tensor], Tensor], shape: Sequence[int], dtype: torch.dtype = torch.float32
    ) -> Replay:
        """The replay of a torch function of tensors of this shape and precision: a module in eval mode, or a graph.

        Replay.of_function(graph.to(torch.float32).evaluate, graph.input.shape)
        """
        if dtype not in (torch.float32, torch.float64):
            raise InvalidTypeError(f"dtype is {dtype}; functions are run in torch.float32 or torch.float64")
        if isinstance(function, nn.Module) and function.training:
            raise InvalidValueError(
                "the model is in train mode, where dropout and norms differ; call model.eval() first"
            )

        def run(x: Array) -> Array:
            with torch.no_grad():
                found: Array = function(torch.from_numpy(x)).numpy()
            return found

        made = cls.__new__(cls)
        made.shape, made._run, made._again, made._floats = tuple(shape), run, None, None
        made.dtype = np.dtype(np.float32 if dtype == torch.float32 else np.float64)
        return made

    def output(self, x: Array) -> Array:
        """The model's output, in its own shape and type, at x (any shape), which is rounded to the model's type."""
        size = math.prod(self.shape)
        if np.size(x) != size:
            raise InvalidValueError(f"the input has {np.size(x)} numbers, the model takes {size}: {self.shape}")
        with np.errstate(over="ignore"):
            feed = np.array(x).astype(self.dtype, order="C").reshape(self.shape)
        return self._run(feed)

    def confirms(self, prop: Property, x: Array) -> Counterexample | None:
        """The counterexample that x (any shape) becomes when it is rounded into a case's box; None if it does not.

        Every entry is rounded to the nearest float of the model's type, and moved one float inward if that is outside
        of the box. So x may be outside of the box by that rounding, but not by more.
        """
        lower, upper = self._ends(prop)
        with np.errstate(over="ignore"):
            near = np.array(x).astype(self.dtype).reshape(-1)
        if near.shape != lower.shape[1:]:
            raise InvalidValueError(f"the input has {near.size} numbers, the property has {prop.inputs} inputs")
        low, high = np.nextafter(near, -np.inf), np.nextafter(near, np.inf)  # NaN is in no box
        for i in np.flatnonzero(((high >= lower) & (low <= upper) & (lower <= upper)).all(1)).tolist():
            inside = np.clip(near, lower[i], upper[i]).reshape(self.shape)
            case, y = prop.cases[i], self.output(inside)
            if y.size != prop.outputs:
                raise InvalidValueError(f"the model has {y.size} outputs, the property has {prop.outputs}")
            if not case.contains(inside):
                continue
            j = _satisfied(case, y)
            if j is not None and (self._again is None or _satisfied(case, self._again(inside)) is not None):
                return Counterexample(x=inside, y=y, case=case, at=(i, j))
        return None

    def _ends(self, prop: Property) -> tuple[Array, Array]:
        """The lowest and highest floats of the model's type in every box, (cases, inputs); crossed if it has none."""
        if self._floats is None or self._floats[0] is not prop:
            if prop.inputs != math.prod(self.shape):
                raise InvalidValueError(
                    f"the property has {prop.inputs} inputs, the model takes {math.prod(self.shape)}"
                )
            shape = (len(prop.cases), prop.inputs)
            lower = np.array([case.inner_lower for case in prop.cases]).reshape(shape)
            upper = np.array([case.inner_upper for case in prop.cases]).reshape(shape)
            self._floats = (prop, -rounded_down(-lower, self.dtype), rounded_down(upper, self.dtype))
        return self._floats[1], self._floats[2]


def _satisfied(case: Case, y: Array) -> int | None:
    """The index of the first conjunction of the case that an output satisfies; None if it satisfies none.

    An output that is not finite satisfies none.
    """
    if not np.isfinite(y).all():
        return None
    flat = [float(v) for v in y.reshape(-1)]
    return next((j for j, conjunction in enumerate(case.conjunctions) if conjunction.holds(flat)), None)


def rounded_down(x: NDArray[np.float64], dtype: np.dtype[Any]) -> Array:
    """The largest number of this type that is at most x; same shape."""
    with np.errstate(over="ignore"):
        near: Array = x.astype(dtype)
    below: Array = np.nextafter(near, np.array(-np.inf, dtype))
    return np.where(near.astype(np.float64) > x, below, near)


def counterexample_text(found: Counterexample, prop: Property) -> str:
    """The counterexample in the format of the property's language; every decimal reads back as the same float.

    The decimals of x lie in the box. For VNNLIB 1.0 the text is `((X_0 0.5) … (Y_0 1.0))`. For VNNLIB 2.0 it has a line
    `X float32 [1,5]` for each tensor, as the file declares it, and then one number per line, row by row.
    """
    ends = zip(found.case.inner_lower, found.case.inner_upper, strict=True)
    pairs = zip(found.x.reshape(-1), ends, strict=True)
    x = [_decimal(float(v), float(low), float(high)) for v, (low, high) in pairs]
    y = [repr(float(v)) for v in found.y.reshape(-1)]
    if prop.declared is None:
        lines = [f"({letter}_{i} {v})" for letter, numbers in (("X", x), ("Y", y)) for i, v in enumerate(numbers)]
        return "(" + "\n ".join(lines) + ")\n"
    shapes = (prop.input_shape or (), prop.output_shape or ())
    lines = []
    for tensor, shape, numbers in zip(prop.declared, shapes, (x, y), strict=True):
        lines += [f"{tensor.name} {tensor.kind} [{','.join(map(str, shape))}]", *numbers]
    return "\n".join(lines) + "\n"


def _decimal(value: float, lower: float, upper: float) -> str:
    """The shortest decimal of a float64; all digits if the shortest one lies outside of [lower, upper]."""
    short = repr(value)
    return short if lower <= Fraction(short) <= upper else str(Decimal(value))
