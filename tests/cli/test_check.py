"""`vertex verify --certificate` and `vertex check`: what is proved is accepted, and of no other model."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import vertex_softmax as vx
from tests.forks import Forked, vertex
from tests.search.small import network
from vertex_softmax.certificate import instances
from vertex_softmax.certificate.certificate import Proof
from vertex_softmax.cli import verify as cli_verify
from vertex_softmax.cli.main import app
from vertex_softmax.search import answers

FIRST = np.array([[1.0, 1.0], [1.0, -1.0]])
RELU = network((FIRST, np.array([0.0, 0.5])), "Relu", (np.array([[1.0, 1.0]]), np.array([0.25])))
"""y = relu(x0 + x1) + relu(x0 − x1 + ½) + ¼: ¼ at the least over [−1, 1]²."""
OTHER = network((FIRST, np.array([0.0, 0.5])), "Relu", (np.array([[1.0, 1.0]]), np.array([0.2500001])))
BOX = "".join(f"(declare-const X_{i} Real)\n" for i in range(2)) + "(declare-const Y_0 Real)\n"
BOX += "".join(f"(assert (>= X_{i} -1.0))\n(assert (<= X_{i} 1.0))\n" for i in range(2))
TWO_BOXES = (
    "".join(f"(declare-const X_{i} Real)\n" for i in range(2))
    + "(declare-const Y_0 Real)\n(assert (or (and (>= X_0 -1.0) (<= X_0 0.0) (>= X_1 -1.0) (<= X_1 1.0) (<= Y_0 0.1))"
    + " (and (>= X_0 0.0) (<= X_0 1.0) (>= X_1 -1.0) (<= X_1 1.0) (<= Y_0 0.2))))\n"
)


@pytest.fixture(autouse=True)
def _just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts from the start of the process, and this one runs all tests; the first attack is short."""
    monkeypatch.setattr(cli_verify, "_since_start", lambda: 0.0)
    monkeypatch.setattr(answers, "Budget", functools.partial(answers.Budget, first=1e-3))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(RELU)
    (tmp_path / "other.onnx").write_bytes(OTHER)
    (tmp_path / "holds.vnnlib").write_text(BOX + "(assert (<= Y_0 0.2))\n")
    (tmp_path / "broken.vnnlib").write_text(BOX + "(assert (<= Y_0 0.3))\n")
    (tmp_path / "boxes.vnnlib").write_text(TWO_BOXES)
    return tmp_path


def verify(folder: Path, spec: str, *options: str):
    where = ["--certificate", str(folder / "proof.vertex"), *options]
    return CliRunner().invoke(
        app, ["verify", str(folder / "model.onnx"), str(folder / spec), "--timeout", "60", *where]
    )


def check(folder: Path, model: str = "model.onnx", *options: str):
    return CliRunner().invoke(app, ["check", str(folder / "proof.vertex"), str(folder / model), *options])


@pytest.mark.parametrize("spec", ["holds.vnnlib", "boxes.vnnlib"])
def test_what_is_proved_is_accepted(files: Path, spec: str) -> None:
    found = verify(files, spec, "--json", str(files / "a.json"))
    assert (found.exit_code, found.stdout) == (0, "unsat\n")
    answer = json.loads((files / "a.json").read_text())
    assert answer["proof_margin"] > 0
    assert answer["proof_bytes"] == (files / "proof.vertex").stat().st_size
    verdict = check(files)
    assert verdict.exit_code == 0
    assert verdict.stdout.startswith("accepted: margin ")
    assert "What is proved." in verdict.stderr
    assert "What is not proved." in verdict.stderr
    assert "2 of 2 numbers move, each within an interval" in verdict.stdout
    assert "output 0 > 0.2" in verdict.stdout
    with_spec = check(files, "model.onnx", str(files / spec))
    assert with_spec.exit_code == 0, with_spec.output
    assert f"proves the property of {files / spec} for this model" in with_spec.stdout
    said = json.loads(check(files, "model.onnx", "--json").stdout)
    assert said["accepted"]
    assert said["margin"] == answer["proof_margin"]


