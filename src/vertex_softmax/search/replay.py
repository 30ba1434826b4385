"""Counterexamples, shown by running the model itself: onnxruntime on the file, in the file's own precision.

Invariant: `Replay.confirms` returns only inputs that lie in the property's box as the file writes it, without
tolerance, and whose output, all of it finite and as the model computes it, breaks the property in exact arithmetic.

    replay = Replay("model.onnx")
    found = replay.confirms(prop, x)                # x near a case's box: rounded into it, run, judged
    text = counterexample_text(found)               # what VNN-COMP asks for, if found is not None
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vertex_softmax.errors import InvalidTypeError, InvalidValueError, UnsupportedModelError
from vertex_softmax.graph.onnx_file import load, packages
from vertex_softmax.graph.onnx_parts import only
from vertex_softmax.specs.property import Case, Property

if TYPE_CHECKING:
    import onnx

Array: TypeAlias = NDArray[np.floating]
TYPES: dict[str, type[np.floating]] = {"tensor(float)": np.float32, "tensor(double)": np.float64}
"""onnxruntime's name of an input's type → numpy's; the importer reads models of these two."""


@dataclasses.dataclass(frozen=True, eq=False)
class Counterexample:
    """x lies in `case`'s box and y, the model's output there, satisfies one of its conjunctions: no tolerance."""

    x: Array
    """(*input shape), in the model's own type"""
    y: Array
    """(*output shape)"""
    case: Case
    at: tuple[int, int]
    """The numbers of the case and of the conjunction, from 0."""


class Replay:
    """A model as what it does to one input, in its own precision; on the CPU, in one thread, always the same.

    The model comes through `onnx_file.load`, so onnxruntime is handed bytes and opens no file. A first size that is
    open is 1; `output` names the output, by default the first.
    """

    def __init__(self, source: str | os.PathLike[str] | bytes, *, output: str | None = None) -> None:
        model = load(source)
        _refuse_sparse(model.graph)
        names = [o.name for o in model.graph.output]
        if output is not None and output not in names:
            raise InvalidValueError(f"the model has no output {output!r}; it has {', '.join(names)}")
        wanted = names[0] if output is None else output
        model = only(model, wanted)
        name, self.shape = _fix_sizes(model)
        session = _session(model)
        kind = session.get_inputs()[0].type
        if kind not in TYPES:
            raise UnsupportedModelError(f"input {name!r} is a {kind}; models of float32 or float64 are run")
        self.dtype = np.dtype(TYPES[kind])

        def run(x: Array) -> Array:
            with _refusals("onnxruntime cannot run the model"):
                return np.asarray(session.run([wanted], {name: x})[0])

        self._run: Callable[[Array], Array] = run
        self._floats: tuple[Property, Array, Array] | None = None

    @classmethod
    def of_function(
        cls, function: Callable[[Tensor], Tensor], shape: Sequence[int], dtype: torch.dtype = torch.float32
    ) -> Replay:
        """A torch function of tensors of this shape, in this precision: a module in eval mode, or a graph's evaluate.

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
        made.shape, made._run, made._floats = tuple(shape), run, None
        made.dtype = np.dtype(np.float32 if dtype == torch.float32 else np.float64)
        return made

    def output(self, x: Array) -> Array:
        """The model's output, in its own shape and type, at x (any shape), rounded to the model's type."""
        size = math.prod(self.shape)
        if np.size(x) != size:
            raise InvalidValueError(f"the input has {np.size(x)} numbers, the model takes {size}: {self.shape}")
        with np.errstate(over="ignore"):
            feed = np.array(x).astype(self.dtype, order="C").reshape(self.shape)
        return self._run(feed)

    def confirms(self, prop: Property, x: Array) -> Counterexample | None:
        """The counterexample that x (any shape) is once it is rounded into a case's box, or None if it is none.

        Every number goes to the nearest float of the model's type, and one float inward if that left the box. So x
        itself may be outside by that rounding, no more. No box holds x: None.
        """
        lower, upper = self._ends(prop)
        with np.errstate(over="ignore"):
            near = np.array(x).astype(self.dtype).reshape(-1)
        if near.shape != lower.shape[1:]:
            raise InvalidValueError(f"the input has {near.size} numbers, the property speaks of {prop.inputs}")
        low, high = np.nextafter(near, -np.inf), np.nextafter(near, np.inf)  # NaN is in no box
        for i in np.flatnonzero(((high >= lower) & (low <= upper) & (lower <= upper)).all(1)).tolist():
            inside = np.clip(near, lower[i], upper[i]).reshape(self.shape)
            case, y = prop.cases[i], self.output(inside)
            if y.size != prop.outputs:
                raise InvalidValueError(f"the model has {y.size} outputs, the property speaks of {prop.outputs}")
            if not np.isfinite(y).all() or not case.contains(inside):
                continue
            flat = [float(v) for v in y.reshape(-1)]
            for j, conjunction in enumerate(case.conjunctions):
                if conjunction.holds(flat):
                    return Counterexample(inside, y, case, (i, j))
        return None

    def _ends(self, prop: Property) -> tuple[Array, Array]:
        """The lowest and highest floats of the model's type in every box, (cases, inputs); crossed if there is none."""
        if self._floats is None or self._floats[0] is not prop:
            if prop.inputs != math.prod(self.shape):
                raise InvalidValueError(
                    f"the property speaks of {prop.inputs} inputs, the model takes {math.prod(self.shape)}"
                )
            shape = (len(prop.cases), prop.inputs)
            lower = np.array([case.inner_lower for case in prop.cases]).reshape(shape)
            upper = np.array([case.inner_upper for case in prop.cases]).reshape(shape)
            self._floats = (prop, -rounded_down(-lower, self.dtype), rounded_down(upper, self.dtype))
        return self._floats[1], self._floats[2]


