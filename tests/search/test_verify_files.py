"""A model file and a property: read once, replayed in every box, proved of the file that was read or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from typer.testing import CliRunner

from tests.certificate.checker.test_model import outside
from tests.graph.onnx_calls import call, function, model, node
from tests.search.small import case, conjunction, network, prop
from vertex_softmax.certificate import checker
from vertex_softmax.certificate.checker.model import identity_of_file
from vertex_softmax.cli import verify
from vertex_softmax.cli.main import app
from vertex_softmax.foundation.errors import OutOfTimeError, UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx.file import OnnxFile
from vertex_softmax.graph.from_onnx.original import OriginalFile
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops import elementwise
from vertex_softmax.search import verify_files
from vertex_softmax.search.answers import Budget
from vertex_softmax.search.replay import Replay
from vertex_softmax.search.verify_files import load_instance, verify_instance

LINEAR = (np.array([[1.0, 1.0]]), np.zeros(1))


def spec(folder: Path, boxes: list[tuple[float, float]], limit: float, inputs: int = 2) -> Path:
    """Is the one output at least the limit somewhere in the boxes, each (low, high) in all inputs?"""
    text = "".join(f"(declare-const X_{i} Real)\n" for i in range(inputs)) + "(declare-const Y_0 Real)\n(assert (or\n"
    for low, high in boxes:
        ends = " ".join(f"(>= X_{i} {low}) (<= X_{i} {high})" for i in range(inputs))
        text += f"  (and {ends} (>= Y_0 {limit}))\n"
    (folder / "s.vnnlib").write_text(text + "))\n")
    return folder / "s.vnnlib"


def written(folder: Path, data: bytes) -> Path:
    (folder / "m.onnx").write_bytes(data)
    return folder / "m.onnx"


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.arange(12, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("ReduceSum", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 1))],
        [outside("w.bin")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path, where = written(tmp_path, proto.SerializeToString()), spec(tmp_path, [(0, 1)], 67, inputs=4)
    (tmp_path / "w.bin").write_bytes(weights.tobytes())
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda name, *rest, **k: opened.append(Path(name).name) or real(name, *rest, **k))
    instance = load_instance(path, where)
    monkeypatch.undo()
    assert sorted(name for name in opened if name in ("m.onnx", "w.bin", "s.vnnlib")) == ["m.onnx", "s.vnnlib", "w.bin"]
    assert instance.model_hash == identity_of_file(path)
    (tmp_path / "w.bin").write_bytes((weights * 9).tobytes())  # replaced while the run is under way
    assert verify_instance(instance, Budget(20.0)).verdict is Verdict.VERIFIED
    assert instance.model_hash != identity_of_file(path)


def test_a_model_with_several_outputs_is_refused(tmp_path: Path) -> None:
    proto = onnx.load_model_from_string(network(LINEAR))
    first = proto.graph.output[0]
    proto.graph.node.add(op_type="Neg", input=[first.name], output=["z"])
    proto.graph.output.add().CopyFrom(first)
    proto.graph.output[1].name = "z"
    path = written(tmp_path, proto.SerializeToString())
    with pytest.raises(UnsupportedModelError, match=rf"m\.onnx has 2 outputs \({first.name}, z\).*that output alone"):
        load_instance(path, spec(tmp_path, [(0, 1)], 3))


def test_a_model_without_other_files_has_the_sha256_of_its_bytes(tmp_path: Path) -> None:
    data = network(LINEAR)
    instance = load_instance(written(tmp_path, data), spec(tmp_path, [(0, 1)], 3))
    assert instance.model_hash == hashlib.sha256(data).hexdigest()
    assert load_instance(OnnxFile.read(data), tmp_path / "s.vnnlib").model_hash == instance.model_hash


def bent(graph: Graph) -> Graph:
    """Another function where the output is above 50."""
    y = graph.output
    above = build.add(y, build.constant(torch.tensor(-50.0, dtype=torch.float64)), "less")
    return Graph(graph.input, build.subtract(y, build.apply(elementwise.Relu(), above, name="r"), "bent"))


@pytest.mark.parametrize("at", [0, 1, 5, 40, 399])
def test_the_middle_of_every_box_is_replayed(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is another one in one box of four hundred is found there, before there is a verdict."""
    monkeypatch.setattr(verify_files, "ENDS", 3)
    real = verify_files.simplify
    monkeypatch.setattr(verify_files, "simplify", lambda graph, **k: bent(real(graph, **k)))
    boxes = [(i * 1e-3, i * 1e-3 + 1e-4) for i in range(400)]
    path = written(tmp_path, network(LINEAR))
    load_instance(path, spec(tmp_path, boxes, 1))
    boxes[at] = (29.0, 31.0)
    with pytest.raises(UnsupportedModelError, match="differs from onnxruntime on the file"):
        load_instance(path, spec(tmp_path, boxes, 1))


