"""What an ONNX model is made of: its tensors, the files it keeps numbers in, the nodes that an output depends on.

Invariant: nothing here believes the model. `beside` gives regular files inside the model's folder alone; `only` leaves
out what an output does not depend on, in functions too: nobody has looked at that, so nobody runs it.
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
"""Bytes of a model, decompressed and with external data; also protobuf's own limit."""
MOST_NODES = 1 << 20
"""Nodes of a model, with what its functions expand to."""
MOST_DEPTH = 100
"""Functions that call functions."""


class Key(NamedTuple):
    """By what a node means an operator or a local function."""

    domain: str
    """'' is the standard's, which may also be written 'ai.onnx'."""
    name: str
    overload: str

    @classmethod
    def of(cls, node: onnx.NodeProto) -> Key:
        """What the node calls."""
        return cls(standard(node.domain), node.op_type, node.overload)


def standard(domain: str) -> str:
    """The domain, the standard's two names as one."""
    return "" if domain == "ai.onnx" else domain


def local_functions(model: onnx.ModelProto) -> dict[Key, onnx.FunctionProto]:
    """The functions that the model brings with it."""
    return {Key(standard(f.domain), f.name, f.overload): f for f in model.functions}


def graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes: branches of an If, the body of a Loop."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and all in their graphs; no deeper than protobuf lets messages nest, which is 100."""
    for node in nodes:
        yield node
        for graph in graphs(node):
            yield from nodes_within(graph.node)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model's graph and functions, wherever it is written."""
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
    """Is a tensor of the model sparse?"""
    everywhere = [*nodes_within(model.graph.node), *nodes_within(n for f in model.functions for n in f.node)]
    attributes = [a for node in everywhere for a in node.attribute]
    attributes += [a for function in model.functions for a in function.attribute_proto]
    inner = (graph for node in everywhere for graph in graphs(node))
    return (
        bool(model.graph.sparse_initializer)
        or any(a.HasField("sparse_tensor") or a.sparse_tensors for a in attributes)
        or any(graph.sparse_initializer for graph in inner)
    )


def beside(model: Path, data: bytes) -> dict[str, Path]:
    """The files in its folder that a model, whose bytes these are, keeps numbers in, by the names it has for them.

    None of a model that cannot be read: what is wrong with it, whoever reads it will say.
    """
    from vertex_softmax.certificate.checker import Rejected
    from vertex_softmax.certificate.checker import model as reading

    found: dict[str, Path] = {}
    try:
        names = reading.locations(decompressed(data, LIMIT))
    except (*DAMAGED, Rejected):
        return {}
    for name in names:
        try:
            found[name] = reading.beside(model.parent, name)
        except Rejected:
            continue
    return found


def refuse_expansion(model: onnx.ModelProto, name: str) -> None:
    """Functions that call functions twice, thirty deep, are a small file and a billion nodes."""
    functions = local_functions(model)
    sizes: dict[Key, int] = {}

    def size(nodes: Iterable[onnx.NodeProto], depth: int, within: int) -> int:
        """depth: of functions; within: of functions and graphs."""
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

    for function in model.functions:  # also those that nothing calls: whoever expands them would not end
        size(function.node, 1, 1)
    if (total := size(model.graph.node, 0, 0)) > MOST_NODES:
        raise InvalidValueError(f"{name} has {total} nodes, its functions expanded; up to {MOST_NODES} are read")


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes that these names depend on, in their order; and all names that are used on the way."""
    wanted, found = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            found.append(node)
            wanted.update(node.input)
            for graph in graphs(node):  # what these read of the nodes outside; too many names do no harm
                wanted.update(name for inner in nodes_within(graph.node) for name in inner.input)
                wanted.update(value.name for value in graph.output)
    wanted.discard("")
    return found[::-1], wanted


def only(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The model of this one output, without what it does not depend on; the model itself if that is all of it.

    Functions are kept, but for nodes of theirs that nothing depends on, and for outputs that no call uses.
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
    found = type(model)()
    found.CopyFrom(model)
    for part in ("node", "output", "initializer", "value_info", "quantization_annotation", "input"):
        found.graph.ClearField(part)
    found.ClearField("functions")
    found.graph.node.extend(_calls_of(kept, functions, used))
    found.graph.output.extend(value for value in model.graph.output if value.name == output)
    found.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in names)
    gone = fixed - names
    found.graph.input.extend(value for value in model.graph.input if value.name not in gone)
    made = {name for node in kept for name in node.output}
    found.graph.value_info.extend(value for value in model.graph.value_info if value.name in made)
    for key, body in bodies.items():
        function = found.functions.add()
        function.CopyFrom(functions[key])
        for field in ("node", "output", "value_info"):
            function.ClearField(field)
        function.node.extend(_calls_of(body, functions, used))
        function.output.extend(name for i, name in enumerate(functions[key].output) if i in used[key])
    return found


def _note_calls(
    nodes: Iterable[onnx.NodeProto],
    names: set[str],
    functions: dict[Key, onnx.FunctionProto],
    used: dict[Key, set[int]],
) -> None:
    """Add which outputs of each function these nodes use; inside their graphs all count."""
    for node in nodes:
        if Key.of(node) in functions:
            used.setdefault(Key.of(node), set()).update(i for i, name in enumerate(node.output) if name in names)
        for inner in nodes_within(n for graph in graphs(node) for n in graph.node):
            if Key.of(inner) in functions:
                used.setdefault(Key.of(inner), set()).update(range(len(functions[Key.of(inner)].output)))


def _callers_first(nodes: Iterable[onnx.NodeProto], functions: dict[Key, onnx.FunctionProto]) -> list[Key]:
    """The functions that the nodes call, directly or not, each before those that it calls."""
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
    """The nodes, calls without the outputs that their function no longer has."""
    for node in nodes:
        key = Key.of(node)
        gone = set(range(len(functions[key].output))) - used.get(key, set()) if key in functions else set()
        if gone.intersection(range(len(node.output))):
            left = [name for i, name in enumerate(node.output) if i not in gone]
            changed = type(node)()
            changed.CopyFrom(node)
            changed.ClearField("output")
            changed.output.extend(left)
            yield changed
        else:
            yield node


class ModelInput(NamedTuple):
    """The one input of a model that is not an initializer."""

    name: str
    kind: int
    """ONNX's number of its element type."""
    shape: tuple[int, ...]
    """An open first size is 1."""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)
