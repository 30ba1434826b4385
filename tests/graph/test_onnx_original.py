"""The file itself has the last word: read once, run as it is, at every point, within its time."""

from __future__ import annotations

import builtins
import gzip
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.certificate.checker.test_model import WEIGHT, network, outside
from tests.graph.onnx_calls import call, function, model, node
from tests.graph.onnx_models import floats, run
from tests.search import small
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, OutOfTimeError, UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx import importer, replay
from vertex_softmax.graph.from_onnx import original as onnx_original
from vertex_softmax.graph.from_onnx.file import OnnxFile, packages
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.from_onnx.ops import TRANSLATE
from vertex_softmax.graph.from_onnx.original import OriginalFile
from vertex_softmax.graph.from_onnx.replay import require_same
from vertex_softmax.graph.from_onnx.time_limit import Clock
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.ops import elementwise

RELU = model([node("MatMul", ["x", "w"], "h"), node("Relu", ["h"], "y")], (), {"w": floats(4, 3)})


def points(n: int, *shape: int) -> torch.Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_bytes_are_the_files_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bytes] = []
    real = onnx_original.session
    monkeypatch.setattr(onnx_original, "session", lambda data, **k: given.append(data) or real(data, **k))
    leaky = node("LeakyRelu", ["a"], "b", refs={"alpha": "s"})
    for proto in (
        RELU,
        model([call("f")], [function("f", [leaky], s=0.5)]),
        model([node("Relu", ["x"], "y")], shape=("n", 4)),
    ):
        data = proto.SerializeToString()
        x = np.ones((1, 4), np.float32)
        for optimised in (False, True):
            for source in (data, gzip.compress(data)):
                np.testing.assert_array_equal(OriginalFile(source).run(x, optimised=optimised), run(proto, x))
                assert given.pop() is not None
        OriginalFile(data).run(x)
        assert given.pop() == data


