"""Changes to a model that is still protobuf: sizes, types, names, attributes, operators, functions, subgraphs."""

from __future__ import annotations

import gzip
import random
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from mutators import Blind
from onnx import TensorProto, helper

from vertex_softmax.graph.from_onnx.ops import TRANSLATE

OPERATORS = tuple(sorted({kind for domain, kind in TRANSLATE if not domain}))
OTHERS = (
    "Loop",
    "If",
    "Scan",
    "OneHot",
    "RandomUniform",
    "Resize",
    "TopK",
    "SequenceEmpty",
    "StringNormalizer",
    "Nope",
)
SIZES = (0, 1, 2, 3, 4, 7, -1, -2, 64, 1000, 1 << 14, 1 << 20, 1 << 28, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))
PLACES = (
    "numbers.bin",
    "../numbers.bin",
    "/etc/passwd",
    "/dev/zero",
    "",
    ".",
    "model.onnx",
    "numbers.bin/",
    "a\0b",
    "x" * 300,
)
ATTRIBUTES = ("axis", "axes", "perm", "shape", "pads", "strides", "dilations", "group", "kernel_shape", "to", "epsilon")
ATTRIBUTES += (
    "value",
    "alpha",
    "beta",
    "transA",
    "transB",
    "keepdims",
    "num_heads",
    "q_num_heads",
    "kv_num_heads",
    "k",
)
ATTRIBUTES += (
    "equation",
    "split",
    "num_outputs",
    "auto_pad",
    "mode",
    "upper",
    "fmod",
    "value_ints",
    "value_float",
    "scale",
)
ATTRIBUTES += ("is_causal", "softcap", "interleaved", "num_groups", "ceil_mode", "count_include_pad", "start", "end")


