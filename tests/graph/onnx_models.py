"""Hand-made ONNX models, and what onnxruntime says about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[Any],
    constants: dict[str, np.ndarray],
    *,
    opset: int,
    output: str = "y",
    dtype: int = TensorProto.FLOAT,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model x → y of some nodes."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info(output, dtype, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=4 if opset < 11 else 10)
    zeros = np.zeros([n if isinstance(n, int) else 1 for n in shape], dtype=helper.tensor_dtype_to_np_dtype(dtype))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info(output, dtype, run(made, zeros).shape))
    return made


def one(
    kind: str,
    shape: Sequence[int],
    *inputs: np.ndarray | str | None,
    opset: int = 18,
    outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; the inputs are "x", constants, or None where there is none. The last output is y."""
    names, constants = [], {}
    for i, value in enumerate(inputs or ("x",)):
        if isinstance(value, np.ndarray | np.generic):
            constants[f"c{i}"] = np.asarray(value)
            names.append(f"c{i}")
        else:
            names.append(value or "")
    domain = attributes.pop("domain", "")
    outs = [f"unused{i}" for i in range(outputs - 1)] + ["y"]
    node = helper.make_node(kind, names, outs, name="node", domain=domain, **attributes)
    return model([node], shape, constants, opset=opset, domains=[domain] if domain else [])


def run(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """onnxruntime, every optimisation off: an independent call, not the importer's."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return session.run([session.get_outputs()[0].name], {name: x})[0]
