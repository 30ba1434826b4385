"""A wrong import is caught by the replay, and what cannot be read is refused with one clear error."""

from __future__ import annotations

import dataclasses
import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.graph.onnx_models import floats, ints, model, one, run
from vertex_softmax.foundation.errors import (
    InvalidTypeError,
    InvalidValueError,
    MissingDependencyError,
    UnsupportedModelError,
    VertexError,
)
from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx import file, ops, replay
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.from_onnx.ops import TRANSLATE, OnnxCall
from vertex_softmax.graph.ir import Node
from vertex_softmax.search.replay import Replay

# Mutants: one operator translated wrongly; the replay has to say so --------------------------------------------------


def with_attribute(name: str, change: Callable[[Any], Any], default: Any) -> Callable[[Any], Any]:
    """The translation as if the attribute were another."""

    def mutate(original: Any) -> Any:
        def translate(call: OnnxCall) -> Any:
            attributes = {**call.attributes, name: change(call.attributes.get(name, default))}
            return original(dataclasses.replace(call, attributes=attributes))

        return translate

    return mutate


def with_result(change: Callable[[Node], Node]) -> Callable[[Any], Any]:
    def mutate(original: Any) -> Any:
        return lambda call: change(original(call))

    return mutate


def with_inputs(*order: int) -> Callable[[Any], Any]:
    def mutate(original: Any) -> Any:
        return lambda call: original(dataclasses.replace(call, inputs=tuple(call.inputs[i] for i in order)))

    return mutate


def with_opset(opset: int) -> Callable[[Any], Any]:
    def mutate(original: Any) -> Any:
        return lambda call: original(dataclasses.replace(call, opset=opset))

    return mutate


def scaled(factor: float) -> Callable[[Any], Any]:
    return with_result(lambda y: build.multiply(y, ops.number(factor), "mutant"))


def negated(value: Any) -> Any:
    return 1 - value


