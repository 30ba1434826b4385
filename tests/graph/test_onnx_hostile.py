"""Small ONNX files that ask for much: memory, nodes, other people's files. Each is refused before it gets any of it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.graph.onnx_models import floats, ints, model, one
from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError, VertexError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx import parts
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.search.replay import Replay

HUGE = 1 << 40
LONG = np.zeros((1 << 16, 1), np.float32)
"""A quarter of a MiB; with its transpose it makes 2³² numbers."""


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB


def node(kind: str, inputs: list[str], output: str = "c", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], **attributes)


def written(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], shape: tuple[int, ...] = (1, 4)) -> bytes:
    """x → y, and nothing is run to make it."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    ).SerializeToString()
    return made


USED = node("Add", ["x", "c"], "y")
IMAGE = (1, 1, 4, 4)
ASKED: dict[str, bytes] = {
    "ConstantOfShape": written([node("ConstantOfShape", ["s"]), USED], {"s": ints(HUGE, 4)}),
    "Expand": written([node("Expand", ["v", "s"]), USED], {"v": floats(1), "s": ints(1 << 20, 1 << 20)}),
    "Expand of the input": written([node("Expand", ["x", "s"], "y")], {"s": ints(HUGE, 4)}),
    "Tile": written([node("Tile", ["v", "s"]), USED], {"v": floats(1, 4), "s": ints(HUGE, 1)}),
    "Tile of the input": written([node("Tile", ["x", "s"], "y")], {"s": ints(HUGE, 1)}),
    "Range": written(
        [node("Range", ["a", "b", "d"]), USED], {"a": np.float32(0), "b": np.float32(1e30), "d": np.float32(1)}
    ),
    "Pad": written([node("Pad", ["x", "s"], "y")], {"s": ints(0, 0, HUGE, 0)}),
    "OneHot": written([node("OneHot", ["i", "n", "v"]), USED], {"i": ints(0, 1), "n": np.int64(HUGE), "v": floats(2)}),
    "EyeLike": written(
        [node("Expand", ["v", "s"], "e"), node("EyeLike", ["e"]), USED], {"v": floats(1), "s": ints(HUGE, 1)}
    ),
    "a sum of a column and a row": written([node("Add", ["u", "v"]), USED], {"u": LONG, "v": LONG.T}),
    "a comparison of a column and a row": written([node("Less", ["u", "v"]), USED], {"u": LONG, "v": LONG.T}),
    "a power of a column and a row": written([node("Pow", ["u", "v"]), USED], {"u": LONG, "v": LONG.T}),
    "a maximum of a column and a row": written([node("Max", ["u", "v"]), USED], {"u": LONG, "v": LONG.T}),
    "a product of a column and a row": written([node("MatMul", ["u", "v"]), USED], {"u": LONG, "v": LONG.T}),
    "a Where of a column and a row": written(
        [node("Where", ["w", "u", "v"]), USED], {"u": LONG, "v": LONG.T, "w": LONG > 0}
    ),
    "the input and a row": written([node("Add", ["x", "v"], "y")], {"v": LONG.T}, (1 << 16, 1)),
    "the input and its transpose": written(
        [node("Transpose", ["x"]), node("MatMul", ["x", "c"], "y")], {}, (1 << 16, 1)
    ),
    "a large linear map of a large input": written([node("MatMul", ["x", "v"], "y")], {"v": LONG.T}, (1 << 16, 1)),
    "an Einsum": written([node("Einsum", ["x", "v"], "y", equation="ab,bc->ac")], {"v": LONG.T}, (1 << 16, 1)),
    "Conv with padding": written([node("Conv", ["x", "w"], "y", pads=[1 << 20] * 4)], {"w": floats(1, 1, 2, 2)}, IMAGE),
    "Conv with uneven padding": written(
        [node("Conv", ["x", "w"], "y", pads=[1 << 20] * 3 + [0])], {"w": floats(1, 1, 2, 2)}, IMAGE
    ),
    "MaxPool": written([node("MaxPool", ["x"], "y", kernel_shape=[HUGE, HUGE], pads=[HUGE - 1] * 4)], {}, IMAGE),
    "AveragePool": written([node("AveragePool", ["x"], "y", kernel_shape=[HUGE, HUGE])], {}, IMAGE),
    "AveragePool with padding": written(
        [node("AveragePool", ["x"], "y", kernel_shape=[2, 2], pads=[1 << 20] * 4)], {}, IMAGE
    ),
    "Split": written([helper.make_node("Split", ["x"], ["y", "z"], num_outputs=HUGE)], {}),
    "Unsqueeze": written([node("Unsqueeze", ["x", "s"], "y")], {"s": ints(*range(1000))}),
    "the input": written([node("Relu", ["x"], "y")], {}, (HUGE, 4)),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_asks_for_terabytes_is_refused(name: str) -> None:
    with pytest.raises(VertexError) as error:
        from_onnx(ASKED[name])
    assert "alloc" not in str(error.value)


def test_an_initializer_that_has_a_shape_and_no_numbers() -> None:
    proto = onnx.load_from_string(written([USED], {"c": floats(4)}))
    for field in ("raw_data", "float_data"):
        tensor = proto.graph.initializer[0]
        del tensor.dims[:]
        tensor.dims.extend([HUGE, 4])
        tensor.ClearField(field)
        with pytest.raises(InvalidValueError, match=r"damaged|not a valid"):
            from_onnx(proto.SerializeToString())
    proto = onnx.load_from_string(written([USED], {"c": floats(4)}))
    proto.graph.initializer[0].dims[0] = -1
    with pytest.raises(InvalidValueError, match=r"damaged|not a valid"):
        from_onnx(proto.SerializeToString())


def test_many_tensors_that_are_each_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "LARGEST", 1 << 10)
    nodes = [node("ConstantOfShape", ["s"], f"c{i}") for i in range(9)]
    nodes += [node("Add", ["x" if i == 0 else f"y{i - 1}", f"c{i}"], f"y{i}") for i in range(9)]
    nodes[-1].output[0] = "y"
    from_onnx(written(nodes, {"s": ints(1, 4)}))
    with pytest.raises(InvalidValueError, match="numbers together"):
        from_onnx(written(nodes, {"s": ints(50, 4)}))
    doubled = [node("Concat", ["v" if i == 0 else f"d{i}"] * 2, f"d{i + 1}", axis=0) for i in range(40)]
    with pytest.raises(InvalidValueError, match="numbers together"):
        from_onnx(written([*doubled, node("Add", ["x", "d40"], "y")], {"v": floats(2, 4)}))
    norms = [node("LayerNormalization", ["x" if i == 0 else f"y{i - 1}", "g"], f"y{i}") for i in range(9)]
    norms[-1].output[0] = "y"
    with pytest.raises(InvalidValueError, match="numbers together"):
        from_onnx(written(norms, {"g": floats(16)}, (1, 16)), check=False)