def test_of_another_model_it_is_rejected(files: Path) -> None:
    verify(files, "holds.vnnlib")
    found = check(files, "other.onnx")
    assert (found.exit_code, found.stdout) == (1, "rejected\n")
    assert "another model" in found.stderr
    # and a certificate that names the other model's hash has still the first one's numbers
    from vertex_softmax.certificate.checker.model import identity_of_file

    data = (files / "proof.vertex").read_bytes()
    data = data.replace(
        identity_of_file(files / "model.onnx").encode(), identity_of_file(files / "other.onnx").encode()
    )
    (files / "proof.vertex").write_bytes(data)
    found = check(files, "other.onnx", "--json")
    assert found.exit_code == 1
    assert "is not the model's" in json.loads(found.stdout)["reason"]


def test_nothing_is_written_for_what_does_not_hold(files: Path) -> None:
    found = verify(files, "broken.vnnlib")
    assert found.exit_code == 10
    assert not (files / "proof.vertex").exists()


def test_unsat_in_floating_point_alone_is_unknown(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "prove", lambda *_, **__: Proof(None, ((-3e-9,),), {"prove": 0.1}))
    found = verify(files, "holds.vnnlib", "--json", str(files / "a.json"))
    assert (found.exit_code, found.stdout) == (3, "unknown\n")
    assert "unknown (proof margin -3e-09)" in found.stderr
    assert json.loads((files / "a.json").read_text())["proof_margin"] == -3e-9
    assert not (files / "proof.vertex").exists()


def test_bad_arguments_are_said(files: Path) -> None:
    found = check(files)
    assert found.exit_code == 2
    assert "proof.vertex does not exist" in found.stderr.replace("\n", "")
    (files / "proof.vertex").write_bytes(b"nothing")
    found = check(files)
    assert (found.exit_code, found.stdout) == (1, "rejected\n")
    assert "not a certificate" in found.stderr
    swapped = CliRunner().invoke(app, ["check", str(files / "model.onnx"), str(files / "proof.vertex")])
    assert swapped.exit_code == 1
    assert "give the certificate first" in " ".join(swapped.stderr.split())
    found = CliRunner().invoke(
        app,
        ["verify", str(files / "model.onnx"), str(files / "holds.vnnlib"), "--certificate", str(files / "no" / "x")],
    )
    assert (found.exit_code, found.stdout) == (2, "error\n")
    assert "cannot be written" in found.stderr