def test_with_other_files_nothing_but_their_numbers_is_filled_in(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(network(outside("w.bin")).SerializeToString())
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    original = OriginalFile(tmp_path / "m.onnx")
    assert original.model is original.file.proto
    assert original.model == network(_filled(WEIGHT))
    np.testing.assert_array_equal(original.run(np.ones(4)), WEIGHT.sum(0)[None])


def _filled(value: np.ndarray) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(value, "w")
    tensor.data_location = TensorProto.DEFAULT
    return tensor


def test_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is replaced after that is not seen: graph, original and identity are of one state."""
    path, weights = tmp_path / "m.onnx", tmp_path / "w.bin"
    path.write_bytes(network(outside("w.bin"), outside("w.bin", "unused")).SerializeToString())
    weights.write_bytes(WEIGHT.tobytes())
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda name, *rest, **k: opened.append(str(name)) or real(name, *rest, **k))
    monkeypatch.setattr(builtins, "open", _none)
    file = OnnxFile.read(path)
    assert sorted(opened) == [str(path), str(weights)]
    monkeypatch.undo()
    (tmp_path / "w.bin").write_bytes((WEIGHT * -5).tobytes())
    path.write_bytes(RELU.SerializeToString())
    graph, original = from_onnx(file), OriginalFile(file)
    require_same(original, graph, points(3, 1, 4))
    assert graph.evaluate(torch.ones(1, 4, dtype=torch.float64)).tolist() == WEIGHT.sum(0)[None].tolist()
    assert OnnxFile.read(file) is file
    assert original.identity == file.identity != OnnxFile.read(path).identity


def _none(*_: Any, **__: Any) -> None:
    raise AssertionError("a file is opened")


def test_every_point_is_compared() -> None:
    data = RELU.SerializeToString()
    original, graph = OriginalFile(data), simplify(from_onnx(data))
    require_same(original, graph, points(100, 1, 4))
    require_same(original, graph, points(0, 1, 4))
    require_same(original, graph.to(torch.float32), points(3, 1, 4))
    kinked = _bent(graph)
    near = points(100, 1, 4).clamp(-0.2, 0.2)
    require_same(original, kinked, near)
    near[70] = 9.0
    with pytest.raises(UnsupportedModelError, match="at input 70, the output 'y' of the import differs"):
        require_same(original, kinked, near)


def _bent(graph: Graph) -> Graph:
    """The graph with relu(y − 5) added: the same where y is small."""
    y = graph.output
    above = build.add(y, build.constant(torch.tensor(-5.0, dtype=torch.float64)), "less")
    above = build.apply(elementwise.Relu(), above, name="above")
    return Graph(graph.input, build.add(y, above, "bent"))


def test_a_difference_at_one_point_is_not_hidden_by_large_outputs_elsewhere() -> None:
    data = RELU.SerializeToString()
    original, graph = OriginalFile(data), _bent(simplify(from_onnx(data)))
    several = points(9, 1, 4) * 0.1
    several[3] = 9.0
    with pytest.raises(UnsupportedModelError, match="at input 3"):
        require_same(original, graph, several)


def test_overflow_in_float32_hides_nothing() -> None:
    """Where the graph has no float32 value, rounding explains nothing."""
    data = model(
        [node("Exp", ["x"], "h"), node("Mul", ["h", "c"], "y")], (), {"c": np.float32(1e-30)}
    ).SerializeToString()
    original, graph = OriginalFile(data), from_onnx(data)
    require_same(original, graph, torch.full((1, 1, 4), 80.0, dtype=torch.float64))
    with pytest.raises(UnsupportedModelError):
        require_same(original, graph, torch.full((1, 1, 4), 95.0, dtype=torch.float64))


def test_a_sigmoid_of_large_negative_numbers_is_compared_as_what_lies_between_0_and_1() -> None:
    """onnxruntime has 0 where it is 4e-18: found with the detectors of PP-OCR, whose last op it is."""
    constants = {"c": np.float32(-40.0), "d": np.float32(2.0)}
    nodes = [node("Add", ["x", "c"], "h"), node("Sigmoid", ["h"], "s"), node("Reshape", ["s", "shape"], "y")]
    data = model(nodes, (), {**constants, "shape": np.array([4, 1])}).SerializeToString()
    original, graph = OriginalFile(data), from_onnx(data)
    require_same(original, graph, points(3, 1, 4))
    require_same(original, simplify(graph), points(3, 1, 4))
    less = build.apply(elementwise.Sigmoid(), build.reshape(graph.input, (4, 1), "r"), name="s")
    with pytest.raises(UnsupportedModelError):
        require_same(original, Graph(graph.input, less), points(3, 1, 4))


def test_a_graph_that_has_no_value_in_float32_is_not_excused() -> None:
    """It is y + 1, by way of e^(y + 95) less itself: infinite less infinite in float32."""
    data = RELU.SerializeToString()
    graph = from_onnx(data)
    number = lambda value: build.constant(torch.tensor(value, dtype=torch.float64))  # noqa: E731
    large = build.apply(elementwise.Exp(), build.add(graph.output, number(95.0), "a"), name="e")
    half = build.multiply(large, number(0.5), "h")
    nothing = build.subtract(build.subtract(large, half, "d"), half, "n")
    for shift in (1.0, 0.0):
        other = build.add(build.add(graph.output, nothing, "s"), number(shift), "t")
        with pytest.raises(UnsupportedModelError):
            require_same(OriginalFile(data), Graph(graph.input, other), points(3, 1, 4))


def test_many_points_of_one_output_that_crosses_zero() -> None:
    """No point is refused by chance, however small its output is."""
    rng = np.random.default_rng(3)
    nodes = [node("MatMul", ["x", "w"], "h"), node("Relu", ["h"], "r"), node("MatMul", ["r", "v"], "y")]
    weights = {"w": rng.normal(size=(4, 64)).astype(np.float32), "v": rng.normal(size=(64, 1)).astype(np.float32)}
    data = model(nodes, (), weights).SerializeToString()
    original, graph = OriginalFile(data), simplify(from_onnx(data))
    x = points(2000, 1, 4)
    y = graph.evaluate(x).reshape(-1)
    for _ in range(40):  # towards the zeros
        step = x * (1 - 0.5 * torch.rand(len(x), 1, 1, generator=torch.Generator().manual_seed(1)).double())
        x = torch.where((graph.evaluate(step).reshape(-1).abs() < y.abs())[:, None, None], step, x)
        y = graph.evaluate(x).reshape(-1)
    a, b = x[y > 0][:300], x[y < 0][:300]
    n = min(len(a), len(b))
    a, b = a[:n], b[:n]
    for _ in range(30):
        middle = (a + b) / 2
        above = (graph.evaluate(middle).reshape(-1) > 0)[:, None, None]
        a, b = torch.where(above, middle, a), torch.where(above, b, middle)
    assert float(graph.evaluate(a.float().double()).abs().max()) < 1e-5
    require_same(original, graph, torch.cat([a, points(len(a) + 1, 1, 4)]))


def test_an_output_that_is_nearly_zero_is_compared_with_its_own_rounding() -> None:
    """x · w − x · w' for weights that are nearly the same: what is left is rounding, of 1e-7 of what it was."""
    weight = floats(4, 1)
    nodes = [node("MatMul", ["x", "w"], "a"), node("MatMul", ["x", "v"], "b"), node("Sub", ["a", "b"], "y")]
    proto = model(nodes, (), {"w": weight, "v": weight * np.float32(1.001)})
    data = proto.SerializeToString()
    require_same(OriginalFile(data), simplify(from_onnx(data)), points(20, 1, 4) * 1e-3)


def test_the_first_tensor_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is another one in some region: the import, made again there, says where it begins to differ."""
    bent = [
        node("MatMul", ["x", "w"], "h"),
        node("Sub", ["h", "five"], "d"),
        node("Relu", ["d"], "e"),
        node("Sub", ["h", "e"], "y"),
    ]
    proto = model(bent, (), {"w": np.eye(4, dtype=np.float32), "five": np.float32(5)})
    data = proto.SerializeToString()
    original = OriginalFile(data)
    graph = from_onnx(data)
    relu, half = TRANSLATE["", "Relu"], build.constant(torch.tensor(0.5, dtype=torch.float64))
    monkeypatch.setitem(TRANSLATE, ("", "Relu"), lambda c: build.multiply(relu(c), half, c.name))
    other = from_onnx(data, check=False)
    require_same(original, graph, torch.full((1, 1, 4), 9.0, dtype=torch.float64))
    with pytest.raises(UnsupportedModelError, match="tensor 'e' of the import differs"):
        require_same(original, other, torch.full((1, 1, 4), 9.0, dtype=torch.float64))


def test_points_that_do_not_fit() -> None:
    data = RELU.SerializeToString()
    original, graph = OriginalFile(data), from_onnx(data)
    for wrong in (points(2, 4), points(2, 1, 5), torch.full((1, 1, 4), torch.nan)):
        with pytest.raises(InvalidValueError, match="an input is"):
            require_same(original, graph, wrong)
    other = from_onnx(model([node("Relu", ["x"], "y")], shape=(2, 4)).SerializeToString())
    with pytest.raises(InvalidValueError, match="the model's are"):
        require_same(original, other, points(1, 2, 4))
    with pytest.raises(InvalidValueError, match="numbers"):
        original.run(np.ones(5))
    with pytest.raises(InvalidTypeError, match="give a path"):
        OriginalFile(RELU)  # type: ignore[arg-type]


def test_float64_models_are_held_to_float64() -> None:
    weight = floats(4, 3).astype(np.float64)
    double = model([node("MatMul", ["x", "w"], "y")], (), {"w": weight}, dtype=TensorProto.DOUBLE).SerializeToString()
    assert OriginalFile(double).double
    exact = from_onnx(double)
    require_same(OriginalFile(double), exact, points(4, 1, 4))
    factor = build.constant(torch.tensor(1 + 1e-8, dtype=torch.float64))
    off = Graph(exact.input, build.multiply(exact.output, factor, "off"))
    with pytest.raises(UnsupportedModelError, match="differs"):
        require_same(OriginalFile(double), off, points(4, 1, 4))
    rough = [node("Cast", ["x"], "c", to=1), node("MatMul", ["c", "w"], "d"), node("Cast", ["d"], "y", to=11)]
    mixed = model(rough, (), {"w": floats(4, 3)}, dtype=TensorProto.DOUBLE).SerializeToString()
    assert not OriginalFile(mixed).double
    require_same(OriginalFile(mixed), from_onnx(mixed), points(4, 1, 4))


# Time


def slow() -> bytes:
    """Many nodes."""
    nodes = [node("Relu", ["x" if i == 0 else f"h{i - 1}"], f"h{i}") for i in range(400)]
    return model([*nodes, node("Neg", ["h399"], "y")]).SerializeToString()


def test_an_import_has_a_time() -> None:
    with pytest.raises(OutOfTimeError, match=r"took longer than 0 seconds, the limit for reading a model: give more"):
        from_onnx(slow(), seconds=0)
    clock, original = Clock(0.01), OriginalFile(slow())
    time.sleep(0.01)
    with pytest.raises(OutOfTimeError, match="the import of the model took longer"):
        importer._Importer(original.model, original, clock).run()
    assert from_onnx(slow(), seconds=None).output.shape == (1, 4)
    for wrong in (-1.0, float("nan")):
        with pytest.raises(InvalidValueError, match="seconds is"):
            from_onnx(slow(), seconds=wrong)
    from_onnx(slow(), seconds=float("inf"))
    from_onnx(slow(), seconds=1e300)


def test_the_comparison_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    data = RELU.SerializeToString()
    original, graph = OriginalFile(data), from_onnx(data)
    with pytest.raises(OutOfTimeError, match="the comparison of the import"):
        require_same(original, graph, points(3, 1, 4), clock=Clock(0))
    real = replay._points
    monkeypatch.setattr(replay, "_points", lambda *a: (time.sleep(0.4) or p for p in real(*a)))
    with pytest.raises(OutOfTimeError, match="the comparison of the import"):
        from_onnx(data, seconds=0.3)


def test_a_run_that_does_not_end_is_ended() -> None:
    """onnxruntime itself is stopped between two nodes, and no thread stays behind."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["on"]), helper.make_node("Relu", ["v"], ["w"])],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("going", TensorProto.BOOL, []),
            value("v", TensorProto.FLOAT, [1, 4]),
        ],
        [value("on", TensorProto.BOOL, []), value("w", TensorProto.FLOAT, [1, 4])],
    )
    loop = helper.make_node("Loop", ["rounds", "yes", "x"], ["y"], body=body)
    original = OriginalFile(model([loop], (), {"rounds": np.int64(1 << 40), "yes": np.bool_(True)}).SerializeToString())
    clock, begin = Clock(0.5), time.perf_counter()
    with pytest.raises(OutOfTimeError, match=r"took longer than 0\.5 seconds"), clock.running("the run") as options:
        original.run(np.ones((1, 4)), options=options)
    assert time.perf_counter() - begin < 20
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer) and t.is_alive()]


def test_onnxruntime_is_told_to_report_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")  # which conftest.py sets
    packages()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")  # the user's own choice
    packages()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"


def test_the_element_types_of_input_and_output() -> None:
    for dtype, kind in ((np.float32, "float32"), (np.float64, "float64")):
        assert OriginalFile(small.network((np.eye(1), np.zeros(1)), dtype=dtype)).kinds == (kind, kind)
    proto = onnx.load_model_from_string(small.network((np.eye(1), np.zeros(1))))
    proto.graph.node.add(op_type="Cast", input=["h0"], output=["half"]).attribute.add(name="to", type=2, i=10)
    proto.graph.output[0].name = "half"
    proto.graph.output[0].type.tensor_type.elem_type = 10
    assert OriginalFile(proto.SerializeToString()).kinds == ("float32", "float16")


@pytest.mark.parametrize(
    ("name", "message"), [("m.pkl", "a pickle, and nothing is unpickled"), ("m.py", "FILE.py:function")]
)
def test_a_file_of_another_kind_is_told_what_it_seems_to_be(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(InvalidValueError, match=message):
        from_onnx(tmp_path / name)
