"""What an ONNX file says, in real arithmetic: a slow evaluator that shares nothing with the library.

Invariant: every number returned is a ball that contains the value the nodes define over the reals, with the file's
constants taken as they are. Nothing is recognised, merged or left out; −∞ in a mask is −∞.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vertex_lab.fuzz.asking import UnfitError

Array = NDArray[Any]
BITS = 320


class Exact:
    """A model's bytes as a function of exact numbers."""

    def __init__(self, model: bytes, bits: int = BITS) -> None:
        import onnx
        from onnx import numpy_helper

        proto = onnx.load_from_string(model)
        if proto.functions:
            raise UnfitError("functions are not evaluated exactly")
        self.bits = bits
        self.nodes = list(proto.graph.node)
        self.name, self.output = proto.graph.input[0].name, proto.graph.output[0].name
        self.shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
        self.constants = {c.name: numpy_helper.to_array(c) for c in proto.graph.initializer}

    def __call__(self, x: Array) -> list[Any]:
        """Balls around the outputs, flat, at floats x."""
        import flint
        from onnx import helper

        before, flint.ctx.prec = flint.ctx.prec, self.bits
        try:
            known: dict[str, Array] = {
                name: balls(value) if value.dtype.kind == "f" else value for name, value in self.constants.items()
            }
            known[self.name] = balls(np.asarray(x, dtype=np.float64).reshape(self.shape))
            for node in self.nodes:
                attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
                if node.op_type not in EXACT or node.domain:
                    raise UnfitError(f"{node.op_type} is not evaluated exactly")
                known[node.output[0]] = EXACT[node.op_type](*[known[name] for name in node.input], **attributes)
            return list(known[self.output].reshape(-1))
        finally:
            flint.ctx.prec = before


def balls(values: Array) -> Array:
    """Floats as exact balls."""
    import flint

    found = np.empty(values.shape, dtype=object)
    for i in np.ndindex(values.shape):
        found[i] = flint.arb(float(values[i]))
    return found


def ball(value: Fraction) -> Any:
    """A rational as a ball."""
    import flint

    return flint.arb(flint.fmpq(value.numerator, value.denominator))


def each(function: Callable[[Any], Any]) -> Callable[..., Array]:
    """A function of one number, of every number of an array."""

    def of(x: Array) -> Array:
        found = np.empty(x.shape, dtype=object)
        for i in np.ndindex(x.shape):
            found[i] = function(x[i])
        return found

    return of


def _relu(x: Any) -> Any:
    return x.max(x - x)


def _leaky(x: Array, alpha: float | None = None) -> Array:
    import flint

    slope = flint.arb(float(np.float32(0.01)) if alpha is None else float(alpha))
    return each(lambda v: v.max(v * slope) if bool(slope <= 1) else v.min(v * slope))(x)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + (-x).exp())


def _softmax(x: Array, axis: int = -1) -> Array:
    """e^(x − m) / Σ, with m an entry that is about the largest: any number would do."""
    x = np.moveaxis(x, axis, -1)
    found = np.empty(x.shape, dtype=object)
    for i in np.ndindex(x.shape[:-1]):
        row = x[i]
        top = max(row, key=lambda v: float(v.mid()))
        powers = [_exp(v - top) for v in row]
        total = sum(powers[1:], powers[0])
        for k, power in enumerate(powers):
            found[(*i, k)] = power / total
    return np.moveaxis(found, -1, axis)


def _exp(x: Any) -> Any:
    return x.exp() if x.is_finite() else x - x if x.is_nan() else _of_infinity(x)


def _of_infinity(x: Any) -> Any:
    import flint

    return flint.arb(0) if bool(x < 0) else x


def _mean(x: Array, axes: Array | None = None, keepdims: int = 1) -> Array:
    at = tuple(int(a) for a in axes) if axes is not None else None
    total = np.sum(x, axis=at, keepdims=bool(keepdims))
    count = x.size // max(1, np.size(total))
    return np.asarray(total / count, dtype=object)


def _transpose(x: Array, perm: list[int]) -> Array:
    return x.transpose(perm)


EXACT: dict[str, Callable[..., Array]] = {
    "MatMul": np.matmul,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Neg": np.negative,
    "Relu": each(_relu),
    "LeakyRelu": _leaky,
    "Tanh": each(lambda v: v.tanh()),
    "Sigmoid": each(_sigmoid),
    "Erf": each(lambda v: v.erf()),
    "Sqrt": each(lambda v: v.sqrt()),
    "Identity": lambda x: x,
    "Softmax": _softmax,
    "Transpose": _transpose,
    "Reshape": lambda x, shape: x.reshape([int(n) for n in shape]),
    "ReduceMean": _mean,
}
