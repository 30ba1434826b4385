"""One network as ONNX files of many styles: plain, permuted, renamed, in functions, with other files, compressed."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.graph.onnx_calls import call, function, model, node


def network(seed: int) -> onnx.ModelProto:
    """Some layers with branches; its floats are attributes of nodes, its weights initializers."""
    rng = np.random.default_rng(seed)
    constants: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []
    known = ["x"]

    def weight(*shape: int) -> str:
        constants[f"w{len(constants)}"] = (rng.normal(size=shape) / 2).astype(np.float32)
        return f"w{len(constants) - 1}"

    for i in range(int(rng.integers(4, 9))):
        a, b, out = str(rng.choice(known[-3:])), str(rng.choice(known)), f"t{i}"
        slope = float(np.float32(rng.uniform(0.05, 0.5)))
        nodes.append(
            [
                lambda a=a, out=out, s=slope: node("LeakyRelu", [a], out, alpha=s),
                lambda a=a, out=out: node("LeakyRelu", [a], out),
                lambda a=a, out=out, s=slope: node("Gemm", [a, weight(4, 4), weight(4)], out, alpha=s, transB=1),
                lambda a=a, b=b, out=out: node("Add", [a, b], out),
                lambda a=a, out=out: node("LayerNormalization", [a, weight(4), weight(4)], out, epsilon=0.125),
                lambda a=a, out=out: node("Softmax", [a], out, axis=-1),
                lambda a=a, out=out: node("MatMul", [a, weight(4, 4)], out),
                lambda a=a, b=b, out=out: node("Mul", [a, b], out),
            ][int(rng.integers(8))]()
        )
        known.append(out)
    nodes.append(node("MatMul", [known[-1], weight(4, 3)], "y"))
    made = model(nodes, (), constants)
    _tidy(made)
    return made


def _tidy(proto: onnx.ModelProto) -> None:
    """Without what the output does not depend on."""
    wanted, kept = {"y"}, []
    for each in reversed(proto.graph.node):
        if wanted.intersection(each.output):
            kept.append(each)
            wanted.update(each.input)
    constants = [tensor for tensor in proto.graph.initializer if tensor.name in wanted]
    proto.graph.ClearField("node")
    proto.graph.ClearField("initializer")
    proto.graph.node.extend(kept[::-1])
    proto.graph.initializer.extend(constants)


def copied(proto: onnx.ModelProto) -> onnx.ModelProto:
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    return found


def permuted(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The nodes in another order that is one; the initializers in any."""
    rng, found = np.random.default_rng(seed), copied(proto)
    left, known, order = list(proto.graph.node), {"x", *(t.name for t in proto.graph.initializer)}, []
    while left:
        ready = [n for n in left if known.issuperset(i for i in n.input if i)]
        chosen = ready[int(rng.integers(len(ready)))]
        left.remove(chosen)
        known.update(chosen.output)
        order.append(chosen)
    constants = [proto.graph.initializer[i] for i in rng.permutation(len(proto.graph.initializer))]
    found.graph.ClearField("node")
    found.graph.ClearField("initializer")
    found.graph.node.extend(order)
    found.graph.initializer.extend(constants)
    return found


def renamed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Names that are odd, but for the input's and the output's."""
    found = copied(proto)
    odd = lambda name: name if name in ("x", "y", "") else f"/{name}::ü b"  # noqa: E731
    for each in found.graph.node:
        each.input[:] = [odd(name) for name in each.input]
        each.output[:] = [odd(name) for name in each.output]
        each.name = f"n of {each.output[0]}"
    for tensor in found.graph.initializer:
        tensor.name = odd(tensor.name)
    return found


def in_functions(proto: onnx.ModelProto, *, levels: int, defaults: bool) -> onnx.ModelProto:
    """Every node with floats becomes a call of a function of its own, through so many levels.

    defaults: the floats are defaults that the call leaves out; else the call has them, and the defaults are others.
    """
    found = copied(proto)
    for number, each in enumerate(found.graph.node):
        values = {a.name: a.f for a in each.attribute if a.type == onnx.AttributeProto.FLOAT}
        if not values:
            continue
        ins, others = [f"a{i}" for i in range(len(each.input))], [a for a in each.attribute if a.name not in values]
        inner = node(each.op_type, ins, "b", refs={name: f"{name}0" for name in values})
        inner.attribute.extend(others)
        name = f"f{number}"
        for level in range(levels):
            body = [inner] if level == 0 else [
                call(f"{name}_{level - 1}", ins, "b", refs={f"{v}{level - 1}": f"{v}{level}" for v in values})
            ]  # fmt: skip
            last = level == levels - 1
            set_to = {f"{v}{level}": (value if defaults and last else 0.75) for v, value in values.items()}
            found.functions.append(function(f"{name}_{level}", body, inputs=ins, **set_to))
        outer = {} if defaults else {f"{v}{levels - 1}": value for v, value in values.items()}
        each.CopyFrom(call(f"{name}_{levels - 1}", list(each.input), each.output[0], **outer))
    return found


def in_one_function(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The whole network as one function of the input and the weights, called under names that it uses inside."""
    names = [tensor.name for tensor in proto.graph.initializer]
    body = function("all", list(proto.graph.node), inputs=["x", *names], outputs=["y"])
    swapped = {name: names[(i + 1) % len(names)] for i, name in enumerate(names)}  # the outer names are other ones
    found = copied(proto)
    found.graph.ClearField("node")
    for tensor in found.graph.initializer:
        tensor.name = swapped[tensor.name]
    found.graph.node.append(call("all", ["x", *(swapped[name] for name in names)], "y"))
    found.functions.append(body)
    return found


def beside(proto: onnx.ModelProto, folder: Path, names: Sequence[str] = ("w.bin",)) -> Path:
    """With its weights in other files, at odd places; where the model is."""
    found, contents = copied(proto), {name: bytearray(b"head") for name in names}
    for i, tensor in enumerate(found.graph.initializer):
        name = names[i % len(names)]
        data = numpy_helper.to_array(tensor).tobytes()
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", name), ("offset", len(contents[name])), ("length", len(data))):
            tensor.external_data.add(key=key, value=str(value))
        contents[name] += data
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(bytes(content))
    (folder / "m.onnx").write_bytes(found.SerializeToString())
    return folder / "m.onnx"


def styles(proto: onnx.ModelProto, seed: int, folder: Path) -> dict[str, bytes | Path]:
    """The same network, by the names of the styles."""
    plain = proto.SerializeToString()
    unused = copied(proto)
    unused.graph.node.append(helper.make_node("Exp", ["x"], ["nobody"]))
    return {
        "plain": plain,
        "compressed": gzip.compress(plain),
        "permuted": permuted(proto, seed).SerializeToString(),
        "renamed": renamed(permuted(proto, seed + 1)).SerializeToString(),
        "defaults": in_functions(proto, levels=1, defaults=True).SerializeToString(),
        "given": in_functions(proto, levels=1, defaults=False).SerializeToString(),
        "nested defaults": in_functions(proto, levels=3, defaults=True).SerializeToString(),
        "nested given": in_functions(renamed(proto), levels=2, defaults=False).SerializeToString(),
        "one function": in_one_function(proto).SerializeToString(),
        "more nodes": unused.SerializeToString(),
        "one file": beside(proto, folder / "one"),
        "two files": beside(in_functions(proto, levels=2, defaults=True), folder / "two", ("w.bin", "ü v.data")),
    }