def model(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """A model, changed in one to five places."""
    if rng.random() < 0.05:
        return blind(data)
    found = onnx.ModelProto()
    try:
        found.ParseFromString(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (DecodeError, OSError, EOFError):
        return blind(data)
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        rng.choice(CHANGES)(found, rng)
    made: bytes = found.SerializeToString()
    return gzip.compress(made, 1) if rng.random() < 0.03 else made


def _node(found: onnx.ModelProto, rng: random.Random) -> Any:
    nodes = found.graph.node
    return rng.choice(nodes) if nodes else nodes.add()


def _tensor(found: onnx.ModelProto, rng: random.Random) -> Any:
    held = [a.t for node in found.graph.node for a in node.attribute if a.HasField("t")]
    held += list(found.graph.initializer)
    return rng.choice(held) if held else found.graph.initializer.add()


def _names(found: onnx.ModelProto) -> list[str]:
    names = [n for node in found.graph.node for n in (*node.input, *node.output)]
    return [*names, *(i.name for i in found.graph.initializer), *(i.name for i in found.graph.input), "", "fresh"]


def _dims(found: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(found, rng)
    if tensor.dims and rng.random() < 0.8:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(SIZES)
    else:
        tensor.dims.append(rng.choice(SIZES))


def _integers(found: onnx.ModelProto, rng: random.Random) -> None:
    """A constant of a few integers: shapes, repeats, axes."""
    held = [t for t in found.graph.initializer if t.data_type == TensorProto.INT64] or [_tensor(found, rng)]
    tensor = rng.choice(held)
    count = rng.choice((1, 1, 2, 3, 4, 8))
    values = [rng.choice(SIZES) for _ in range(count)]
    tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.INT64, [count], values))


def _kind(found: onnx.ModelProto, rng: random.Random) -> None:
    _tensor(found, rng).data_type = rng.choice((*range(25), 99))


def _raw(found: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(found, rng)
    raw = tensor.raw_data
    tensor.raw_data = rng.choice((b"", raw[:-1], raw + b"\0", raw * 2, raw[: len(raw) // 2], b"\xff" * len(raw)))
    if rng.random() < 0.2:
        tensor.float_data.extend([float("nan"), 1e38, 0.0])


def _outside(found: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(found, rng)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=rng.choice(PLACES))
    for key in ("offset", "length", "location"):
        if rng.random() < 0.4:
            tensor.external_data.add(
                key=key, value=rng.choice(("0", "4", "1024", "-1", "x", "9" * 5000, "1_0", "٣", ""))
            )


def _input(found: onnx.ModelProto, rng: random.Random) -> None:
    values = [*found.graph.input, *found.graph.output]
    kind = rng.choice(values).type.tensor_type if values else found.graph.input.add().type.tensor_type
    pick = rng.random()
    if pick < 0.6 and kind.shape.dim:
        rng.choice(kind.shape.dim).dim_value = rng.choice(SIZES)
    elif pick < 0.8:
        kind.shape.dim.add().dim_value = rng.choice(SIZES)
    elif pick < 0.9:
        kind.elem_type = rng.randrange(20)
    else:
        kind.ClearField("shape")


def _connect(found: onnx.ModelProto, rng: random.Random) -> None:
    """Another input or output: cycles, names that are there twice, names of nothing."""
    node, name = _node(found, rng), rng.choice(_names(found))
    ends = node.input if rng.random() < 0.7 else node.output
    if ends and rng.random() < 0.8:
        ends[rng.randrange(len(ends))] = name
    else:
        ends.append(name)


def _operator(found: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(found, rng)
    node.op_type = rng.choice(OPERATORS if rng.random() < 0.9 else OTHERS)
    if rng.random() < 0.05:
        node.domain = rng.choice(("com.microsoft", "ai.onnx", "nobody", "ai.onnx.ml"))


def _insert(found: onnx.ModelProto, rng: random.Random) -> None:
    """A node behind a tensor that is there; what used it may use the new one."""
    nodes, names = list(found.graph.node), _names(found)
    at = rng.randrange(len(nodes) + 1)
    name = f"new{rng.randrange(1000)}"
    inputs = [rng.choice(names) for _ in range(rng.choice((1, 1, 2, 2, 3, 5)))]
    made = helper.make_node(rng.choice(OPERATORS), inputs, [name])
    for node in nodes[at:]:
        for i, used in enumerate(node.input):
            if used == inputs[0] and rng.random() < 0.7:
                node.input[i] = name
    del found.graph.node[:]
    found.graph.node.extend([*nodes[:at], made, *nodes[at:]])


def _remove(found: onnx.ModelProto, rng: random.Random) -> None:
    part = rng.choice((found.graph.node, found.graph.initializer, found.graph.output, found.graph.input))
    if part:
        del part[rng.randrange(len(part))]


def _attribute(found: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(found, rng)
    if node.attribute and rng.random() < 0.6:
        held = rng.choice(node.attribute)
        name = held.name
        if rng.random() < 0.1:
            held.type = rng.randrange(15)
            return
        node.attribute.remove(held)
    else:
        name = rng.choice(ATTRIBUTES)
    sizes = [rng.choice(SIZES) for _ in range(rng.choice((0, 1, 2, 4)))]
    values = (
        rng.choice(SIZES),
        sizes,
        rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf"))),
        "ij,jk->ik",
        "SAME_UPPER",
    )
    value = rng.choice(values)
    if value == []:
        held = node.attribute.add(name=name, type=onnx.AttributeProto.INTS)
        return
    node.attribute.append(helper.make_attribute(name, value))


def _opset(found: onnx.ModelProto, rng: random.Random) -> None:
    if found.opset_import:
        rng.choice(found.opset_import).version = rng.choice((9, 10, 11, 13, 14, 17, 18, 20, 23, 1, 24, 1 << 40, -1))
    else:
        found.opset_import.add(version=18)


def _subgraph(found: onnx.ModelProto, rng: random.Random) -> None:
    """The graph inside one of its own nodes, some levels deep."""
    for _ in range(rng.choice((1, 1, 2, 12))):
        if found.ByteSize() > 1 << 16:
            return
        held = _node(found, rng).attribute.add(name=rng.choice(("body", "then_branch", "else_branch")), type=5)
        inner = onnx.GraphProto()
        inner.CopyFrom(found.graph)
        held.g.CopyFrom(inner)


def _function(found: onnx.ModelProto, rng: random.Random) -> None:
    """A node becomes a call of a function; functions call each other, or themselves."""
    name = f"f{rng.randrange(4)}"
    body = [helper.make_node(rng.choice(OPERATORS), ["a"], ["b"])]
    calls = rng.choice((0, 1, 2))
    body += [helper.make_node(f"f{rng.randrange(4)}", ["b"], [f"b{i}"], domain="made") for i in range(calls)]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("made", 1)]
    found.functions.append(helper.make_function("made", name, ["a"], ["b"], body, opsets))
    if all(o.domain != "made" for o in found.opset_import):
        found.opset_import.append(helper.make_opsetid("made", 1))
    node = _node(found, rng)
    node.op_type, node.domain = name, "made"


CHANGES = (_dims, _integers, _integers, _kind, _raw, _outside, _input, _input, _connect, _connect, _operator, _operator)
CHANGES += (_insert, _insert, _insert, _remove, _attribute, _attribute, _attribute, _opset, _subgraph, _function)
