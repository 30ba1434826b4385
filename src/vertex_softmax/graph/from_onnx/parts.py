"""The parts of an ONNX model: its tensors, the files of its external data, the nodes that an output depends on.

Invariant: the model is not trusted. `external_files` returns only regular files inside the model's folder. `only`
removes everything that an output does not depend on, also in functions: it was not checked, so it must not be run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import DAMAGED, decompressed

if TYPE_CHECKING:
    import onnx

LIMIT = 1 << 31
"""The most bytes of a model, decompressed and with external data; also protobuf's own limit."""
MOST_NODES = 1 << 20
"""The most nodes of a model after the expansion of its functions."""
MOST_DEPTH = 100
"""The deepest nesting of functions that call functions."""


class Key(NamedTuple):
    """The full name by which a node refers to an operator or a local function."""

    domain: str
    """'' is the domain of the standard, which may also be written 'ai.onnx'."""
    name: str
    overload: str

    @classmethod
    def of(cls, node: onnx.NodeProto) -> Key:
        """The full name of the operator or function that a node calls."""
        return cls(standard(node.domain), node.op_type, node.overload)


def standard(domain: str) -> str:
    """The domain's name, '' for both names of the standard's domain."""
    return "" if domain == "ai.onnx" else domain


def local_functions(model: onnx.ModelProto) -> dict[Key, onnx.FunctionProto]:
    """The functions that the model defines, by their full names."""
    return {Key(standard(f.domain), f.name, f.overload): f for f in model.functions}


def graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes, such as the branches of an If or the body of a Loop."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and all nodes in their graphs. The recursion is bounded: protobuf nests at most 100 messages."""
    for node in nodes:
        yield node
        for graph in graphs(node):
            yield from nodes_within(graph.node)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model's graph and functions: initializers, and tensors in attributes."""
    yield from _in_graph(model.graph)
    for function in model.functions:
        yield from _in_attributes(function.attribute_proto)
        for node in function.node:
            yield from _in_attributes(node.attribute)


def _in_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
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
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _in_graph(inner)


def has_sparse(model: onnx.ModelProto) -> bool:
    """Whether any tensor of the model is sparse."""
    everywhere = [*nodes_within(model.graph.node), *nodes_within(n for f in model.functions for n in f.node)]
    attributes = [a for node in everywhere for a in node.attribute]
    attributes += [a for function in model.functions for a in function.attribute_proto]
    inner = (graph for node in everywhere for graph in graphs(node))
    return (
        bool(model.graph.sparse_initializer)
        or any(a.HasField("sparse_tensor") or a.sparse_tensors for a in attributes)
        or any(graph.sparse_initializer for graph in inner)
    )


def external_files(model: Path, data: bytes) -> dict[str, Path]:
    """The files of the external data of the model at a path with these bytes: location in the model → path.

    Only files inside the model's folder; empty for a damaged model, whose fault is reported where it is read.
    """
    from vertex_softmax.certificate.checker import Rejected
    from vertex_softmax.certificate.checker import model as reading

    files: dict[str, Path] = {}
    try:
        locations = reading.locations(decompressed(data, LIMIT))
    except (*DAMAGED, Rejected):
        return {}
    for location in locations:
        try:
            files[location] = reading.beside(model.parent, location)
        except Rejected:
            continue
    return files


