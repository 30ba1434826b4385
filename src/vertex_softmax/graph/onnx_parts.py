"""What an ONNX model is made of: its tensors, the files it keeps numbers in, the nodes that an output depends on.

Invariant: nothing here believes the model. `place` gives regular files inside the model's folder alone; `only` leaves
out what an output does not depend on: nobody has looked at that, so nobody runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vertex_softmax.errors import InvalidValueError
from vertex_softmax.files import DAMAGED, decompressed

if TYPE_CHECKING:
    import onnx

LIMIT = 1 << 31
"""Bytes of a model, decompressed and with external data; also protobuf's own limit."""
EXTERNAL = b"location"
"""What is in the bytes of every model that keeps numbers in other files."""
MOST_NODES = 1 << 20
"""Nodes of a model, with what its functions expand to."""
MOST_DEPTH = 100
"""Functions that call functions."""


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model, wherever it is written."""
    yield from _in_graph(model.graph)
    for function in model.functions:
        yield from _in_attributes(function.attribute_proto)
        for node in function.node:
            yield from _in_attributes(node.attribute)


def _in_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """No deeper than protobuf lets messages nest, which is 100."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _in_attributes(node.attribute)


def _in_attributes(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        one = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        for sparse in (*one, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for inner in _graphs(attribute):
            yield from _in_graph(inner)


def _graphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def beside(model: Path, data: bytes) -> dict[str, Path]:
    """The files in its folder that a model, whose bytes these are, keeps numbers in, by the names it has for them.

    None of a model that cannot be read: what is wrong with it, whoever reads it will say.
    """
    try:
        data = decompressed(data, LIMIT)
    except DAMAGED:
        return {}
    if EXTERNAL not in data:
        return {}
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        return {}
    found = {_location(tensor): place(tensor, model.parent) for tensor in tensors(proto) if tensor.external_data}
    return {name: path for name, path in sorted(found.items()) if path is not None}


def _location(tensor: onnx.TensorProto) -> str:
    return {str(entry.key): str(entry.value) for entry in tensor.external_data}.get("location", "")


def place(tensor: onnx.TensorProto, folder: Path) -> Path | None:
    """Where a tensor's external data is, if that is a regular file inside the folder; links are followed first."""
    try:
        home = folder.resolve()
        path = (home / _location(tensor)).resolve()
        return path if path.is_relative_to(home) and path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, or links in a circle
        return None


def refuse_expansion(model: onnx.ModelProto, name: str) -> None:
    """Functions that call functions twice, thirty deep, are a small file and a billion nodes."""
    functions = {(function.domain, function.name): function for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[onnx.NodeProto], depth: int) -> int:
        total = 0
        for node in nodes:
            total += 1
            key = (node.domain, node.op_type)
            if key in functions:
                if depth >= min(len(functions), MOST_DEPTH):
                    raise InvalidValueError(
                        f"{name}: the function {node.op_type[:200]!r} calls itself, or functions nest deeper than "
                        f"{MOST_DEPTH}; export the model without functions"
                    )
                if key not in sizes:
                    sizes[key] = size(functions[key].node, depth + 1)
                total += sizes[key]
            total += sum(size(inner.node, depth) for attribute in node.attribute for inner in _graphs(attribute))
        return total

    if (total := size(model.graph.node, 0)) > MOST_NODES:
        raise InvalidValueError(f"{name} has {total} nodes, its functions expanded; up to {MOST_NODES} are read")


def needed(graph: onnx.GraphProto, output: str) -> list[onnx.NodeProto]:
    """The nodes the output depends on, in the model's order."""
    wanted, found = {output}, []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            found.append(node)
            wanted.update(name for name in node.input if name)
    return found[::-1]


def only(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The model of this one output, without what it does not depend on."""
    found = type(model)()
    found.CopyFrom(model)
    nodes = needed(model.graph, output)
    used = {name for node in nodes for name in node.input} | {output}
    for field in ("functions", "training_info", "metadata_props"):
        found.ClearField(field)
    for part in ("node", "output", "initializer", "value_info", "quantization_annotation"):
        found.graph.ClearField(part)
    found.graph.node.extend(nodes)
    found.graph.output.extend(value for value in model.graph.output if value.name == output)
    found.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in used)
    return found