SQUARE = one("Gemm", (3, 4), "x", floats(4, 4), floats(4), transB=1)
SCORES = one("Attention", (1, 4, 5, 3), "x", floats(1, 2, 5, 3), floats(1, 2, 5, 3), opset=23, is_causal=1)
NORM = one("LayerNormalization", (2, 3, 4), "x", floats(4), floats(4), epsilon=1e-5)
MUTANTS: dict[str, tuple[onnx.ModelProto, Any]] = {
    "Gemm transB": (SQUARE, with_attribute("transB", negated, 0)),
    "Gemm alpha": (SQUARE, with_attribute("alpha", lambda a: a * 1.0001, 1.0)),
    "Gemm beta": (SQUARE, with_attribute("beta", lambda a: a * 1.0001, 1.0)),
    "Softmax axis": (one("Softmax", (1, 3, 3), opset=13, axis=2), with_attribute("axis", lambda _: 1, 2)),
    "Softmax of the other opset": (one("Softmax", (2, 3, 4), opset=9, axis=1), with_opset(13)),
    "LayerNormalization eps": (NORM, with_attribute("epsilon", lambda e: 10 * e, 1e-5)),
    "LayerNormalization without its bias": (NORM, with_inputs(0, 1)),
    "Attention without its causal mask": (SCORES, with_attribute("is_causal", negated, 0)),
    "Attention scale": (SCORES, with_attribute("scale", lambda _: 0.577, None)),
    "Gelu": (one("Gelu", (2, 3), opset=20), with_attribute("approximate", lambda _: "tanh", "none")),
    "Conv pads": (
        one("Conv", (1, 3, 6, 6), "x", floats(2, 3, 3, 3), pads=[0, 0, 2, 2]),
        with_attribute("pads", lambda p: [*p[2:], *p[:2]], None),
    ),
    "Transpose perm": (
        one("Transpose", (3, 3, 3), perm=[1, 2, 0]),
        with_attribute("perm", lambda _: [2, 0, 1], None),
    ),
    "Gather axis": (one("Gather", (3, 3), "x", ints(2, 0, 1), axis=1), with_attribute("axis", negated, 0)),
    "Sub the other way": (one("Sub", (3,), "x", floats(3)), with_inputs(1, 0)),
    "Where the other way": (
        one("Where", (3,), np.array([True, False, True]), "x", floats(3)),
        with_inputs(0, 2, 1),
    ),
    "Concat order": (one("Concat", (1, 3), "x", floats(1, 3), axis=0), with_inputs(1, 0)),
    "a factor of 1 + 1e-5": (one("MatMul", (2, 4), "x", floats(4, 3)), scaled(1 + 1e-5)),
    "an offset of 1e-5": (
        one("Tanh", (2, 4)),
        with_result(lambda y: build.add(y, ops.number(1e-5), "mutant")),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_replay_catches_a_wrong_translation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proto, mutate = MUTANTS[name]
    node = proto.graph.node[0]
    from_onnx(proto.SerializeToString())
    monkeypatch.setitem(TRANSLATE, ("", node.op_type), mutate(TRANSLATE["", node.op_type]))
    with pytest.raises(UnsupportedModelError, match="'y' of the import differs from onnxruntime by"):
        from_onnx(proto.SerializeToString())
    from_onnx(proto.SerializeToString(), check=False)


def test_the_replay_names_the_first_wrong_tensor_not_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax hides a shift of its row; the tensor before it does not."""
    nodes = [
        helper.make_node("Add", ["x", "c"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    proto = model(nodes, (1, 4), {"c": floats(4)}, opset=18)
    from_onnx(proto.SerializeToString())
    shifted = with_result(lambda y: build.add(y, ops.number(0.5), "mutant"))
    monkeypatch.setitem(TRANSLATE, ("", "Add"), shifted(TRANSLATE["", "Add"]))
    with pytest.raises(UnsupportedModelError, match="tensor 'scores'"):
        from_onnx(proto.SerializeToString())


def test_a_wrongly_folded_constant_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ReduceProd", ["shape"], ["size"], keepdims=1),
        helper.make_node("Reshape", ["x", "size"], ["y"]),
    ]
    proto = model(nodes, (2, 3), {}, opset=18)
    from_onnx(proto.SerializeToString())
    other = with_result(lambda _: build.constant(torch.tensor([-1])))
    monkeypatch.setitem(TRANSLATE, ("", "ReduceProd"), other(TRANSLATE["", "ReduceProd"]))
    with pytest.raises(UnsupportedModelError, match="constant 'size'"):
        from_onnx(proto.SerializeToString())


def double(factor: float) -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", "c"], ["y"])
    weight = factor * np.random.default_rng(0).normal(size=(4, 3))
    return model([node], (2, 4), {"c": weight}, opset=18, dtype=TensorProto.DOUBLE)


def test_a_float64_model_is_held_to_1e_10(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = from_onnx(double(1.0).SerializeToString())
    x = np.random.default_rng(1).normal(size=(2, 4))
    assert np.abs(graph.evaluate(torch.from_numpy(x)).numpy() - run(double(1.0), x)).max() <= 1e-14
    monkeypatch.setitem(TRANSLATE, ("", "MatMul"), scaled(1 + 1e-9)(TRANSLATE["", "MatMul"]))
    with pytest.raises(UnsupportedModelError, match="differs from onnxruntime"):
        from_onnx(double(1.0).SerializeToString())


def test_given_points_are_replayed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A translation that is wrong only beyond 50 passes at random points, and not at one out there."""
    proto = one("Relu", (1, 3))
    cut = with_result(lambda y: ops.smaller(y, ops.number(50.0), "mutant"))
    monkeypatch.setitem(TRANSLATE, ("", "Relu"), cut(TRANSLATE["", "Relu"]))
    from_onnx(proto.SerializeToString())
    with pytest.raises(UnsupportedModelError, match="differs from onnxruntime"):
        from_onnx(proto.SerializeToString(), points=[torch.tensor([[1.0, 60.0, 2.0]])])
    for wrong in (torch.zeros(3), torch.full((1, 3), torch.nan)):
        with pytest.raises(InvalidValueError, match=r"points\[0\]"):
            from_onnx(proto.SerializeToString(), points=[wrong])


def test_a_model_that_is_nowhere_finite_cannot_be_checked() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Neg", ["e"], ["n"]),
        helper.make_node("Log", ["n"], ["y"]),
    ]
    with pytest.raises(InvalidValueError, match="not finite at any random point"):
        from_onnx(model(nodes, (1, 3), {}, opset=18).SerializeToString())


def test_rounding_that_explains_everything_explains_nothing() -> None:
    nodes = [helper.make_node("Add", ["x", "c"], ["big"]), helper.make_node("Sub", ["big", "c"], ["y"])]
    proto = model(nodes, (1, 3), {"c": np.float32([1e9])}, opset=18)
    with pytest.raises(UnsupportedModelError, match="float32 rounding changes the model's output"):
        from_onnx(proto.SerializeToString())


# Files ---------------------------------------------------------------------------------------------------------------

GOOD = one("Relu", (1, 3))


def test_paths_bytes_and_gzip_are_read(tmp_path: Path) -> None:
    data = GOOD.SerializeToString()
    (tmp_path / "a.onnx").write_bytes(data)
    (tmp_path / "b.onnx.gz").write_bytes(gzip.compress(data, mtime=0))
    for source in (data, gzip.compress(data, mtime=0), tmp_path / "a.onnx", str(tmp_path / "b.onnx.gz")):
        assert from_onnx(source).output.shape == (1, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"not an onnx file at all", "not an ONNX file"),
        (b"\x80\x04K\x01.", "not an ONNX file"),
        (b"PK\x03\x04" + bytes(26), "seems to be a file of torch.save"),
        (GOOD.SerializeToString()[:-20], "not an ONNX file|not a valid ONNX model"),
        (gzip.compress(GOOD.SerializeToString(), mtime=0)[:-9], "damaged gzip"),
        (gzip.compress(b"nonsense", mtime=0), "not an ONNX file"),
        (onnx.ModelProto().SerializeToString(), "empty"),
    ],
)
def test_what_is_no_model_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        from_onnx(data)


