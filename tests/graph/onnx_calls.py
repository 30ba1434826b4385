"""ONNX models with local functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

DOMAIN = "made"


def node(
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str] | str,
    *,
    refs: dict[str, str] | None = None,
    overload: str = "",
    **attributes: Any,
) -> onnx.NodeProto:
    """A node; refs: attribute → the function's attribute, a float, that it takes its value from."""
    made = helper.make_node(kind, inputs, [outputs] if isinstance(outputs, str) else list(outputs), **attributes)
    for name, reference in (refs or {}).items():
        made.attribute.add(name=name, ref_attr_name=reference, type=AttributeProto.FLOAT)
    made.overload = overload
    return made


def call(
    name: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] | str = "y", **attributes: Any
) -> onnx.NodeProto:
    """A call of a local function."""
    return node(name, inputs, outputs, domain=attributes.pop("domain", DOMAIN), **attributes)


def function(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    *,
    inputs: Sequence[str] = ("a",),
    outputs: Sequence[str] = ("b",),
    required: Sequence[str] = (),
    domain: str = DOMAIN,
    opset: int = 18,
    opsets: Sequence[tuple[str, int]] | None = None,
    overload: str = "",
    **defaults: Any,
) -> onnx.FunctionProto:
    """A function; `required` attributes have no default."""
    versions = [("", opset), (DOMAIN, 1)] if opsets is None else opsets
    made = helper.make_function(
        domain,
        name,
        list(inputs),
        list(outputs),
        list(nodes),
        [helper.make_opsetid(*version) for version in versions],
        list(required),
        [helper.make_attribute(key, value) for key, value in defaults.items()],
    )
    made.overload = overload
    return made


def model(
    nodes: Sequence[onnx.NodeProto],
    functions: Sequence[onnx.FunctionProto] = (),
    constants: dict[str, np.ndarray] | None = None,
    *,
    shape: Sequence[Any] = (1, 4),
    after: Sequence[Any] = ("p", "q"),
    opsets: Sequence[tuple[str, int]] = (("", 18), (DOMAIN, 1)),
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """x → y; nothing is run to make it."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, after)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    versions = [helper.make_opsetid(*version) for version in opsets]
    return helper.make_model(graph, functions=list(functions), opset_imports=versions, ir_version=10)
