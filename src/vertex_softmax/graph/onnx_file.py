"""Read an ONNX file without trusting it.

Invariant: `load` returns a checked model whose tensors all lie in memory, at most LIMIT bytes of them, read from
nowhere but the file itself and (external data) regular files inside its folder. Its functions are inlined.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vertex_softmax.errors import InvalidTypeError, InvalidValueError, MissingDependencyError, UnsupportedModelError
from vertex_softmax.files import DAMAGED, decompressed, read_whole, regular
from vertex_softmax.graph.onnx_parts import LIMIT, place, refuse_expansion, tensors

if TYPE_CHECKING:
    import onnx

OPSETS = (9, 23)
DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}
"""ONNX's number of an element type → torch's type."""


def packages() -> tuple[Any, Any]:
    """onnx, with the modules used here, and onnxruntime."""
    try:
        import onnx
        import onnx.helper
        import onnx.inliner
        import onnx.numpy_helper
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            f"{error.name} is not installed, and ONNX models need it: pip install 'vertex-softmax[onnx]'"
        ) from error
    return onnx, onnxruntime


def read(source: str | os.PathLike[str] | bytes) -> tuple[bytes, Path | None]:
    """The model's bytes, decompressed if they are gzip, and its folder (None for bytes)."""
    if isinstance(source, bytes | bytearray):
        return _decompressed(bytes(source), "the model"), None
    if not isinstance(source, str | os.PathLike):
        raise InvalidTypeError(f"the model is a {type(source).__name__}; give a path to an .onnx file, or its bytes")
    path = Path(source)
    if not path.is_file():
        raise InvalidValueError(f"{path} is not a file")
    return _decompressed(read_whole(path, LIMIT, "give a file that can be read"), str(path)), path.parent


def _decompressed(data: bytes, name: str) -> bytes:
    try:
        data = decompressed(data, LIMIT + 1)
    except DAMAGED as error:
        raise InvalidValueError(f"{name} is a damaged gzip file: {error}") from error
    if len(data) > LIMIT:
        raise InvalidValueError(f"{name} has more than {LIMIT} bytes; models up to that size are read")
    if not data:
        raise InvalidValueError(f"{name} is empty")
    return data


def load(source: str | os.PathLike[str] | bytes) -> onnx.ModelProto:
    """The checked model, local functions inlined."""
    library, _ = packages()
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    data, folder = read(source)
    name = "the model" if isinstance(source, bytes) else str(source)
    model: onnx.ModelProto = library.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise InvalidValueError(f"{name} is not an ONNX file, or it is damaged: {error}") from error
    if not model.graph.output or not model.opset_import:
        raise InvalidValueError(f"{name} is not an ONNX file: it has no graph with outputs, or names no opset")
    budget = LIMIT - len(data)
    model.ClearField("training_info")
    for tensor in tensors(model):
        budget -= _bring_in(tensor, folder, budget)
    refuse_expansion(model, name)
    try:
        if model.functions:
            model = library.inliner.inline_local_functions(model)
        library.checker.check_model(model)
    except (library.checker.ValidationError, ValueError, RuntimeError) as error:
        if not str(error).startswith("No Op registered"):  # the importer lists the operators it does not know
            raise InvalidValueError(f"{name} is not a valid ONNX model: {error}") from error
    if not OPSETS[0] <= opset(model) <= OPSETS[1]:
        raise UnsupportedModelError(
            f"{name} uses opset {opset(model)}; opsets {OPSETS[0]} to {OPSETS[1]} are read: export it again with one"
        )
    return model


def opset(model: onnx.ModelProto) -> int:
    """The version of the standard operators, 0 if there is none."""
    return max((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)


def _bring_in(tensor: onnx.TensorProto, folder: Path | None, budget: int) -> int:
    """External data into the tensor; the number of bytes read."""
    if tensor.data_location != type(tensor).EXTERNAL:
        return 0
    entries = {e.key: e.value for e in tensor.external_data}
    where = f"tensor {tensor.name[:200]!r} keeps its data in the file {str(entries.get('location'))[:200]!r}"
    if folder is None:
        raise InvalidValueError(f"{where}, which bytes do not come with: give the path of the model instead")
    path = place(tensor, folder)
    if path is None:
        raise InvalidValueError(f"{where}, which is not a file inside the model's folder {folder.resolve()}")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", LIMIT))
    except ValueError as error:
        raise InvalidValueError(f"{where}, with an offset or length that is not a number") from error
    try:
        with regular(path) as file:
            length = min(length, os.fstat(file.fileno()).st_size - offset)
            if offset < 0 or length < 0:
                raise InvalidValueError(f"{where}, outside that file: offset {offset}, length {length}")
            if length > budget:
                raise InvalidValueError(f"{where}; with it the model has more than {LIMIT} bytes")
            file.seek(offset)
            tensor.raw_data = file.read(length)
    except OSError as error:
        raise InvalidValueError(f"{where}, which cannot be read ({error.strerror})") from error
    tensor.data_location = type(tensor).DEFAULT
    del tensor.external_data[:]
    return length


def to_tensor(proto: onnx.TensorProto, name: str) -> Tensor:
    """The tensor in its own type, every number as stored."""
    onnx, _ = packages()
    dtype = DTYPES.get(proto.data_type)
    if dtype is None:
        known = onnx.TensorProto.DataType.DESCRIPTOR.values_by_number
        kind = known[proto.data_type].name if proto.data_type in known else proto.data_type
        raise UnsupportedModelError(f"{name} has elements of type {kind}, which Vertex does not read")
    if any(n < 0 for n in proto.dims) or proto.data_location == onnx.TensorProto.EXTERNAL:
        raise InvalidValueError(f"{name} is damaged: its shape is {list(proto.dims)}, or its data is not there")
    try:
        array = onnx.numpy_helper.to_array(proto)
    except (ValueError, TypeError) as error:
        raise InvalidValueError(f"{name} is damaged: {error}") from error
    if dtype == torch.bfloat16:
        array = array.astype("float32")
    value: Tensor = torch.from_numpy(array.copy()).to(dtype)
    if value.is_floating_point() and bool((value.isnan() | (value == torch.inf)).any()):
        at = tuple((value.isnan() | (value == torch.inf)).nonzero()[0].tolist())
        raise InvalidValueError(f"{name} holds {value[at].item()} at {at}; weights are finite, masks may hold -inf")
    return value