def test_a_damaged_model_is_a_vertex_error_whatever_the_damage() -> None:
    data = bytearray(one("Gemm", (3, 4), "x", floats(4, 5), floats(5)).SerializeToString())
    rng = np.random.default_rng(0)
    for _ in range(200):
        copy = bytearray(data)
        for at in rng.integers(len(data), size=rng.integers(1, 4)):
            copy[at] = rng.integers(256)
        try:
            from_onnx(bytes(copy), check=False)
        except VertexError:
            continue


def test_a_missing_file_and_a_wrong_type(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="is not a file"):
        from_onnx(tmp_path / "none.onnx")
    with pytest.raises(InvalidTypeError, match="ModelProto"):
        from_onnx(GOOD)  # type: ignore[arg-type]


def test_large_files_are_refused_before_they_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "LIMIT", 1000)
    with pytest.raises(InvalidValueError, match="more than 1000 bytes"):
        from_onnx(gzip.compress(bytes(10**7)))
    (tmp_path / "big.onnx").write_bytes(bytes(1001))
    with pytest.raises(InvalidValueError, match="1001 bytes"):
        from_onnx(tmp_path / "big.onnx")


def external(location: str, length: int = 48, offset: int | None = None) -> onnx.ModelProto:
    proto = one("MatMul", (2, 4), "x", floats(4, 3))
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "length": str(length)} | ({} if offset is None else {"offset": str(offset)})
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return proto


def test_external_data_comes_from_the_models_folder_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    (folder / "part").mkdir(parents=True)
    weight = floats(4, 3)
    for path in (folder / "w.bin", folder / "part" / "w.bin", tmp_path / "w.bin"):
        path.write_bytes(weight.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")

    def read(proto: onnx.ModelProto) -> Any:
        (folder / "m.onnx").write_bytes(proto.SerializeToString())
        return from_onnx(folder / "m.onnx")

    for location in ("w.bin", "part/w.bin", "part/../w.bin"):
        value = read(external(location)).evaluate(torch.eye(4, dtype=torch.float64)[None, :2])
        assert np.array_equal(value[0].numpy(), weight[:2].astype(np.float64))
    for location in ("../w.bin", str(tmp_path / "w.bin"), "link.bin", "none.bin", "", "part", "/dev/zero"):
        with pytest.raises(InvalidValueError, match="not a file inside the model's folder"):
            read(external(location))
    for proto in (external("w.bin", offset=-4), external("w.bin", offset=100)):
        with pytest.raises(InvalidValueError, match="outside that file"):
            read(proto)
    with pytest.raises(InvalidValueError, match=r"damaged|not a valid"):
        read(external("w.bin", length=40))
    with pytest.raises(InvalidValueError, match="give the path"):
        from_onnx(external("w.bin").SerializeToString())
    monkeypatch.setattr(file, "LIMIT", len(external("w.bin").SerializeToString()) + 10)
    with pytest.raises(InvalidValueError, match="with it the model has more than"):
        read(external("w.bin"))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"{package} is not installed.*vertex-softmax\[onnx\]"):
        from_onnx(GOOD.SerializeToString())


# Models that are not supported ---------------------------------------------------------------------------------------


