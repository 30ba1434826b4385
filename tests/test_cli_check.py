"""`vertex verify --certificate` and `vertex check`: what is proved is accepted, and of no other model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.search.small import network
from typer.testing import CliRunner

from vertex_softmax import cli_verify
from vertex_softmax.certificate import instances
from vertex_softmax.certificate.certificate import Proof
from vertex_softmax.cli import app

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
    monkeypatch.setattr(cli_verify, "_since_start", lambda: 0.0)


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
    said = json.loads(check(files, "model.onnx", "--json").stdout)
    assert said["accepted"]
    assert said["margin"] == answer["proof_margin"]


def test_of_another_model_it_is_rejected(files: Path) -> None:
    verify(files, "holds.vnnlib")
    found = check(files, "other.onnx")
    assert (found.exit_code, found.stdout) == (1, "rejected\n")
    assert "another model" in found.stderr
    # and a certificate that names the other model's hash has still the first one's numbers
    from vertex_softmax.certificate.checker.file import sha256

    data = (files / "proof.vertex").read_bytes()
    data = data.replace(sha256(files / "model.onnx").encode(), sha256(files / "other.onnx").encode())
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
    assert "no certificate" in found.stderr
    found = CliRunner().invoke(
        app,
        ["verify", str(files / "model.onnx"), str(files / "holds.vnnlib"), "--certificate", str(files / "no" / "x")],
    )
    assert (found.exit_code, found.stdout) == (2, "error\n")
    assert "cannot be written" in found.stderr