def with_functions(depth: int, calls: int, *, round_again: bool = False) -> bytes:
    """f0 calls f1 `calls` times, and so on; the last is Relu, or calls f0."""
    proto = onnx.load_from_string(written([node("Relu", ["x"], "y")], {}))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("made", 1)]
    for i in range(depth):
        kind, domain = (f"f{i + 1}", "made") if i + 1 < depth else (("f0", "made") if round_again else ("Relu", ""))
        body = [
            helper.make_node(kind, ["a" if k == 0 else f"t{k - 1}"], [f"t{k}"], domain=domain) for k in range(calls)
        ]
        body[-1].output[0] = "b"
        proto.functions.append(helper.make_function("made", f"f{i}", ["a"], ["b"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("made", 1))
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "f0", "made"
    found: bytes = proto.SerializeToString()
    return found


def test_functions_are_expanded_up_to_a_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[-1.0, 2.0, -3.0, 4.0]], dtype=torch.float64)
    assert from_onnx(with_functions(3, 2)).evaluate(x).tolist() == [[0.0, 2.0, 0.0, 4.0]]
    with pytest.raises(InvalidValueError, match=r"has \d{9,} nodes, its functions expanded"):
        from_onnx(with_functions(30, 2))
    with pytest.raises(InvalidValueError, match="calls itself"):
        from_onnx(with_functions(3, 2, round_again=True))
    with pytest.raises(InvalidValueError, match="calls itself, or functions nest deeper"):
        from_onnx(with_functions(parts.MOST_DEPTH + 5, 1))


