"""One ONNX graph, said differently: in functions, under other names, in another order, as other files.

Invariant: what `restyled` returns computes the same as what it was given, by the ONNX standard, unless the style is one
of CHANGED: those are judged by onnxruntime alone.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAME = (
    "plain",
    "renamed",
    "permuted",
    "constants",
    "identities",
    "external",
    "gzip",
    "functions",
    "nested",
    "colliding",
)
"""Styles that leave every op as it is."""
CHANGED = ("defaults", "override", "override microsoft", "override custom")
"""Styles in which what a reader makes of functions decides."""


def restyled(model: Any, style: str, seed: int) -> Any:
    """A copy of a ModelProto in a style."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return STYLES[style](copy, random.Random(seed)) if style in STYLES else copy  # noqa: S311 - no secret


def saved(model: Any, style: str, folder: Path) -> Path:
    """The file, or files."""
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("model.onnx.gz" if style == "gzip" else "model.onnx")
    if style == "gzip":
        path.write_bytes(gzip.compress(model.SerializeToString()))
    elif style == "external":
        onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=17)
    else:
        path.write_bytes(model.SerializeToString())
    return path


def _renamed(model: Any, rng: random.Random) -> Any:
    """Every tensor has another name, some of them of operators."""
    names: dict[str, str] = {}
    pool = ["Relu", "x", "0", "ü", "a/b", "h0", "c0", "weights", "Softmax", "-", "a b"]
    rng.shuffle(pool)

    def new(name: str) -> str:
        if name and name not in names:
            names[name] = pool.pop() if pool and rng.random() < 0.5 else f"t{len(names)}"
        return names.get(name, "")

    graph = model.graph
    for value in (*graph.initializer, *graph.input, *graph.output):
        value.name = new(value.name)
    for number, node in enumerate(graph.node):
        node.input[:] = [new(name) for name in node.input]
        node.output[:] = [new(name) for name in node.output]
        node.name = rng.choice(("", f"Relu{number or ''}", f"h{number}"))
    return model


def _permuted(model: Any, rng: random.Random) -> Any:
    """Nodes in another order that has inputs first; initializers in any."""
    graph = model.graph
    ready = {value.name for value in (*graph.initializer, *graph.input)} | {""}
    waiting, ordered = list(graph.node), []
    while waiting:
        free = [node for node in waiting if set(node.input) <= ready]
        if not free:
            return model
        node = rng.choice(free)
        waiting.remove(node)
        ordered.append(node)
        ready |= set(node.output)
    constants = list(graph.initializer)
    rng.shuffle(constants)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(ordered)
    graph.initializer.extend(constants)
    return model


def _constants(model: Any, _rng: random.Random) -> Any:
    """Initializers as Constant nodes."""
    from onnx import helper

    graph = model.graph
    nodes = [helper.make_node("Constant", [], [value.name], value=value) for value in graph.initializer]
    old = list(graph.node)
    del graph.node[:], graph.initializer[:]
    graph.node.extend([*nodes, *old])
    return model


def _identities(model: Any, rng: random.Random) -> Any:
    """Copies in between."""
    from onnx import helper

    graph, found = model.graph, []
    for number, node in enumerate(graph.node):
        for i, name in enumerate(node.input):
            if name and rng.random() < 0.3:
                found.append(helper.make_node("Identity", [name], [f"copy{number}_{i}"]))
                node.input[i] = f"copy{number}_{i}"
        found.append(node)
    del graph.node[:]
    graph.node.extend(found)
    return model


def _function(model: Any, name: str, domain: str, nodes: list[Any], **more: Any) -> Any:
    """A function whose body is these nodes, added to the model: its inputs are what they take from outside."""
    from onnx import helper

    made = {out for node in nodes for out in node.output}
    inputs = list(dict.fromkeys(i for node in nodes for i in node.input if i and i not in made))
    used = {i for node in model.graph.node if node not in nodes for i in node.input}
    used |= {value.name for value in model.graph.output}
    outputs = [out for node in nodes for out in node.output if out in used]
    imports = list(model.opset_import)
    if not any(i.domain == domain for i in imports):
        model.opset_import.append(helper.make_opsetid(domain, 1))
    bodies = [helper.make_opsetid(i.domain, i.version) for i in model.opset_import]
    renamed = {name: f"arg{k}" for k, name in enumerate(inputs)}
    body = []
    for node in nodes:
        inner = type(node)()
        inner.CopyFrom(node)
        inner.input[:] = [renamed.get(i, i) for i in inner.input]
        body.append(inner)
    made_function = helper.make_function(domain, name, list(renamed.values()), outputs, body, bodies, **more)
    model.functions.append(made_function)
    return helper.make_node(name, inputs, outputs, domain=domain)


