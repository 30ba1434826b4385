"""VNNLIB 1.0 and 2.0 are the same question in every command: verify, check, sweep, and verify of a Python model."""

from __future__ import annotations

import csv
import functools
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.cli.test_verify import BROKEN, HOLDS, RELU
from tests.search.small import network, run
from tests.specs.second_version import assignment, in_version_2
from vertex_softmax.cli import verify as cli_verify
from vertex_softmax.cli.main import app
from vertex_softmax.search import answers

PYTHON_MODEL = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        a, b = x[..., 0], x[..., 1]
        return (torch.relu(a + b) + torch.relu(a - b + 0.5) + 0.25).unsqueeze(-1)

def net():
    return Net().eval()
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two properties in both versions; the time counts from now, and the first attack is short."""
    monkeypatch.setattr(cli_verify, "_since_start", lambda: 0.0)
    monkeypatch.setattr(answers, "Budget", functools.partial(answers.Budget, first=1e-3))
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(RELU)
    Path("net.py").write_text(PYTHON_MODEL)
    for name, text in (("holds", HOLDS), ("broken", BROKEN)):
        Path(f"{name}1.vnnlib").write_text(text)
        Path(f"{name}2.vnnlib").write_text(in_version_2(text))
    return tmp_path


def vertex(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("model", ["model.onnx", "net.py:net"])
@pytest.mark.parametrize("method", ["crown", "bab"])
def test_verify(model: str, method: str) -> None:
    found = {n: vertex("verify", model, f"holds{n}.vnnlib", "--method", method) for n in (1, 2)}
    answer = (3, "unknown\n") if method == "crown" else (0, "unsat\n")
    assert [(found[n].exit_code, found[n].stdout) for n in (1, 2)] == [answer] * 2
    assert len({re.sub(r"\(.*", "", found[n].stderr) for n in (1, 2)}) == 1


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("model", ["model.onnx", "net.py:net"])
def test_an_attack_answers_in_the_words_of_the_version(model: str) -> None:
    found = {
        n: vertex("verify", model, f"broken{n}.vnnlib", "--method", "attack", "--counterexample", f"c{n}.txt")
        for n in (1, 2)
    }
    assert [found[n].exit_code for n in (1, 2)] == [10, 10], found[2].stderr
    first = [float(v) for v in re.findall(r"_\d+ (\S+?)\)", Path("c1.txt").read_text())]
    second = assignment(Path("c2.txt").read_text())
    assert {name: of[:2] for name, of in second.items()} == {"X": ("float32", [1, 2]), "Y": ("float32", [1, 1])}
    assert [*second["X"][2], *second["Y"][2]] == first  # the same seed, the same point
    assert found[2].stdout.rstrip() == "sat\n" + Path("c2.txt").read_text().rstrip()
    assert run(RELU, np.float32(second["X"][2])).item() <= 0.3


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("version", [1, 2])
def test_a_certificate_proves_both(version: int) -> None:
    made = vertex("verify", "model.onnx", f"holds{version}.vnnlib", "--certificate", "proof.vertex")
    assert made.exit_code == 0, made.stderr
    for spec in ("holds1.vnnlib", "holds2.vnnlib"):
        checked = vertex("check", "proof.vertex", "model.onnx", spec)
        assert checked.exit_code == 0, checked.stdout
        assert "accepted" in checked.stdout
    other = vertex("check", "proof.vertex", "model.onnx", "broken2.vnnlib")
    assert (other.exit_code, other.stdout) == (1, "rejected\n")


def test_a_sweep_over_both(files: Path) -> None:
    names = [f"{name}{n}.vnnlib" for name in ("holds", "broken") for n in (1, 2)]
    models = ["model.onnx", "\"[('f', 'model.onnx')]\""]
    (files / "instances.csv").write_text("".join(f"{models[i % 2]},{name},60\n" for i, name in enumerate(names)))
    swept = vertex("sweep", "instances.csv", "--out", "out", "--threads", "1")
    assert swept.exit_code == 0, swept.output
    with (files / "out" / "results.csv").open(newline="") as file:
        lines = {row[2]: (row[1], row[4]) for row in csv.reader(file)}
    assert {name: answer for name, (_, answer) in lines.items()} == dict(
        zip(names, ["unsat", "unsat", "sat", "sat"], strict=True)
    )
    assert lines["holds2.vnnlib"][0] == "[('f', 'model.onnx')]"
    texts = sorted(path.read_text() for path in (files / "out" / "counterexamples").iterdir())
    assert [text[:2] for text in texts] == ["((", "X "]


def test_another_element_type_is_an_error(files: Path) -> None:
    """The standard asks for it: a counterexample in the model's numbers may not be one in the declared ones."""
    (files / "half.vnnlib").write_text(in_version_2(HOLDS, "float16"))
    found = vertex("verify", "model.onnx", "half.vnnlib")
    assert (found.exit_code, found.stdout) == (2, "error\n")
    assert "declares X with elements of type float16, and the network's are float32" in " ".join(found.stderr.split())
    (files / "double.onnx").write_bytes(network((np.eye(2), np.zeros(2)), (np.eye(2)[:1], [1.0]), dtype=np.float64))
    assert vertex("verify", "double.onnx", "holds2.vnnlib").exit_code == 2
    (files / "real.vnnlib").write_text(in_version_2(HOLDS, "real"))
    assert vertex("verify", "model.onnx", "real.vnnlib").stdout == "unsat\n"