def test_numbers_of_a_function_come_from_the_models_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx itself would look for them in the current folder."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "w.bin").write_bytes(floats(4).tobytes())
    monkeypatch.chdir(tmp_path / "here")
    tensor = numpy_helper.from_array(floats(4), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    proto = onnx.load_from_string(with_functions(1, 1))
    body = [helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("Add", ["a", "w"], ["b"])]
    proto.functions[0].ClearField("node")
    proto.functions[0].node.extend(body)
    for data, match in ((proto.SerializeToString(), "give the path"), (tmp_path / "m.onnx", "not a file inside")):
        if isinstance(data, Path):
            data.write_bytes(proto.SerializeToString())
        with pytest.raises(InvalidValueError, match=match):
            from_onnx(data)
    (tmp_path / "w.bin").write_bytes(np.ones(4, np.float32).tobytes())
    x = torch.zeros(1, 4, dtype=torch.float64)
    assert from_onnx(tmp_path / "m.onnx").evaluate(x).tolist() == [[1.0] * 4]


@pytest.mark.parametrize("location", ["a\0b", "x" * 5000, "loop", "\ud7ff", "pipe"])
def test_a_place_that_is_none(location: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    proto = onnx.load_from_string(written([USED], {"c": floats(4)}))
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidValueError, match="not a file inside the model's folder"):
        from_onnx(tmp_path / "m.onnx")


def endless() -> bytes:
    """y = relu(x); beside it, used by nothing, a loop of 2⁶³ rounds and a tensor of terabytes."""
    body = helper.make_graph(
        [node("Identity", ["going"], "on"), node("Identity", ["v"], "w")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, ["n"]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, ["n"]),
        ],
    )
    constants = {"rounds": np.int64((1 << 63) - 1), "yes": np.bool_(True), "v": floats(1), "s": ints(1 << 36)}
    nodes = [
        node("Relu", ["x"], "y"),
        node("Loop", ["rounds", "yes", "v"], "never", body=body),
        node("ConstantOfShape", ["s"], "large"),
    ]
    return written(nodes, constants)


def test_what_the_output_does_not_depend_on_is_not_run() -> None:
    graph = from_onnx(endless())
    assert graph.evaluate(torch.ones(1, 4, dtype=torch.float64)).tolist() == [[1.0] * 4]
    assert Replay(endless()).output(np.ones(4)).tolist() == [[1.0] * 4]


def test_other_outputs_may_be_what_they_are() -> None:
    proto = onnx.load_from_string(endless())
    proto.graph.output.append(helper.make_tensor_value_info("never", TensorProto.FLOAT, ["n"]))
    assert from_onnx(proto.SerializeToString()).output.shape == (1, 4)
    with pytest.raises(UnsupportedModelError, match="Loop"):
        from_onnx(proto.SerializeToString(), output="never")


def test_a_model_of_ordinary_size_takes_the_way_of_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of products above the limit are found without data."""
    nodes = [node("Gemm", ["x", "w", "b"], "h", transB=1), node("Relu", ["h"], "r"), node("MatMul", ["r", "v"], "y")]
    proto = model(nodes, (1, 64), {"w": floats(64, 64), "b": floats(64), "v": floats(64, 8)}, opset=18)
    monkeypatch.setattr(build, "LARGEST", 5000)
    x = torch.ones(1, 64, dtype=torch.float64)
    assert from_onnx(proto.SerializeToString()).evaluate(x).shape == (1, 8)


def test_an_unknown_type_of_elements() -> None:
    proto = one("Add", (4,), "x", floats(4))
    proto.graph.initializer[0].data_type = 99
    with pytest.raises(VertexError):
        from_onnx(proto.SerializeToString())