def _wrapped(model: Any, rng: random.Random, name: Callable[[Any], tuple[str, str]], count: int) -> Any:
    """Some runs of nodes as functions."""
    nodes = list(model.graph.node)
    for _ in range(count):
        at = rng.randrange(len(nodes))
        part = nodes[at : at + rng.choice((1, 2, 3))]
        if any(node.domain for node in part):
            continue
        called, domain = name(part[0])
        if any((f.name, f.domain) == (called, domain) for f in model.functions):
            called = f"{called}{len(model.functions)}"
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        nodes[at : at + len(part)] = [_function(model, called, domain, part)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _functions(model: Any, rng: random.Random) -> Any:
    return _wrapped(model, rng, lambda _node: ("Block", "own"), 3)


def _colliding(model: Any, rng: random.Random) -> Any:
    """Functions of a domain of their own, named as operators are that have as many inputs.

    With another number of inputs onnxruntime ends the process; `onnx_functions` refuses such.
    """
    from onnx import defs

    names = ("Relu", "Softmax", "Add", "Gelu", "Identity")
    found = _wrapped(model, rng, lambda node: (rng.choice((node.op_type, *names)), "own"), 3)
    for function in found.functions:
        schema = defs.get_schema(function.name) if defs.has(function.name) else None
        if schema is not None and not schema.min_input <= len(function.input) <= schema.max_input:
            for node in found.graph.node:
                if (node.domain, node.op_type) == (function.domain, function.name):
                    node.op_type = f"Own{function.name}"
            function.name = f"Own{function.name}"
    return found


def _nested(model: Any, rng: random.Random) -> Any:
    """A function that calls another."""
    from onnx import helper

    inner = _wrapped(model, rng, lambda _node: ("Inner", "own"), 2)
    nodes = list(inner.graph.node)
    at = next((i for i, node in enumerate(nodes) if node.domain), None)
    if at is None:
        return inner
    call = _function(inner, "Outer", "own.outer", [nodes[at]])
    function = inner.functions[-1]
    if not any(i.domain == "own" for i in function.opset_import):
        function.opset_import.append(helper.make_opsetid("own", 1))
    nodes[at] = call
    del inner.graph.node[:]
    inner.graph.node.extend(nodes)
    return inner


def _defaults(model: Any, rng: random.Random) -> Any:
    """A LeakyRelu behind the output in a function whose slope has a default, which the call may leave out."""
    from onnx import AttributeProto, helper

    slope = rng.choice((0.01, 0.5, 3.0))
    node = helper.make_node("LeakyRelu", ["a"], ["b"])
    node.attribute.append(AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="alpha"))
    default = helper.make_attribute("alpha", rng.choice((2.0, -1.0, 0.25)))
    imports = [helper.make_opsetid("", model.opset_import[0].version)]
    model.functions.append(
        helper.make_function("own", "Leak", ["a"], ["b"], [node], imports, attribute_protos=[default])
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    given: dict[str, Any] = {"alpha": slope} if rng.random() < 0.3 else {}
    return _behind(model, helper.make_node("Leak", ["before"], ["after"], domain="own", **given))


def _behind(model: Any, node: Any) -> Any:
    """One more node behind the output, from `before` to `after`."""
    graph = model.graph
    node.input[0], node.output[0] = graph.output[0].name, "after"
    graph.node.append(node)
    graph.output[0].name = "after"
    return model


def _overriding(domain: str, names: tuple[str, ...]) -> Callable[[Any, random.Random], Any]:
    def style(model: Any, rng: random.Random) -> Any:
        """A function that bears the name of an operator of that domain, and does something else."""
        from onnx import helper

        name = rng.choice(names)
        imports = [helper.make_opsetid("", model.opset_import[0].version)]
        kind = rng.choice(("Neg", "Abs", "Relu", "Tanh"))
        body = [helper.make_node(kind, ["a"], ["b"])]
        model.functions.append(helper.make_function(domain, name, ["a"], ["b"], body, imports))
        if domain:
            model.opset_import.append(helper.make_opsetid(domain, 1))
        return _behind(model, helper.make_node(name, ["before"], ["after"], domain=domain))

    return style


STYLES: dict[str, Callable[[Any, random.Random], Any]] = {
    "renamed": _renamed,
    "permuted": _permuted,
    "constants": _constants,
    "identities": _identities,
    "functions": _functions,
    "nested": _nested,
    "colliding": _colliding,
    "defaults": _defaults,
    "override": _overriding("", ("HardSwish", "Relu", "Softplus", "Elu", "Sigmoid", "Mish", "Identity")),
    "override microsoft": _overriding("com.microsoft", ("Gelu", "QuickGelu", "FastGelu", "Identity")),
    "override custom": _overriding("own", ("HardSwish", "Relu", "Neg")),
}