def test_boxes_that_are_the_same_are_replayed_once() -> None:
    one = prop(
        1, case([("0", "1"), ("0", "1")], conjunction()), case([("0", "1"), ("0", "1")], conjunction(({0: 1}, 1)))
    )
    (found,) = verify_files.points_of_cases(one.cases, (1, 2))
    assert found.tolist() == [[[0, 0]], [[0.5, 0.5]], [[1, 1]]]
    wide = prop(1, case([("-1.7e308", "1.7e308"), ("0", "1")], conjunction()))
    assert next(verify_files.points_of_cases(wide.cases, (1, 2))).isfinite().all()


def test_a_function_with_a_default_is_judged_as_onnxruntime_runs_it(tmp_path: Path) -> None:
    """Item 4: expanded without the default, y ≥ −0.02; in truth it is −1 at x = (−1, −1)."""
    leaky = node("LeakyRelu", ["a"], "b", refs={"alpha": "slope"})
    nodes = [call("f", ["x"], "h"), node("ReduceSum", ["h"], "s"), node("Neg", ["s"], "y")]
    path = written(tmp_path, model(nodes, [function("f", [leaky], slope=0.5)], shape=(1, 2)).SerializeToString())
    answer = verify_instance(load_instance(path, spec(tmp_path, [(-1, 1)], 0.5)), Budget(20.0))
    assert answer.verdict is Verdict.FALSIFIED
    answer = verify_instance(load_instance(path, spec(tmp_path, [(-1, 1)], 1.01)), Budget(20.0))
    assert answer.verdict is Verdict.VERIFIED


def test_a_counterexample_holds_with_optimisations_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    original = OriginalFile(network(LINEAR))
    replay = Replay(original)
    box = prop(1, case([("0", "1"), ("0", "1")], conjunction(({0: -1}, "-1.5"))))
    x = np.array([1.0, 1.0])
    assert replay.confirms(box, x) is not None
    real = OriginalFile.run
    for wrong in (True, False):

        def shifted(self, x, *, optimised=False, options=None, wrong=wrong):
            return real(self, x, optimised=optimised, options=options) - np.float32(optimised is wrong)

        monkeypatch.setattr(OriginalFile, "run", shifted)
        assert Replay(original).confirms(box, x) is None
    monkeypatch.setattr(OriginalFile, "run", real)
    assert Replay(original).confirms(box, x) is not None


def test_reading_has_a_time(tmp_path: Path) -> None:
    path = written(tmp_path, network(LINEAR))
    with pytest.raises(OutOfTimeError, match="give more by `seconds`"):
        load_instance(path, spec(tmp_path, [(0, 1)], 1), seconds=0.0)


# What has no numbers, or no dimensions

SHAPES = {
    "the input of the network is a single number": ((), (), "Relu"),
    "the output of the network is a single number": ((1, 1), (), "ReduceSum"),
    r"shape \[0, 2\], which holds no number": ((0, 2), (0, 2), "Relu"),
    r"shape \[1, 0\], which holds no number": ((1, 0), (1, 0), "Relu"),
}


@pytest.mark.parametrize("said", SHAPES)
def test_models_without_numbers_or_dimensions_get_a_clear_error(said: str, tmp_path: Path) -> None:
    before, after, kind = SHAPES[said]
    nodes = [node(kind, ["x"], "y", **({"keepdims": 0} if kind == "ReduceSum" else {}))]
    path = written(tmp_path, model(nodes, shape=before, after=after).SerializeToString())
    for limit in (0.5, 3.0):
        where = spec(tmp_path, [(0, 1)], limit, inputs=1)
        with pytest.raises(UnsupportedModelError, match=said):
            load_instance(path, where)
        found = CliRunner().invoke(app, ["verify", str(path), str(where), "--timeout", "20"])
        assert found.exit_code == 2, found.output
        assert "Traceback" not in found.output


def test_an_output_without_numbers_gets_a_clear_error(tmp_path: Path) -> None:
    nodes = [node("Slice", ["x", "a", "b", "one"], "y")]
    constants = {"a": np.array([0]), "b": np.array([0]), "one": np.array([1])}
    path = written(tmp_path, model(nodes, (), constants, shape=(1, 2), after=(1, 0)).SerializeToString())
    with pytest.raises(UnsupportedModelError, match="output 'y' has no numbers"):
        load_instance(path, spec(tmp_path, [(0, 1)], 1))


# Certificates


def test_a_certificate_is_of_the_external_weights_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 10: with other weights beside the same file, the certificate is for another model."""
    monkeypatch.setattr(verify, "_since_start", lambda: 0.0)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("ReduceSum", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 1))],
        [outside("w.bin")],
    )
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path, where = written(tmp_path, proto.SerializeToString()), spec(tmp_path, [(0, 1)], 67, inputs=4)
    weights = np.arange(12, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(weights.tobytes())
    proof = tmp_path / "proof.vertex"
    found = CliRunner().invoke(app, ["verify", str(path), str(where), "--timeout", "60", "--certificate", str(proof)])
    assert found.stdout == "unsat\n", found.output
    assert checker.check(proof, path).accepted
    (tmp_path / "w.bin").write_bytes((weights * 2).tobytes())
    verdict = checker.check(proof, path)
    assert not verdict.accepted
    assert "another model" in verdict.reason
    (tmp_path / "w.bin").unlink()
    verdict = checker.check(proof, path)
    assert not verdict.accepted
    assert "not a file inside" in verdict.reason