def test_every_unsupported_node_is_listed_in_one_error() -> None:
    nodes = [
        helper.make_node("Sinh", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="fine"),
        helper.make_node("TopK", ["b", "k"], ["v", "i"], name="second"),
        helper.make_node("FastGelu", ["x"], ["c"], name="third", domain="com.microsoft"),
        helper.make_node("Pow", ["x", "p"], ["d"], name="fourth"),
        helper.make_node("Sum", ["v", "c", "d"], ["y"], name="last"),
        helper.make_node("Selu", ["x"], ["unused"], name="not needed"),
    ]
    constants = {"k": ints(3), "p": np.float32([2.5])}
    proto = model(nodes, (2, 3), constants, opset=18, domains=["com.microsoft"])
    with pytest.raises(UnsupportedModelError) as caught:
        from_onnx(proto.SerializeToString())
    said = str(caught.value)
    assert "4 unsupported nodes" in said
    for line in (
        "1 × Sinh: the operator is not supported",
        "'first' of inputs ([2, 3])",
        "1 × TopK: an index that depends on the input",
        "'second' of inputs (?, [1])",
        "1 × com.microsoft.FastGelu: a fused operator of onnxruntime",
        "'third' of inputs ([2, 3])",
        "1 × Pow: exponent 2.5",
        "'fourth' of inputs ([2, 3], [1])",
    ):
        assert line in said
    assert "not needed" not in said


REFUSED: dict[str, tuple[onnx.ModelProto, str]] = {
    "exponents": (one("Pow", (2, 3), "x", floats(3)), "only one for all"),
    "float16 cast": (
        model(
            [
                helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
                helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
            ],
            (2, 3),
            {},
            opset=18,
        ),
        "only float32 and float64",
    ),
    "training": (one("Dropout", (2, 3), "x", np.float32(0.0), np.array(True)), "model.eval()"),
    "division by 0": (one("Div", (2, 3), "x", np.zeros(3, np.float32)), "divides by zero"),
    "pad mode": (one("Pad", (2, 3), "x", ints(0, 1, 0, 1), mode="reflect"), "only the mode 'constant'"),
    "ceil": (one("AveragePool", (1, 2, 5), kernel_shape=[2], strides=[2], ceil_mode=1), "ceil_mode"),
    "auto_pad and dilations": (
        one("MaxPool", (1, 2, 9), kernel_shape=[3], auto_pad="SAME_UPPER", dilations=[2]),
        "auto_pad with dilations",
    ),
    "softcap and mask": (
        one("Attention", (1, 2, 4, 3), "x", "x", "x", floats(4, 4), opset=23, softcap=1.0),
        "softcap together with a mask",
    ),
    "no key": (
        one("Attention", (1, 2, 4, 3), "x", "x", "x", np.zeros((4, 4), dtype=bool), opset=23),
        "masks every key",
    ),
    "Einsum diagonal": (one("Einsum", (3, 3), equation="ii->i"), "repeated letters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_of_an_operator_that_is_not_supported(name: str) -> None:
    proto, message = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match="1 unsupported node:") as caught:
        from_onnx(proto.SerializeToString())
    assert message in str(caught.value)


def changed(change: Callable[[onnx.ModelProto], Any]) -> bytes:
    proto = onnx.ModelProto()
    proto.CopyFrom(one("MatMul", (1, 4), "x", floats(4, 3)))
    change(proto)
    return proto.SerializeToString()


def sizes(*dims: Any) -> Callable[[onnx.ModelProto], Any]:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    return lambda proto: proto.graph.input[0].CopyFrom(value)


def kind(dtype: int) -> Callable[[onnx.ModelProto], Any]:
    value = helper.make_tensor_value_info("x", dtype, (1, 4))
    return lambda proto: proto.graph.input[0].CopyFrom(value)


def test_inputs_that_are_not_supported() -> None:
    second = helper.make_tensor_value_info("z", TensorProto.FLOAT, (1, 4))
    with pytest.raises(UnsupportedModelError, match=r"2 inputs .*'x', 'z'"):
        from_onnx(changed(lambda proto: proto.graph.input.append(second)))
    with pytest.raises(UnsupportedModelError, match=r"shape \[1, 'length'\], with open sizes"):
        from_onnx(changed(sizes(1, "length")))
    for dtype in (TensorProto.INT64, TensorProto.FLOAT16):
        with pytest.raises(UnsupportedModelError, match="not float32 or float64"):
            from_onnx(changed(kind(dtype)))
    with pytest.raises(UnsupportedModelError, match="at most"):
        from_onnx(changed(sizes(1 << 40, 4)))


def test_inputs_that_are() -> None:
    weight = helper.make_tensor_value_info("c1", TensorProto.FLOAT, (4, 3))
    assert from_onnx(changed(lambda proto: proto.graph.input.append(weight))).input.shape == (1, 4)
    for dims in (("batch", 4), (None, 4), (-1, 4)):
        assert from_onnx(changed(sizes(*dims))).input.shape == (1, 4)


def test_a_size_of_0_is_not_1() -> None:
    """onnxruntime takes no input of one row for such a model."""
    with pytest.raises(UnsupportedModelError, match=r"shape \[0, 4\], which holds no number"):
        from_onnx(changed(sizes(0, 4)))
    with pytest.raises(UnsupportedModelError, match=r"shape \[0, 4\], which holds no number"):
        Replay(changed(sizes(0, 4)))


def test_opsets_outside_9_to_23() -> None:
    for opset in (8, 24):
        with pytest.raises(UnsupportedModelError, match=f"opset {opset}; opsets 9 to 23"):
            from_onnx(changed(lambda proto, o=opset: setattr(proto.opset_import[0], "version", o)))


def test_outputs_are_chosen_by_name() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Exp", ["x"], ["z"])]
    proto = model(nodes, (1, 3), {}, opset=18)
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (1, 3)))
    x = torch.tensor([[-1.0, 0.0, 1.0]], dtype=torch.float64)
    assert torch.equal(from_onnx(proto.SerializeToString()).evaluate(x), x.relu())
    assert torch.equal(from_onnx(proto.SerializeToString(), output="z").evaluate(x), x.exp())
    with pytest.raises(InvalidValueError, match="no output 'w'; it has y, z"):
        from_onnx(proto.SerializeToString(), output="w")