QUESTIONS = {
    "the same": ("", 0, ""),
    "a lower limit": ("(assert (<= Y_0 0.1))", 0, ""),
    "a multiple": ("(assert (<= (* 0.1 Y_0) 0.02))", 0, ""),
    "another side": ("(assert (>= (* (- 2) Y_0) (- 0.4)))", 0, ""),
    "more of it": ("(assert (and (<= Y_0 0.2) (>= Y_0 -5)))", 0, ""),
    "strictly": ("(assert (< Y_0 0.2))", 0, ""),
    "a higher limit": ("(assert (<= Y_0 0.2000000001))", 1, "does not exclude the property: 1·Y_0 ≤ 0.2"),
    "a tiny bit": ("(assert (<= (* 3 Y_0) 0.6000000000000001))", 1, "does not exclude"),
    "the other way": ("(assert (>= Y_0 0.2))", 1, "does not exclude"),
    "two of which one": ("(assert (or (<= Y_0 0.1) (>= Y_0 9)))", 1, "does not exclude conjunction 2 of 2"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_question_is_compared(files: Path, name: str) -> None:
    text, code, said = QUESTIONS[name]
    verify(files, "holds.vnnlib")
    (files / "asked.vnnlib").write_text(BOX + (text or "(assert (<= Y_0 0.2))"))
    found = check(files, "model.onnx", str(files / "asked.vnnlib"))
    assert found.exit_code == code, found.output
    assert found.stdout.startswith("rejected\n" if code else "accepted")
    assert said in found.stderr
    answer = json.loads(check(files, "model.onnx", str(files / "asked.vnnlib"), "--json").stdout)
    assert answer["accepted"] == (code == 0)
    assert said in answer["reason"]
    assert (answer["claim"] is None) == (answer["statement"] == "") == bool(code)


def test_the_box_is_compared(files: Path) -> None:
    verify(files, "holds.vnnlib")
    for ends, code in (
        (("-1.0", "1.0"), 0),
        (("-0.5", "1.0"), 0),
        (("-1.0000000000000002", "1.0"), 1),
        (("-1", "2"), 1),
    ):
        box = BOX.replace("-1.0", "LOW").replace("1.0", ends[1]).replace("LOW", ends[0])
        (files / "asked.vnnlib").write_text(box + "(assert (<= Y_0 0.2))")
        found = check(files, "model.onnx", str(files / "asked.vnnlib"))
        assert found.exit_code == code, found.output
        assert ("no part of the certificate contains box 1 of 1" in found.stderr) == bool(code)


def test_a_certificate_of_a_point_looks_like_one(files: Path) -> None:
    """A single input and a property that nobody doubts: accepted, and plain to see."""
    text = "".join(f"(declare-const X_{i} Real)\n" for i in range(2)) + "(declare-const Y_0 Real)\n"
    text += "(assert (= X_0 0.5))(assert (= X_1 0.25))(assert (<= Y_0 -1000))"
    (files / "point.vnnlib").write_text(text)
    verify(files, "point.vnnlib")
    found = check(files)
    assert found.exit_code == 0
    assert "the input set is a single point: none of the 2 numbers moves" in found.stdout
    assert "output 0 > -1000.0" in found.stdout
    refused = check(files, "model.onnx", str(files / "holds.vnnlib"))
    assert (refused.exit_code, refused.stdout) == (1, "rejected\n")


def stuck(*arguments: str) -> None:
    """The command, which takes a minute for a part of its work."""
    from vertex_softmax.cli import check

    check._network_difference = lambda *_, **__: time.sleep(60) or ""
    check.GRACE = 0.0
    vertex(*arguments)


def test_a_check_has_a_time(files: Path) -> None:
    verify(files, "holds.vnnlib")
    found = check(files, "model.onnx", "--timeout", "1e-9")
    assert (found.exit_code, found.stdout) == (1, "rejected\n")
    assert "takes longer than its time limit" in found.stderr.replace("\n", " ")
    process = Forked(files, stuck, "check", "proof.vertex", "model.onnx", "--timeout", "1")
    out, error = process.communicate()
    assert (process.returncode, out) == (1, "rejected\n")
    assert "the time of 1 s was over" in error


def test_the_certificate_is_read_once(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file in its place between two looks changes nothing."""
    verify(files, "holds.vnnlib")
    from vertex_softmax.certificate.checker import file

    real, seen = file.opened, []

    def once(path: Path):
        seen.append(Path(path).name)
        return real(path)

    monkeypatch.setattr(file, "opened", once)
    assert check(files).exit_code == 0
    assert seen.count("proof.vertex") == 1


@pytest.mark.parametrize(
    "text", ["(<= (* 0.1 Y_0) 0.019)", "(<= (* 1e-330 Y_0) 0.2e-330)", "(<= (* 0.3 Y_0) (* 0.1 Y_0))"]
)
def test_decimal_and_tiny_coefficients_are_certified(files: Path, text: str) -> None:
    (files / "asked.vnnlib").write_text(BOX + f"(assert {text})")
    assert verify(files, "asked.vnnlib").stdout == "unsat\n"
    found = check(files, "model.onnx", str(files / "asked.vnnlib"))
    assert found.exit_code == 0, found.output


def test_tiny_coefficients_are_no_reason_for_unsat(files: Path) -> None:
    (files / "asked.vnnlib").write_text(BOX + "(assert (<= (* 1e-330 Y_0) 0.3e-330))")
    assert verify(files, "asked.vnnlib").stdout.startswith("sat\n")


def test_a_certificate_of_a_file_with_open_sizes(tmp_path: Path) -> None:
    """The sizes are those of the certificate's input; of another size it proves nothing."""
    import torch
    from onnx import helper

    import vertex_softmax as vx
    from tests.graph.onnx_models import model as made

    weight = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["m"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    path = tmp_path / "model.onnx"
    path.write_bytes(made(nodes, ("n", "length", 3), {"w": weight}, opset=13).SerializeToString())
    x = torch.rand(1, 4, 3)
    ball = vx.LinfBall(x, 1e-3)
    label = int((x[0].mean(0) @ torch.from_numpy(weight)).argmax())
    found = vx.certify(str(path), ball, label, "crown", certificate=True)
    assert found.verdict == "verified"
    assert found.certificates is not None
    found.certificates[0].save(tmp_path / "proof.vertex")
    accepted = check(tmp_path)
    assert accepted.exit_code == 0, accepted.stderr
    assert "accepted" in accepted.stdout


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_specification_counts_inputs_in_the_model_s_order(tmp_path: Path, order: str) -> None:
    """y = (a, b); y_0 > y_1 holds where the input joined first is in [0, 1] only if that is b, the model's second."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 1)) for name in "ab"]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2))
    nodes = [helper.make_node("Concat", ["a", "b"], ["j"], axis=1), helper.make_node("MatMul", ["j", "w"], ["y"])]
    weight = numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "two", tensors, [out], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    least = {"b": 0.0, "a": 2.0}
    sets = {name: vx.Box(*(torch.full((1, 1), least[name] + k, dtype=torch.float64) for k in (0, 1))) for name in order}
    found = vx.certify(tmp_path / "model.onnx", vx.sets.Product(**sets), 0, "crown", certificate=True)
    (proof,) = found.certificates
    assert proof is not None
    proof.save(tmp_path / "proof.vertex")
    ends = [(f"X_{i}", least[name]) for i, name in enumerate(order)]
    text = "".join(f"(declare-const {v} Real)" for v in ("X_0", "X_1", "Y_0", "Y_1"))
    text += "".join(f"(assert (>= {x} {low}))(assert (<= {x} {low + 1}))" for x, low in ends) + "(assert (<= Y_0 Y_1))"
    (tmp_path / "spec.vnnlib").write_text(text)
    assert check(tmp_path).exit_code == 0
    result = check(tmp_path, "model.onnx", str(tmp_path / "spec.vnnlib"))
    assert result.exit_code == (0 if order == "ab" else 1)
    assert ("in the order 'b', 'a'" in result.output) == (order == "ba")


@pytest.mark.parametrize(
    ("sizes", "shape", "accepted"),
    [((1, "n", "m"), (4, 1), False), ((1, "n", 1), (4, 1), True), (("b", "n", 1), (4, 1), True)],
)
def test_open_sizes_are_not_the_certificate_s_to_choose(
    tmp_path: Path, sizes: tuple[int | str, ...], shape: tuple[int, int], accepted: bool
) -> None:
    """y = (the sum of the first column, 2): four numbers of 1 are above 2 in one column, and not in two rows."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2))
    arrays = {"from": [0], "to": [1], "axis": [2], "axes": [1, 2], "shape": [1, 1]}
    nodes = [
        helper.make_node("Slice", ["x", "from", "to", "axis"], ["column"]),
        helper.make_node("ReduceSum", ["column", "axes"], ["sum"], keepdims=0),
        helper.make_node("Reshape", ["sum", "shape"], ["row"]),
        helper.make_node("Gemm", ["row", "w", "b"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(np.array(value), name) for name, value in arrays.items()]
    tensors.append(numpy_helper.from_array(np.array([[1, 0]], np.float32), "w"))
    tensors.append(numpy_helper.from_array(np.array([0, 2], np.float32), "b"))
    graph = helper.make_graph(nodes, "open", [given], [out], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    ball = vx.LinfBall(torch.ones(1, *shape, dtype=torch.float64), 0.125)
    (proof,) = vx.certify(tmp_path / "model.onnx", ball, 0, "crown", certificate=True).certificates
    assert proof is not None
    proof.save(tmp_path / "proof.vertex")
    text = "".join(f"(declare-const X_{i} Real)" for i in range(4)) + "(declare-const Y_0 Real)(declare-const Y_1 Real)"
    text += "".join(f"(assert (>= X_{i} 0.9))(assert (<= X_{i} 1.1))" for i in range(4)) + "(assert (<= Y_0 Y_1))"
    (tmp_path / "spec.vnnlib").write_text(text)
    assert check(tmp_path).exit_code == 0
    result = check(tmp_path, "model.onnx", str(tmp_path / "spec.vnnlib"))
    assert result.exit_code == (0 if accepted else 1)
    assert ("several sizes open" in " ".join(result.output.split())) == (not accepted)
