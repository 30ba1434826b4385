"""Reading of untrusted ONNX files, each once.

Invariant: an `OnnxFile` is one consistent state of a model: its bytes, the parsed model with its external data filled
in, and the identity of all of it, from a single reading of each file. At most LIMIT bytes are read, only from the file
itself and, for external data, from regular files inside its folder.

>>> file = OnnxFile.read("model.onnx")                                                 # doctest: +SKIP
>>> graph, original = from_onnx(file), OriginalFile(file)                              # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from vertex_softmax.certificate.checker import Rejected
from vertex_softmax.certificate.checker import model as reading
from vertex_softmax.foundation.errors import (
    InvalidTypeError,
    InvalidValueError,
    MissingDependencyError,
    UnsupportedModelError,
)
from vertex_softmax.foundation.files import DAMAGED, decompressed, read_whole
from vertex_softmax.graph.from_onnx.parts import LIMIT, ModelInput, refuse_expansion, standard, tensors

if TYPE_CHECKING:
    import onnx

OPSETS = (9, 23)
DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}
"""ONNX's number of an element type → torch's dtype."""


def packages() -> tuple[Any, Any]:
    """The packages onnx, with the modules used here, and onnxruntime; an error if one is not installed.

    From 1.29 on, onnxruntime reports its use to its makers and keeps an identifier in the home folder. That is switched
    off by its own variable, unless the user has set it, before the package is imported.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnx
        import onnx.defs
        import onnx.helper
        import onnx.inliner
        import onnx.numpy_helper
        import onnxruntime
    except ImportError as error:
        if isinstance(error.__cause__, SystemExit | KeyboardInterrupt):  # a signal while a library was initialised
            raise error.__cause__ from None
        raise MissingDependencyError(
            f"{error.name} is not installed, and ONNX models need it: pip install 'vertex-softmax[onnx]'"
        ) from error
    return onnx, onnxruntime


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OnnxFile:
    """A model file as it was read at one time."""

    name: str
    """The path, or 'the model' if bytes were given."""
    data: bytes
    """The model's own bytes, decompressed."""
    proto: onnx.ModelProto
    """The parsed model: functions not expanded, external data filled in, training information removed. It must not be
    modified; copy it to make another model."""
    identity: str
    """See certificate/checker/model.py; the checker computes the same identity from the files."""
    complete: bool
    """Whether the model has no external data, so that `data` is the whole model."""
    external_files: tuple[Path, ...] = ()
    """The files that its external data was read from."""

    @classmethod
    def read(cls, source: Source) -> OnnxFile:
        """Read the file of a path, .onnx or .onnx.gz, or its bytes; an `OnnxFile` is returned unchanged."""
        if isinstance(source, OnnxFile):
            return source
        library, _ = packages()
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        data, folder, name = _content(source)
        model: onnx.ModelProto = library.ModelProto()
        try:
            model.ParseFromString(data)
        except DecodeError as error:
            remedy = _remedy(name, data)
            raise InvalidValueError(f"{name} is not an ONNX file, or it is damaged: {error}{remedy}") from error
        if not model.graph.output or not model.opset_import:
            raise InvalidValueError(f"{name} is not an ONNX file: it has no graph with outputs, or names no opset")
        model.ClearField("training_info")
        external = _ExternalData(folder, LIMIT - len(data))
        for tensor in tensors(model):
            external.fill(tensor)
        identity, complete = external.identity(data, name)
        refuse_expansion(model, name)
        valid(model, name)
        if not OPSETS[0] <= opset(model) <= OPSETS[1]:
            raise UnsupportedModelError(
                f"{name} uses opset {opset(model)}; opsets {OPSETS[0]} to {OPSETS[1]} are read: export it again with "
                "one"
            )
        return cls(
            name=name,
            data=data,
            proto=model,
            identity=identity,
            complete=complete,
            external_files=tuple(external.contents),
        )

    def __repr__(self) -> str:
        return f"OnnxFile({self.name!r}, {len(self.data)} bytes, {self.identity[:12]}…)"

    def output(self, wanted: str | None) -> str:
        """The name of the wanted output, by default the first; an error if the model has no such output."""
        names = [value.name for value in self.proto.graph.output]
        if wanted is not None and wanted not in names:
            raise InvalidValueError(f"the model has no output {wanted!r}; it has {', '.join(names)}")
        return names[0] if wanted is None else wanted


