"""Weights in half precision: the numbers of the file, exactly, in a model that computes in float32."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.graph.onnx_models import model, run
from vertex_softmax.graph.from_onnx.importer import from_onnx


def stored(kind: int) -> onnx.ModelProto:
    """x → x W + b, with W and b stored in a type of 16 bits and cast to float32 when the model runs."""
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Cast", ["w16"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["b16"], ["b"], to=TensorProto.FLOAT),
        helper.make_node("Gemm", ["x", "w", "b"], ["y"]),
    ]
    weights = {"w16": rng.normal(size=(6, 4)).astype(np.float32), "b16": rng.normal(size=4).astype(np.float32)}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, (1, 6))],
        [value("y", TensorProto.FLOAT, (1, 4))],
        [helper.make_tensor(name, kind, array.shape, array.reshape(-1)) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_weights_of_sixteen_bits(kind: int) -> None:
    proto = stored(kind)
    graph = from_onnx(proto.SerializeToString())
    x = np.random.default_rng(2).normal(size=(1, 6)).astype(np.float32)
    np.testing.assert_allclose(
        graph.evaluate(torch.from_numpy(x).double()).numpy(), run(proto, x), rtol=1e-5, atol=1e-6
    )
    weight = next(value for value in graph.constants() if value.shape == (6, 4))
    dtype = torch.float16 if kind == TensorProto.FLOAT16 else torch.bfloat16
    assert torch.equal(weight, weight.to(dtype).double())  # no number was rounded again


def test_weights_that_are_dequantised_are_rounded_once() -> None:
    """(q − z) · s in float32, as the standard has it, and not in float64."""
    q, scale = np.arange(-12, 12, dtype=np.int8).reshape(6, 4), np.float32(0.1)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    proto = model(nodes, (1, 6), {"q": q, "s": scale, "z": np.int8(3)}, opset=18)
    weight = next(value for value in from_onnx(proto.SerializeToString()).constants() if value.shape == (6, 4))
    expected = (q.astype(np.float32) - np.float32(3)) * scale
    np.testing.assert_array_equal(weight.numpy(), expected.astype(np.float64))