def refuse_expansion(model: onnx.ModelProto, name: str) -> None:
    """Raise if the expansion of functions would not end or give too many nodes.

    Functions that call functions twice, thirty levels deep, are a small file but a billion nodes.
    """
    functions = local_functions(model)
    sizes: dict[Key, int] = {}

    def size(nodes: Iterable[onnx.NodeProto], depth: int, within: int) -> int:
        """The number of nodes after expansion; `depth` counts nested functions, `within` functions and graphs."""
        total = 0
        for node in nodes:
            total += 1
            key = Key.of(node)
            if key in functions:
                if depth >= len(functions) or within >= MOST_DEPTH:
                    raise InvalidValueError(
                        f"{name}: the function {node.op_type[:200]!r} calls itself, or functions nest deeper than "
                        f"{MOST_DEPTH}; export the model without functions"
                    )
                if key not in sizes:
                    sizes[key] = size(functions[key].node, depth + 1, within + 1)
                total += sizes[key]
            total += sum(size(inner.node, depth, within + 1) for inner in graphs(node))
        return total

    for function in model.functions:  # also those that are never called: an inliner that expands them would not end
        size(function.node, 1, 1)
    if (total := size(model.graph.node, 0, 0)) > MOST_NODES:
        raise InvalidValueError(f"{name} has {total} nodes, its functions expanded; up to {MOST_NODES} are read")


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """(nodes, names): the nodes that these outputs depend on, in their order, and all names that they use."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
            for graph in graphs(node):  # names that these may take from outside; too many do no harm
                wanted.update(name for inner in nodes_within(graph.node) for name in inner.input)
                wanted.update(value.name for value in graph.output)
    wanted.discard("")
    return kept[::-1], wanted


def only(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The model with this output alone, without anything it does not depend on; the same object if nothing is removed.

    Functions are kept, without the nodes that the output does not depend on and the outputs that no call uses.
    """
    functions = local_functions(model)
    kept, names = needed(model.graph.node, [output])
    used: dict[Key, set[int]] = {}
    _note_calls(kept, names, functions, used)
    bodies: dict[Key, list[onnx.NodeProto]] = {}
    for key in _callers_first(kept, functions):
        outputs = list(functions[key].output)
        wanted = [name for i, name in enumerate(outputs) if i in used.get(key, ())]
        if wanted:
            bodies[key], inside = needed(functions[key].node, wanted)
            _note_calls(bodies[key], inside, functions, used)
    fixed = {tensor.name for tensor in model.graph.initializer}
    if (
        len(kept) == len(model.graph.node)
        and [value.name for value in model.graph.output] == [output]
        and fixed <= names
        and len(bodies) == len(model.functions)
        and all(len(bodies[k]) == len(f.node) and len(used[k]) == len(f.output) for k, f in functions.items())
    ):
        return model
    reduced = type(model)()
    reduced.CopyFrom(model)
    for part in ("node", "output", "initializer", "value_info", "quantization_annotation", "input"):
        reduced.graph.ClearField(part)
    reduced.ClearField("functions")
    reduced.graph.node.extend(_calls_of(kept, functions, used))
    reduced.graph.output.extend(value for value in model.graph.output if value.name == output)
    reduced.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in names)
    removed = fixed - names
    reduced.graph.input.extend(value for value in model.graph.input if value.name not in removed)
    computed = {name for node in kept for name in node.output}
    reduced.graph.value_info.extend(value for value in model.graph.value_info if value.name in computed)
    for key, body in bodies.items():
        function = reduced.functions.add()
        function.CopyFrom(functions[key])
        for field in ("node", "output", "value_info"):
            function.ClearField(field)
        function.node.extend(_calls_of(body, functions, used))
        function.output.extend(name for i, name in enumerate(functions[key].output) if i in used[key])
    return reduced


def _note_calls(
    nodes: Iterable[onnx.NodeProto],
    names: set[str],
    functions: dict[Key, onnx.FunctionProto],
    used: dict[Key, set[int]],
) -> None:
    """Add to `used` the outputs of each function that these nodes use; of calls inside their graphs all outputs."""
    for node in nodes:
        if Key.of(node) in functions:
            used.setdefault(Key.of(node), set()).update(i for i, name in enumerate(node.output) if name in names)
        for inner in nodes_within(n for graph in graphs(node) for n in graph.node):
            if Key.of(inner) in functions:
                used.setdefault(Key.of(inner), set()).update(range(len(functions[Key.of(inner)].output)))


def _callers_first(nodes: Iterable[onnx.NodeProto], functions: dict[Key, onnx.FunctionProto]) -> list[Key]:
    """The functions that the nodes call, directly or indirectly, each before those that it calls."""
    done: dict[Key, None] = {}

    def visit(body: Iterable[onnx.NodeProto]) -> None:
        for node in nodes_within(body):
            key = Key.of(node)
            if key in functions and key not in done:
                visit(functions[key].node)
                done[key] = None

    visit(nodes)
    return list(reversed(done))


def _calls_of(
    nodes: Iterable[onnx.NodeProto], functions: dict[Key, onnx.FunctionProto], used: dict[Key, set[int]]
) -> Iterator[onnx.NodeProto]:
    """The nodes; calls of functions lose the outputs that their function no longer has."""
    for node in nodes:
        key = Key.of(node)
        removed = set(range(len(functions[key].output))) - used.get(key, set()) if key in functions else set()
        if removed.intersection(range(len(node.output))):
            changed = type(node)()
            changed.CopyFrom(node)
            changed.ClearField("output")
            changed.output.extend(name for i, name in enumerate(node.output) if i not in removed)
            yield changed
        else:
            yield node


class ModelInput(NamedTuple):
    """An input of a model that is not an initializer."""

    name: str
    kind: int
    """ONNX's number of its element type."""
    shape: tuple[int, ...]
    """Its shape; an open first size is 1."""

    @property
    def size(self) -> int:
        """The number of its entries."""
        return math.prod(self.shape)