Source: TypeAlias = str | os.PathLike[str] | bytes | OnnxFile


def _remedy(name: str, data: bytes) -> str:
    """What may help if these bytes are no ONNX model; it begins with a semicolon, or is empty."""
    if ".vnnlib" in name:
        return "; it seems to be a property: give the model first"
    if data.startswith(b"PK") or name.endswith((".pt", ".pth")):
        return "; it seems to be a file of torch.save: export the module with torch.onnx.export"
    if name.endswith((".pkl", ".pickle")):
        return "; it seems to be a pickle, and nothing is unpickled: export the module with torch.onnx.export"
    if name.endswith(".py"):
        return "; it seems to be Python: on the command line name the function too, FILE.py:function"
    return ""


def _content(source: str | os.PathLike[str] | bytes) -> tuple[bytes, Path | None, str]:
    """(bytes, folder, name): the model's bytes, decompressed; its folder, None for bytes; its name in errors."""
    if isinstance(source, bytes | bytearray):
        return _decompressed(bytes(source), "the model"), None, "the model"
    if not isinstance(source, str | os.PathLike):
        raise InvalidTypeError(f"the model is a {type(source).__name__}; give a path to an .onnx file, or its bytes")
    path = Path(source)
    if not path.is_file():
        raise InvalidValueError(f"{path} is not a file; give the path of an .onnx file (nothing is fetched from a hub)")
    return _decompressed(read_whole(path, LIMIT, "give a file that can be read"), str(path)), path.parent, str(path)


def _decompressed(data: bytes, name: str) -> bytes:
    """The bytes, decompressed if they are gzip; an error if there are none or more than LIMIT."""
    try:
        data = decompressed(data, LIMIT + 1)
    except DAMAGED as error:
        raise InvalidValueError(f"{name} is a damaged gzip file: {error}") from error
    if len(data) > LIMIT:
        raise InvalidValueError(f"{name} has more than {LIMIT} bytes; models up to that size are read")
    if not data:
        raise InvalidValueError(f"{name} is empty")
    return data


class _ExternalData:
    """The external data of a model: each file is read once, as a whole.

    `budget` and `unfilled` are the bytes that may still be read from files, and that may still be filled into tensors.
    """

    def __init__(self, folder: Path | None, budget: int) -> None:
        self.folder, self.budget, self.unfilled = folder, budget, budget
        self.contents: dict[Path, bytes] = {}
        self.hashes: dict[str, str] = {}
        """Location, as the model writes it → SHA-256 of the file."""

    def read(self, location: str, where: str) -> bytes:
        """The content of the file at a location; `where` begins the message of an error."""
        if self.folder is None:
            raise InvalidValueError(f"{where}, but only bytes were given: give the path of the model instead")
        try:
            path = reading.beside(self.folder, location)
        except Rejected as error:
            raise InvalidValueError(
                f"{where}, which is not a file inside the model's folder {self.folder.resolve()}"
            ) from error
        if path not in self.contents:
            try:
                content = read_whole(path, self.budget, "give a file that can be read")
            except InvalidValueError as error:
                raise InvalidValueError(
                    f"{where}; with it the model has more than {LIMIT} bytes, or it cannot be read: {error}"
                ) from error
            self.budget -= len(content)
            self.contents[path] = content
        if location not in self.hashes:
            self.hashes[location] = hashlib.sha256(self.contents[path]).hexdigest()
        return self.contents[path]

    def fill(self, tensor: onnx.TensorProto) -> None:
        """Replace a tensor's reference to external data by the data; other tensors stay unchanged."""
        entries = {e.key: e.value for e in tensor.external_data}
        where = f"tensor {tensor.name[:200]!r} keeps its data in the file {str(entries.get('location'))[:200]!r}"
        if tensor.data_location != type(tensor).EXTERNAL:
            if tensor.external_data:
                raise InvalidValueError(f"{where}, and says that it does not: export the model again")
            return
        if len(entries) < len(tensor.external_data):
            raise InvalidValueError(f"{where}, or in another: an entry occurs twice; export the model again")
        content = self.read(entries.get("location", ""), where)
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", LIMIT))
        except ValueError as error:
            raise InvalidValueError(f"{where}, with an offset or length that is not a number") from error
        length = min(length, len(content) - offset)
        if offset < 0 or length < 0:
            raise InvalidValueError(f"{where}, outside that file: offset {offset}, length {length}")
        self.unfilled -= length
        if self.unfilled < 0:
            raise InvalidValueError(f"{where}; with it the model has more than {LIMIT} bytes")
        tensor.raw_data = content[offset : offset + length]
        tensor.data_location = type(tensor).DEFAULT
        del tensor.external_data[:]

    def identity(self, data: bytes, name: str) -> tuple[str, bool]:
        """(identity, complete) of the model with these bytes: complete if it has no external data."""
        try:
            names = reading.locations(data)
            for location in names:  # files that only the training information refers to were not read yet
                self.read(location, f"{name} keeps numbers in the file {location[:200]!r}")
            return reading.identity(data, self.hashes), not names
        except Rejected as error:
            raise InvalidValueError(f"{name} is not an ONNX file, or it is damaged: {error}") from error


