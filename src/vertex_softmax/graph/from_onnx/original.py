"""The original model: onnxruntime on the file's own bytes, in the file's own precision.

Invariant: `OriginalFile.run` returns what onnxruntime computes from the file as it is: functions not expanded, not
translated, optimised only on request. Two changes are made if necessary: parts that the output does not depend on are
removed (they were not checked, so they must not be run), and external data is filled in as it was read. Otherwise the
bytes are those of the file. One thread on the CPU, so that the same input gives the same output.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError, VertexError
from vertex_softmax.graph.from_onnx.file import OnnxFile, Source, model_inputs, packages
from vertex_softmax.graph.from_onnx.parts import ModelInput, has_sparse, nodes_within, only, tensors

if TYPE_CHECKING:
    import onnx

Array: TypeAlias = NDArray[np.floating]
TYPES: dict[int, type[np.floating]] = {1: np.float32, 11: np.float64}
"""ONNX's number of the input's element type → numpy's type; only models with these two are read."""
ROUGH = (1, 10, 16)
"""ONNX's numbers of the floating-point types of lower precision than float64."""


class OriginalFile:
    """A model file as a function of one input, computed by onnxruntime.

    `output` names the output, by default the first of the model. `shape` and `dtype` are those of the input.
    `inputs`: the names of all inputs of the model, in the order in which their numbers are joined to one input, which
    has the shape (1, numbers); None: the model has one input, which is taken as it is.
    `shapes`: the shape of each input, for models whose inputs have open sizes.
    """

    def __init__(
        self,
        source: Source,
        *,
        output: str | None = None,
        inputs: Sequence[str] | None = None,
        shapes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.file = OnnxFile.read(source)
        self.output = self.file.output(output)
        self.model = only(self.file.proto, self.output)
        """The model with this output alone, functions not expanded; `file.proto` itself if nothing was removed."""
        if has_sparse(self.model):
            raise UnsupportedModelError("the model has tensors that are sparse, which are not read")
        self.shapes = shapes
        self.inputs = model_inputs(self.model.graph, inputs, shapes)
        """The inputs of the model, in the order in which their numbers are joined."""
        self.joined = inputs is not None
        self.input = self.inputs[0]
        if self.joined:
            numbers = sum(each.size for each in self.inputs)
            self.input = ModelInput(_unused(self.model), self.input.kind, (1, numbers))
        self.shape = self.input.shape
        self.dtype = np.dtype(TYPES[self.input.kind])
        self._sessions: dict[bool, Any] = {}

    @property
    def identity(self) -> str:
        """The identity of the file (`OnnxFile.identity`)."""
        return self.file.identity

    @property
    def kinds(self) -> tuple[str, str]:
        """The element types of the input and of the output as the file declares them, by their names in numpy."""
        library, _ = packages()
        value = next(value for value in self.model.graph.output if value.name == self.output)
        numbers = (self.input.kind, value.type.tensor_type.elem_type)
        first, second = (library.TensorProto.DataType.Name(number).lower() for number in numbers)
        return _NAMES.get(first, first), _NAMES.get(second, second)

    @functools.cached_property
    def double(self) -> bool:
        """Whether the model computes in float64 only: no tensor, constant or cast of lower precision is visible."""
        bodies = [self.model.graph.node, *(function.node for function in self.model.functions)]
        attributes = [a for body in bodies for node in nodes_within(body) for a in node.attribute]
        return (
            self.dtype == np.float64
            and not any(tensor.data_type in ROUGH for tensor in tensors(self.model))
            and not any(a.name in ("value_float", "value_floats") or (a.name, a.i) in _CASTS for a in attributes)
        )

    def run(self, x: Array, *, optimised: bool = False, options: Any = None) -> Array:
        """The output at x, which has the input's shape or is flat, and is converted to the model's dtype.

        options: onnxruntime's RunOptions, see `Clock.running`.
        """
        opened = self.open(optimised=optimised)
        return np.asarray(run(opened, [self.output], self.feed(x), options)[0])

    def feed(self, x: Array) -> dict[str, Array]:
        """The tensor of each input of the model at x, by its name, in the model's dtype."""
        flat = np.asarray(x, dtype=self.dtype).reshape(-1)
        if flat.size != self.input.size:
            raise InvalidValueError(f"the input has {flat.size} numbers, and the model's {self.input.size}")
        found, start = {}, 0
        for each in self.inputs:
            found[each.name] = flat[start : start + each.size].reshape(each.shape)
            start += each.size
        return found

    def open(self, *, optimised: bool) -> Any:
        """The session of onnxruntime, created once; raises if onnxruntime does not load the model."""
        if optimised not in self._sessions:
            plain = self.file.complete and self.model is self.file.proto
            data = self.file.data if plain else self.model.SerializeToString()
            self._sessions[optimised] = session(data, optimised=optimised)
        return self._sessions[optimised]


def _unused(model: onnx.ModelProto) -> str:
    """A name for the joined input that no tensor of the model has."""
    nodes = nodes_within(model.graph.node)
    taken = {value.name for value in model.graph.input} | {
        name for node in nodes for name in (*node.input, *node.output)
    }
    name = "inputs"
    while name in taken:
        name = f"{name}_"
    return name


_NAMES = {"float": "float32", "double": "float64"}
"""numpy's names of the element types whose names in ONNX are others, in small letters."""
_CASTS = {("to", kind) for kind in ROUGH}


def session(data: bytes, *, optimised: bool) -> Any:
    """A session of onnxruntime with one thread, so that sums keep their order; with all optimisations or none."""
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
    """The values of the named tensors that a session computes for one input."""
    with refusals("onnxruntime cannot run the model"):
        values: list[Any] = opened.run(list(names), feed, options)
    return values


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> bytes:
    """The bytes of the model with the named tensors as additional outputs."""
    library, _ = packages()
    extended = type(model)()
    extended.CopyFrom(model)
    present = {value.name for value in extended.graph.output}
    extended.graph.output.extend(library.ValueInfoProto(name=name) for name in names if name not in present)
    data: bytes = extended.SerializeToString()
    return data


@functools.cache
def _runtime_errors() -> tuple[type[Exception], ...]:
    """The exceptions of onnxruntime: classes of its own, most of which have no common base but Exception."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = [c for c in vars(state).values() if isinstance(c, type) and issubclass(c, Exception)]
    return (*own, ValueError, RuntimeError)


@contextlib.contextmanager
def refusals(what: str) -> Iterator[None]:
    """A context that converts exceptions of onnxruntime to an UnsupportedModelError, which begins with `what`."""
    try:
        yield
    except VertexError:
        raise
    except _runtime_errors() as error:
        raise UnsupportedModelError(
            f"{what}, so nothing can be checked against it and nothing said about it: {error}"
        ) from error
