"""Quantised models in the form QDQ: their import, and bounds that hold however ties are rounded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import vertex_softmax as vx
from tests.graph.onnx_models import floats, model, run
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.from_onnx.roundings import Roundings
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.ops.rounding import Round

I8, U8, I16, U16 = np.int8, np.uint8, np.int16, np.uint16


def pair(
    x: str, y: str, scale: float, zero: int, kind: type = U8
) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """QuantizeLinear and DequantizeLinear of a tensor, and their constants."""
    constants = {f"{y}_scale": np.float32(scale), f"{y}_zero": np.array(zero, dtype=kind)}
    names = list(constants)
    nodes = [
        helper.make_node("QuantizeLinear", [x, *names], [f"{y}_whole"], name=f"quantize {y}"),
        helper.make_node("DequantizeLinear", [f"{y}_whole", *names], [y], name=f"dequantize {y}"),
    ]
    return nodes, constants


def network(kind: type = U8, zero: int = 120, *, biased: bool = True) -> onnx.ModelProto:
    """x → quantised x → Gemm of a quantised weight → Relu → quantised → Gemm."""
    first, a = pair("x", "xq", 0.02, zero, kind)
    second, b = pair("h", "hq", 0.013, 0, U8)
    rng = np.random.default_rng(3)
    constants = {
        **a,
        **b,
        "w": rng.integers(-127, 127, (6, 8)).astype(I8),
        "w_scale": rng.uniform(0.004, 0.01, 8).astype(np.float32),
        "w_zero": np.zeros(8, I8),
        "bias": rng.integers(-4000, 4000, 8).astype(np.int32),
        "bias_scale": np.float32(1e-4),
        "v": rng.normal(size=(8, 3)).astype(np.float32),
    }
    nodes = [
        *first,
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["weight"], axis=1),
        helper.make_node("DequantizeLinear", ["bias", "bias_scale"], ["offset"]),
        helper.make_node("Gemm", ["xq", "weight", *(["offset"] if biased else [])], ["g"]),
        helper.make_node("Relu", ["g"], ["h"]),
        *second,
        helper.make_node("MatMul", ["hq", "v"], ["y"]),
    ]
    if not biased:
        constants = {key: value for key, value in constants.items() if not key.startswith("bias")}
        nodes = [n for n in nodes if n.output[0] != "offset"]
    return model(nodes, (1, 6), constants, opset=18)


@pytest.mark.parametrize(
    ("kind", "zero"), [(U8, 0), (U8, 255), (U8, 120), (I8, -128), (I8, 0), (I8, 17), (I16, 300), (U16, 1000)]
)
def test_a_rounding_of_activations(kind: type, zero: int) -> None:
    """With every type and zero point: ties go to the even number, and numbers out of range to its end."""
    nodes, constants = pair("x", "y", 0.25, zero, kind)
    proto = model(nodes, (1, 40), constants, opset=21 if kind in (I16, U16) else 18)
    graph = from_onnx(proto.SerializeToString())
    info = np.iinfo(kind)
    ends = np.array([info.min - zero, info.max - zero], dtype=np.float32) / 4
    ties = (np.arange(-14, 14, dtype=np.float32) + 0.5) / 4
    x = np.concatenate([ties, ends, 1.01 * ends, 2 * ends, ends + 0.125, ends - 0.125, [-1e6, 1e6]])
    x = x.astype(np.float32).reshape(1, 40)
    np.testing.assert_array_equal(graph.evaluate(torch.from_numpy(x).double()).numpy(), run(proto, x))


def test_the_whole_network_agrees_and_its_bounds_contain_what_is_reached(tmp_path: Path) -> None:
    proto = network()
    path = tmp_path / "qdq.onnx"
    path.write_bytes(proto.SerializeToString())
    rng = np.random.default_rng(0)
    centre = torch.from_numpy(rng.normal(size=(2, 6)).astype(np.float32))
    for eps in (0.001, 0.02, 0.3, 3.0):
        ball = vx.LinfBall(centre, eps)
        share = rng.random((300, 6))
        share[:100] = share[:100].round()
        for i in range(2):
            points = ball.lower[i].numpy() + share * (ball.upper[i] - ball.lower[i]).numpy()
            reached = np.concatenate([run(proto, p.astype(np.float32)[None]) for p in points])
            for method in ("ibp", "crown", "joint"):
                found = vx.bound(str(path), ball[[i]], method)
                spare = 1e-5 * np.abs(reached).max()  # what onnxruntime rounds in float32
                assert (found.lower.flatten().numpy() <= reached.min(0) + spare).all(), (method, eps)
                assert (found.upper.flatten().numpy() >= reached.max(0) - spare).all(), (method, eps)


def test_a_verdict_and_a_certificate(tmp_path: Path) -> None:
    path = tmp_path / "qdq.onnx"
    path.write_bytes(network().SerializeToString())
    centre = torch.from_numpy(np.random.default_rng(5).normal(size=(1, 6)).astype(np.float32))
    label = torch.from_numpy(run(network(), centre.numpy())).argmax(-1)
    assert vx.certify(str(path), vx.LinfBall(centre, 1e-4), label, "crown").verdict == "verified"
    proved = vx.certify(str(path), vx.LinfBall(centre, 1e-4), label, "crown", certificate=True)
    assert proved.verdict == "verified"
    assert proved.certificates[0] is not None


def with_rows() -> onnx.ModelProto:
    """Four rows, each quantised, multiplied and quantised again, transposed; the last row alone is read."""
    first, a = pair("x", "xq", 0.02, 120)
    second, b = pair("h", "hq", 0.05, 100)
    rng = np.random.default_rng(4)
    constants = {**a, **b, "w": rng.normal(size=(6, 8)).astype(np.float32), "last": np.array(3)}
    constants["v"] = rng.normal(size=(8, 3)).astype(np.float32)
    nodes = [
        *first,
        helper.make_node("Transpose", ["xq"], ["rows"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["rows", "w"], ["h"]),
        *second,
        helper.make_node("Gather", ["hq", "last"], ["row"], axis=0),
        helper.make_node("MatMul", ["row", "v"], ["y"]),
    ]
    return model(nodes, (1, 4, 6), constants, opset=18)


def test_rows_that_nobody_reads_are_left_out_of_the_comparison(tmp_path: Path) -> None:
    """The graph rounds the last row alone, and is compared with that row of what onnxruntime rounds."""
    proto, path = with_rows(), tmp_path / "rows.onnx"
    path.write_bytes(proto.SerializeToString())
    graph = simplify(from_onnx(str(path)))
    rounds = [node for node in graph.nodes() if isinstance(node.op, Round)]
    assert [node.shape for node in rounds] == [(1, 1, 6), (1, 1, 8)]
    places = [node.op.places for node in rounds if isinstance(node.op, Round) and node.op.places is not None]
    assert [each.flatten().tolist() for each in places] == [list(range(18, 24)), list(range(24, 32))]
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 1, 4, 6)).astype(np.float32))
    found = vx.bound(str(path), vx.LinfBall(x, 0.01), "crown")
    for i in range(2):
        reached = run(proto, x[i].numpy()).flatten()
        spare = 1e-5 * np.abs(reached).max()
        assert (found.lower[i].flatten().numpy() <= reached + spare).all()
        assert (found.upper[i].flatten().numpy() >= reached - spare).all()


def test_the_numbers_of_another_row_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.onnx"
    path.write_bytes(with_rows().SerializeToString())
    right = Round.numbered

    def wrong(self: Round, shape: tuple[int, ...]) -> Round:
        numbered = right(self, shape)
        return dataclasses.replace(numbered, places=None if numbered.places is None else numbered.places.roll(1, 0))

    monkeypatch.setattr(Round, "numbered", wrong)
    x = torch.rand(1, 1, 4, 6, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UnsupportedModelError, match="differs"):
        vx.bound(str(path), vx.LinfBall(x, 0.01), "ibp")


def test_a_rounding_that_is_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that rounds up where the model rounds to the nearest is noticed, though only the rounding differs."""
    right = Roundings.given

    def wrong(self: Roundings, theirs: dict[str, np.ndarray]) -> dict[object, torch.Tensor]:
        return {node: value + 1 for node, value in right(self, theirs).items()}

    monkeypatch.setattr(Roundings, "given", wrong)
    with pytest.raises(UnsupportedModelError, match=r"whole, rounded|xq"):
        from_onnx(network().SerializeToString())