def valid(model: onnx.ModelProto, name: str) -> None:
    """Raise if onnx's checker rejects the model, or if it imports two versions of one domain."""
    library, _ = packages()
    try:
        library.checker.check_model(model)
    except (library.checker.ValidationError, ValueError, RuntimeError) as error:
        if not str(error).startswith("No Op registered"):  # the importer lists all unknown operators at once
            raise InvalidValueError(f"{name} is not a valid ONNX model: {error}") from error
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        if versions.setdefault(standard(entry.domain), entry.version) != entry.version:
            raise InvalidValueError(
                f"{name} names two versions of the operators of domain {entry.domain!r}, {entry.version} and "
                f"{versions[standard(entry.domain)]}: export it again"
            )


def opset(model: onnx.ModelProto) -> int:
    """The version of the standard operators that the model imports, 0 if it imports none."""
    return next((int(o.version) for o in model.opset_import if not standard(o.domain)), 0)


def input_names(graph: onnx.GraphProto) -> tuple[str, ...]:
    """The names of a model's inputs that are no initializers, in its order."""
    fixed = {proto.name for proto in graph.initializer}
    return tuple(value.name for value in graph.input if value.name not in fixed)


def has_open_sizes(graph: onnx.GraphProto) -> bool:
    """Whether an input of the model has a size without a number, besides its first, which is then 1."""
    fixed = {proto.name for proto in graph.initializer}
    return any(-1 in _sizes(value)[1:] for value in graph.input if value.name not in fixed)


def open_sizes(graph: onnx.GraphProto, name: str) -> list[bool]:
    """Which sizes of an input of the model have no number."""
    return [size == -1 for value in graph.input if value.name == name for size in _sizes(value)]


def _sizes(value: onnx.ValueInfoProto) -> list[int]:
    """The sizes of an input; −1 for one without a number."""
    dims = value.type.tensor_type.shape.dim
    return [max(int(d.dim_value), -1) if d.HasField("dim_value") else -1 for d in dims]


