"""The model itself: onnxruntime on the file's own bytes, in the file's own precision.

Invariant: `OriginalFile.run` is what onnxruntime computes of the file as it is: not expanded, not translated, optimised
only if that is asked for. Where the output does not depend on all of the model, what it does not depend on is left out
(nobody has looked at it, so nobody runs it); where numbers lie in other files, they are those that were read; nothing
else is changed, and else the bytes are the file's. One thread, on the CPU: the same input gives the same output.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError, VertexError
from vertex_softmax.graph.from_onnx.file import OnnxFile, Source, model_input, packages
from vertex_softmax.graph.from_onnx.parts import has_sparse, nodes_within, only, tensors

if TYPE_CHECKING:
    import onnx

Array: TypeAlias = NDArray[np.floating]
TYPES: dict[int, type[np.floating]] = {1: np.float32, 11: np.float64}
"""ONNX's number of the input's type → numpy's; models of these two are read."""
ROUGH = (1, 10, 16)
"""ONNX's numbers of the types that round more than float64."""


class OriginalFile:
    """A model file as what it does to one input.

    `output` names the output, by default the first of the model.
    """

    def __init__(self, source: Source, *, output: str | None = None) -> None:
        self.file = OnnxFile.read(source)
        self.output = self.file.output(output)
        self.model = only(self.file.proto, self.output)
        """The model of that output, functions as written; the file's own if that is all of it."""
        if has_sparse(self.model):
            raise UnsupportedModelError("the model has tensors that are sparse, which are not read")
        self.input = model_input(self.model.graph)
        self.shape = self.input.shape
        self.dtype = np.dtype(TYPES[self.input.kind])
        self._sessions: dict[bool, Any] = {}

    @property
    def identity(self) -> str:
        """Of the file."""
        return self.file.identity

    @functools.cached_property
    def double(self) -> bool:
        """Is everything in the model computed in float64, as far as one can see?"""
        bodies = [self.model.graph.node, *(function.node for function in self.model.functions)]
        attributes = [a for body in bodies for node in nodes_within(body) for a in node.attribute]
        return (
            self.dtype == np.float64
            and not any(tensor.data_type in ROUGH for tensor in tensors(self.model))
            and not any(a.name in ("value_float", "value_floats") or (a.name, a.i) in _CASTS for a in attributes)
        )

    def run(self, x: Array, *, optimised: bool = False, options: Any = None) -> Array:
        """The output at x, numbers of the input's shape or flat, as the model's type holds them.

        options: onnxruntime's RunOptions, see `Clock.running`.
        """
        feed = np.asarray(x, dtype=self.dtype)
        if feed.size != self.input.size:
            raise InvalidValueError(f"the input has {feed.size} numbers, and the model's {self.input.size}")
        opened = self.open(optimised=optimised)
        return np.asarray(run(opened, [self.output], {self.input.name: feed.reshape(self.shape)}, options)[0])

    def open(self, *, optimised: bool) -> Any:
        """onnxruntime's session, which is made once; raises if onnxruntime does not load the model."""
        if optimised not in self._sessions:
            plain = self.file.complete and self.model is self.file.proto
            data = self.file.data if plain else self.model.SerializeToString()
            self._sessions[optimised] = session(data, optimised=optimised)
        return self._sessions[optimised]


_CASTS = {("to", kind) for kind in ROUGH}


def session(data: bytes, *, optimised: bool) -> Any:
    """onnxruntime with one thread, so that sums keep their order; with all its optimisations, or with none."""
    _, runtime = packages()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with refusals("onnxruntime does not load the model"):
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run(opened: Any, names: Sequence[str], feed: dict[str, Array], options: Any = None) -> list[Any]:
    """The named tensors of a session, at one input."""
    with refusals("onnxruntime cannot run the model"):
        found: list[Any] = opened.run(list(names), feed, options)
    return found


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> bytes:
    """The model with more of its tensors as outputs."""
    library, _ = packages()
    found = type(model)()
    found.CopyFrom(model)
    there = {value.name for value in found.graph.output}
    found.graph.output.extend(library.ValueInfoProto(name=name) for name in names if name not in there)
    data: bytes = found.SerializeToString()
    return data


@functools.cache
def _known() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: classes of its own, most of which share no base but Exception."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found = [c for c in vars(state).values() if isinstance(c, type) and issubclass(c, Exception)]
    return (*found, ValueError, RuntimeError)


@contextlib.contextmanager
def refusals(what: str) -> Iterator[None]:
    """What onnxruntime raises, as errors of Vertex."""
    try:
        yield
    except VertexError:
        raise
    except _known() as error:
        raise UnsupportedModelError(
            f"{what}, so nothing can be checked against it and nothing said about it: {error}"
        ) from error