def rounded_down(x: NDArray[np.float64], dtype: np.dtype[Any]) -> Array:
    """The largest number of this type that is at most x; same shape."""
    with np.errstate(over="ignore"):
        near: Array = x.astype(dtype)
    below: Array = np.nextafter(near, np.array(-np.inf, dtype))
    return np.where(near.astype(np.float64) > x, below, near)


def counterexample_text(found: Counterexample) -> str:
    """The counterexample as VNN-COMP writes it: every decimal reads back as the same float, and lies in the box."""
    ends = zip(found.case.inner_lower, found.case.inner_upper, strict=True)
    pairs = zip(found.x.reshape(-1), ends, strict=True)
    lines = [f"(X_{i} {_decimal(float(v), float(low), float(high))})" for i, (v, (low, high)) in enumerate(pairs)]
    lines += [f"(Y_{i} {float(v)!r})" for i, v in enumerate(found.y.reshape(-1))]
    return "(" + "\n ".join(lines) + ")\n"


def _decimal(value: float, lower: float, upper: float) -> str:
    """The shortest decimal of a float64; if that leaves the box by its rounding, all digits."""
    short = repr(value)
    return short if lower <= Fraction(short) <= upper else str(Decimal(value))


def _fix_sizes(model: onnx.ModelProto) -> tuple[str, tuple[int, ...]]:
    """The name and shape of the one real input; a first size that is open becomes 1, in the model too."""
    fixed = {proto.name for proto in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in fixed]
    if len(inputs) != 1:
        found = ", ".join(repr(i.name) for i in inputs) or "none"
        raise UnsupportedModelError(f"the model has {len(inputs)} inputs ({found}), one is supported")
    dims = inputs[0].type.tensor_type.shape.dim
    if len(dims) > 0 and (not dims[0].HasField("dim_value") or dims[0].dim_value < 0):  # a size of 0 is 0
        dims[0].dim_value = 1
    shape = tuple(int(d.dim_value) for d in dims)
    if not inputs[0].type.tensor_type.HasField("shape") or any(n < 1 for n in shape):
        raise UnsupportedModelError(
            f"input {inputs[0].name!r} has an open size, {shape}: export the model with fixed sizes"
        )
    return inputs[0].name, shape


def _refuse_sparse(graph: onnx.GraphProto) -> None:
    """Sparse tensors are the ones `load` does not bring in."""
    attributes = [a for node in graph.node for a in node.attribute]
    if graph.sparse_initializer or any(a.HasField("sparse_tensor") or a.sparse_tensors for a in attributes):
        raise UnsupportedModelError("the model has sparse tensors, which are not read")
    for a in attributes:
        for inner in (*([a.g] if a.HasField("g") else []), *a.graphs):
            _refuse_sparse(inner)


def _session(model: onnx.ModelProto) -> Any:
    """onnxruntime as it comes, optimisations included, but for threads: one, so that sums keep their order."""
    _, runtime = packages()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    with _refusals("onnxruntime does not load the model"):
        return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@functools.cache
def _known() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: classes of its own, most of which share no base but Exception."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    refusals = [c for c in vars(state).values() if isinstance(c, type) and issubclass(c, Exception)]
    return (*refusals, ValueError, RuntimeError)


@contextlib.contextmanager
def _refusals(what: str) -> Iterator[None]:
    try:
        yield
    except _known() as error:
        raise UnsupportedModelError(f"{what}: {error}") from error