def model_inputs(
    graph: onnx.GraphProto, order: Sequence[str] | None, shapes: Sequence[Sequence[int]] | None = None
) -> tuple[ModelInput, ...]:
    """The inputs of a model that are no initializers, in this order, which names all of them; None: the only input.

    `shapes`: the shape of each input, in the same order, which gives open sizes their numbers.
    """
    names = input_names(graph)
    if order is None and len(names) != 1:
        said = ", ".join(repr(name) for name in names) or "none"
        raise UnsupportedModelError(
            f"the model has {len(names)} inputs ({said}), one is supported: make the others constants before export, "
            "or give a set for each input, vertex_softmax.sets.Product"
        )
    if order is not None and (sorted(order) != sorted(names) or not names):
        raise InvalidValueError(f"inputs are {list(order)}; they must be those of the model, {list(names)}, each once")
    by_name = {value.name: value for value in graph.input}
    chosen = names if order is None else tuple(order)
    if shapes is not None and len(shapes) != len(chosen):
        raise InvalidValueError(
            f"{len(shapes)} shapes were given, and the model has {len(chosen)} inputs: give one each"
        )
    given: Sequence[Sequence[int] | None] = [None] * len(chosen) if shapes is None else list(shapes)
    found = tuple(_model_input(by_name[name], shape) for name, shape in zip(chosen, given, strict=True))
    if len({each.kind for each in found}) > 1:
        raise UnsupportedModelError(
            "some inputs of the model are float32 and some float64: export it with inputs of one type"
        )
    return found


def _model_input(value: onnx.ValueInfoProto, given: Sequence[int] | None = None) -> ModelInput:
    """An input of a model, float32 or float64; open sizes are those of `given`, and without it a first one is 1."""
    name, kind = value.name, value.type.tensor_type
    if DTYPES.get(kind.elem_type) not in (torch.float32, torch.float64):
        raise UnsupportedModelError(
            f"input {name!r} is not float32 or float64; a model of tokens is exported from behind its embedding, a "
            "float16 model in float32"
        )
    if not kind.HasField("shape"):
        raise UnsupportedModelError(f"input {name!r} has no shape: export the model with fixed sizes")
    dims = _sizes(value)
    declared = [d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in kind.shape.dim]
    if 0 in dims:
        raise UnsupportedModelError(
            f"input {name!r} has shape {declared}, which holds no number: there is nothing to verify"
        )
    if given is not None:
        if len(given) != len(dims) or any(own not in (-1, n) or n < 1 for own, n in zip(dims, given, strict=True)):
            raise InvalidValueError(
                f"input {name!r} has shape {declared}, and the set holds inputs of shape {tuple(given)}: give inputs "
                "of a shape that the model takes"
            )
        dims = [int(n) for n in given]
    if any(n < 0 for n in dims[1:]):
        raise UnsupportedModelError(
            f"input {name!r} has shape {declared}, with open sizes: give an input set to `certify` or `bound`, whose "
            "shape they then have, or shapes to `from_onnx`; or export the model with fixed sizes"
        )
    return ModelInput(name, kind.elem_type, tuple(max(n, 1) for n in dims))


def to_tensor(proto: onnx.TensorProto, name: str) -> Tensor:
    """The tensor in its own dtype, with every number as stored; `name` names it in errors."""
    onnx, _ = packages()
    dtype = DTYPES.get(proto.data_type)
    if dtype is None:
        known = onnx.TensorProto.DataType.DESCRIPTOR.values_by_number
        kind = known[proto.data_type].name if proto.data_type in known else proto.data_type
        raise UnsupportedModelError(f"{name} has elements of type {kind}, which Vertex does not read")
    if any(n < 0 for n in proto.dims) or proto.data_location == onnx.TensorProto.EXTERNAL:
        raise InvalidValueError(f"{name} is damaged: its shape is {list(proto.dims)}, or its data is missing")
    try:
        array = onnx.numpy_helper.to_array(proto)
    except (ValueError, TypeError) as error:
        raise InvalidValueError(f"{name} is damaged: {error}") from error
    if dtype == torch.bfloat16:
        array = array.astype("float32")
    value: Tensor = torch.from_numpy(array.copy()).to(dtype)
    if value.is_floating_point() and bool((value.isnan() | (value == torch.inf)).any()):
        index = tuple((value.isnan() | (value == torch.inf)).nonzero()[0].tolist())
        raise InvalidValueError(
            f"{name} holds {value[index].item()} at {index}; weights are finite, masks may hold -inf"
        )
    return value