def test_constants_are_rounded_as_onnxruntime_does() -> None:
    first, constants = pair("c", "q", 0.1, 3, I8)
    nodes = [*first, helper.make_node("Add", ["x", "q"], ["y"])]
    value = np.concatenate([floats(30), np.float32([0.05, 0.15, 0.25, 0.35, 0.45, -0.05, 99, -99, 12.35, 0.65])])
    proto = model(nodes, (1, 40), {**constants, "c": value.astype(np.float32)}, opset=18)
    graph = from_onnx(proto.SerializeToString())
    assert not any(isinstance(node.op, Round) for node in graph.nodes())


def test_numbers_may_move_while_they_are_whole() -> None:
    """Reshape and Transpose between the two; but no arithmetic, which wraps around."""
    (quantize, dequantize), constants = pair("x", "y", 0.1, 3, I8)
    dequantize.input[0] = "turned"
    moved = helper.make_node("Transpose", ["y_whole"], ["turned"], perm=[1, 0])
    proto = model([quantize, moved, dequantize], (2, 3), constants, opset=18)
    assert from_onnx(proto.SerializeToString()).output.shape == (3, 2)
    dequantize.input[0] = "sum"
    added = helper.make_node("Max", ["y_whole", "y_whole"], ["sum"])
    proto = model([quantize, added, dequantize], (2, 3), constants, opset=18)
    with pytest.raises(UnsupportedModelError, match="1 × Max: arithmetic of whole numbers"):
        from_onnx(proto.SerializeToString())


def test_scales_along_an_axis() -> None:
    scales = {"s": np.float32([0.1, 0.2, 0.3]), "z": np.array([0, 1, 0], U8)}
    x = np.float32([[0.1, 0.31, 0.44], [0.26, 0.5, 99.0]])
    for names in (["s"], ["s", "z"]):
        nodes = [
            helper.make_node("QuantizeLinear", ["x", *names], ["q"], axis=-1),
            helper.make_node("DequantizeLinear", ["q", *names], ["y"], axis=1),
        ]
        proto = model(nodes, (2, 3), {name: scales[name] for name in names}, opset=18)
        if names == ["s"]:
            graph = from_onnx(proto.SerializeToString())
            found = graph.evaluate(torch.from_numpy(x).double()).numpy()
            np.testing.assert_allclose(found, run(proto, x), rtol=1e-7)
        else:
            with pytest.raises(UnsupportedModelError, match="a zero point for each channel"):
                from_onnx(proto.SerializeToString())


def test_dynamic_quantisation_and_integer_products_say_what_helps() -> None:
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])]
    nodes.append(helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]))
    with pytest.raises(UnsupportedModelError, match="quantise statically, in the form QDQ"):
        from_onnx(model(nodes, (2, 3), {}, opset=18).SerializeToString())
