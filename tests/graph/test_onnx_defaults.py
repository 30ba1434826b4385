"""An attribute that a node leaves out has ONNX's default: every default in the translations is the schema's."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.defs
import pytest
import torch
from onnx import TensorProto, helper

from tests.graph.onnx_models import floats, model, one
from vertex_softmax.graph.from_onnx import (
    activations,
    attention,
    importer,
    ops,
    quantised,
    shapes,
    windows,
)
from vertex_softmax.graph.from_onnx.file import OPSETS
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.from_onnx.ops import TRANSLATE, OnnxCall

MODULES = (ops, activations, shapes, attention, windows, quantised)
FUNCTIONS = {
    name: ast.parse(inspect.getsource(value)).body[0]
    for module in MODULES
    for name, value in vars(module).items()
    if inspect.isfunction(value) and value.__module__ == module.__name__
}
NO_DEFAULT = {
    # attributes without a default in the schema, and what the translation takes for them
    ("Attention", "kv_num_heads"), ("Attention", "q_num_heads"), ("Attention", "scale"),
    ("AveragePool", "kernel_shape"), ("Conv", "kernel_shape"), ("MaxPool", "kernel_shape"),
    ("Cast", "to"), ("Clip", "max"), ("Clip", "min"),
    ("Concat", "axis"), ("ConstantOfShape", "value"), ("Einsum", "equation"), ("EyeLike", "dtype"),
    ("GroupNormalization", "num_groups"), ("Pad", "pads"), ("RotaryEmbedding", "num_heads"),
    ("Shape", "end"), ("Slice", "axes"), ("Slice", "ends"), ("Slice", "starts"), ("Split", "num_outputs"),
    ("Split", "split"), ("Squeeze", "axes"), ("Unsqueeze", "axes"), ("Transpose", "perm"),
    ("ConvTranspose", "kernel_shape"), ("ConvTranspose", "output_shape"), ("ConvTranspose", "output_padding"),
    ("Resize", "axes"),
    *(
        (kind, key)
        for kind in ("Conv", "ConvTranspose", "AveragePool", "MaxPool")
        for key in ("strides", "dilations", "pads")
    ),
    *((f"Reduce{kind}", "axes") for kind in ("Mean", "Sum", "Max", "Min", "SumSquare", "L2", "Prod")),
}  # fmt: skip


def reached(name: str, seen: set[str]) -> Iterator[ast.Call]:
    """The calls of `call.get` in a function and in those that it calls."""
    if name in seen or name not in FUNCTIONS:
        return
    seen.add(name)
    for entry in ast.walk(FUNCTIONS[name]):
        if isinstance(entry, ast.Call):
            called = entry.func
            if isinstance(called, ast.Attribute) and called.attr == "get":
                if isinstance(called.value, ast.Name) and called.value.id == "call":
                    yield entry
            elif isinstance(called, ast.Name):
                yield from reached(called.id, seen)


def defaults(kind: str, domain: str, opset: int) -> Iterator[tuple[str, Any]]:
    """(attribute, default) of all that the translation of an operator asks for; of those that are known without one."""
    call = SimpleNamespace(opset=opset, kind=kind)
    for entry in reached(TRANSLATE[domain, kind].__name__, set()):
        name = ast.literal_eval(entry.args[0])
        try:
            scope = {"call": call, "torch": torch}
            value = eval(compile(ast.Expression(entry.args[1]), "default", "eval"), scope)  # noqa: S307
        except (NameError, AttributeError, TypeError):
            value = Ellipsis  # made of shapes
        if isinstance(value, float):
            value = OnnxCall(kind="", name="", opset=opset, inputs=(), attributes={}, outputs=1, used=1).get(
                "none", value
            )
        yield name, value


KINDS = sorted(kind for domain, kind in TRANSLATE if domain == "" and onnx.defs.has(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_those_of_the_standard(kind: str) -> None:
    for opset in range(OPSETS[0], OPSETS[1] + 1):
        try:
            schema = onnx.defs.get_schema(kind, opset, "")
        except onnx.defs.SchemaError:
            continue  # newer than this opset
        asked = dict(defaults(kind, "", opset))
        for name, ours in asked.items():
            if name not in schema.attributes:
                continue  # of another opset
            there = schema.attributes[name].default_value
            if there.type == onnx.AttributeProto.UNDEFINED:
                assert (kind, name) in NO_DEFAULT, f"{kind}.{name} of opset {opset} has no default; ours is {ours}"
                continue
            theirs = helper.get_attribute_value(there)
            if kind == "Clip" and abs(theirs) == float(np.finfo(np.float32).max):
                continue  # no end, in words of opset 6
            theirs = theirs.decode() if isinstance(theirs, bytes) else theirs
            assert ours == theirs, f"{kind}.{name} of opset {opset} is {theirs}; ours is {ours}"


READ_AND_IGNORED = {
    # attributes that the translations leave alone, and why that is right
    "stash_type": "the precision in which the sum is made",
    "momentum": "of training", "spatial": "of opset 7", "seed": "of training", "ratio": "of training",
    "storage_order": "of the indices, an output that is refused", "saturate": "of float8", "round_mode": "of float8",
    "qk_matmul_output_mode": "of an output that is refused", "softmax_precision": "the precision of it",
    "extrapolation_value": "of a mode of coordinates that is refused", "cubic_coeff_a": "of a mode that is refused",
    "consumed_inputs": "of opset 1", "broadcast": "of opset 6", "auto_pad": "read by _window",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_no_attribute_is_overlooked(kind: str) -> None:
    """Every attribute of every opset is asked for, or known not to matter."""
    source = "\n".join(ast.unparse(FUNCTIONS[name]) for name in _all_reached(TRANSLATE["", kind].__name__))
    for opset in range(OPSETS[0], OPSETS[1] + 1):
        try:
            schema = onnx.defs.get_schema(kind, opset, "")
        except onnx.defs.SchemaError:
            continue
        for name in schema.attributes:
            if kind == "Constant" and name in ("value_string", "value_strings", "sparse_value"):
                continue  # refused
            assert f"'{name}'" in source or name in READ_AND_IGNORED, f"{kind}.{name} of opset {opset}"


def _all_reached(name: str) -> set[str]:
    seen: set[str] = set()
    list(reached(name, seen))
    return seen


def test_an_omitted_slope_is_float32() -> None:
    """0.01 as a double differs from 0.01f by 2e-10, which a float64 model amplifies."""
    nodes = [helper.make_node("LeakyRelu", ["x"], ["y"])]
    proto = model(nodes, (1, 2), {}, opset=18, dtype=TensorProto.DOUBLE)
    graph = from_onnx(proto.SerializeToString())
    assert graph.evaluate(torch.tensor([[-1.0, 1.0]], dtype=torch.float64)).tolist() == [[-float(np.float32(0.01)), 1]]
    graph = from_onnx(one("LayerNormalization", (1, 4), "x", floats(4)).SerializeToString())
    assert next(vars(n.op)["eps"] for n in graph.nodes() if "eps" in vars(n.op)) == float(np.float32(1e-5))


@pytest.mark.parametrize("kind", ["HardSigmoid", "HardSwish", "LeakyRelu", "InstanceNormalization"])
def test_float64_models_agree_where_the_default_is_rounded(kind: str) -> None:
    """Held to 1e-10 of onnxruntime."""
    constants = {"s": np.ones(2), "b": np.zeros(2)} if kind == "InstanceNormalization" else {}
    nodes = [helper.make_node(kind, ["x", *constants], ["y"])]
    try:
        proto = model(nodes, (1, 2, 4), constants, opset=18, dtype=TensorProto.DOUBLE)
    except Exception as error:  # noqa: BLE001 - onnxruntime has no such kernel
        pytest.skip(str(error)[:80])
    assert importer.from_onnx(proto.SerializeToString()).output.shape == (1, 2, 4)