def test_an_output_that_is_constant_is_refused() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Cast", ["s"], ["y"], to=1)]
    with pytest.raises(UnsupportedModelError, match="does not depend on the input"):
        from_onnx(model(nodes, (1, 3), {}, opset=18).SerializeToString())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(value: float) -> None:
    weight = floats(4, 3)
    weight[1, 2] = value
    proto = onnx.ModelProto()
    proto.CopyFrom(one("MatMul", (1, 4), "x", floats(4, 3)))
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "c1"))
    with pytest.raises(InvalidValueError, match=rf"initializer 'c1' holds {value} at \(1, 2\)"):
        from_onnx(proto.SerializeToString())


def test_minus_infinity_is_for_masks_only() -> None:
    mask = np.where(np.tril(np.ones((4, 4), dtype=bool)), 0.0, -np.inf).astype(np.float32)
    add = helper.make_node("Add", ["x", "c"], ["s"])
    graph = from_onnx(
        model([add, helper.make_node("Softmax", ["s"], ["y"])], (1, 4, 4), {"c": mask}, opset=18).SerializeToString()
    )
    assert [type(node.op).__name__ for node in graph.nodes()] == ["Input", "Softmax"]
    with pytest.raises(UnsupportedModelError, match="infinity"):
        from_onnx(model([add], (1, 4, 4), {"c": mask}, opset=18, output="s").SerializeToString())
    dead = np.full((4, 4), -np.inf, dtype=np.float32)
    with pytest.raises(VertexError, match="masked"):
        from_onnx(
            model(
                [add, helper.make_node("Softmax", ["s"], ["y"])], (1, 4, 4), {"c": dead}, opset=18
            ).SerializeToString()
        )


def test_a_tensor_too_large_to_be_meant_is_refused() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["n"], ["c"]),
        helper.make_node("ReduceSum", ["c"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    proto = onnx.ModelProto()
    proto.CopyFrom(model(nodes, (1, 3), {"n": ints(2, 2)}, opset=18))
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(ints(1 << 20, 1 << 20), "n"))
    with pytest.raises(UnsupportedModelError, match="at most"):
        from_onnx(proto.SerializeToString())


def test_a_bias_that_is_an_empty_name_is_refused_before_onnxruntime_crashes() -> None:
    """onnxruntime 1.31, optimising: a segmentation fault."""
    with pytest.raises(UnsupportedModelError, match="leave that input out"):
        from_onnx(one("LayerNormalization", (1, 4), "x", floats(4), None).SerializeToString())


def test_the_tolerance_is_stated() -> None:
    assert replay.POINTS >= 3
    assert replay.FLOOR < 1e-6
