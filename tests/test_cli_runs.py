"""`vertex certify` and `vertex radius` as they are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runs.made import inputs, network
from typer.testing import CliRunner

from vertex_softmax.cli import app
from vertex_softmax.runs.run import read
from vertex_softmax.zoo.train import save


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    save(network(), place / "model", {})
    some = inputs()
    np.savez(place / "data.npz", inputs=some.x.numpy(), labels=some.labels.numpy())
    return place


def called(*arguments: str, code: int = 0) -> Any:
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code == code, found.output
    return found


def certify(files: Path, out: Path, *more: str, code: int = 0) -> Any:
    where = (str(files / "model"), "--data", str(files / "data.npz"), "--clip", "0,1", "--out", str(out))
    return called("certify", *where, *more, code=code)


def test_certify_makes_a_table_and_a_run(files: Path, tmp_path: Path) -> None:
    shown = certify(files, tmp_path, "--eps", "0.3,0.05", "--methods", "ibp,crown", "--count", "4")
    assert "attack" in shown.stdout
    assert "ε = 0.3" in shown.stdout
    run = read(tmp_path)
    assert run.eps == (0.05, 0.3)
    assert run.methods == ("ibp", "crown")
    assert len(run.inputs) == 4
    assert f"{run.rate('crown', 0.05):.0%}" in shown.stdout


def test_json_is_one_document(files: Path, tmp_path: Path) -> None:
    said = ("--eps", "0.05", "--methods", "crown", "--json", "--verdicts-only")
    data = json.loads(certify(files, tmp_path, *said).stdout)
    assert data["inputs"] == 5
    assert data["correct"] == 4
    assert data["rows"][0]["certified"] == read(tmp_path).rate("crown", 0.05)
    assert data["attack"][0]["not_fooled"] >= data["rows"][0]["certified"]


def test_radius_makes_tables_and_a_run(files: Path, tmp_path: Path) -> None:
    where = (str(files / "model"), "--data", str(files / "data.npz"), "--out", str(tmp_path), "--count", "3")
    shown = called("radius", *where, "--methods", "ibp,crown", "--precision", "0.3", "--most", "0.4")
    assert "median" in shown.stdout
    assert "certified accuracy" in shown.stdout
    data = json.loads(
        called("radius", *where, "--methods", "crown", "--precision", "0.3", "--most", "0.4", "--json").stdout
    )
    radii = [row["certified"] for row in data["radii"]]
    assert data["median"]["crown"] in radii
    curve = [rate for _, rate in data["curve"]["crown"]]
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] == 0  # the curve ends where nothing is certified


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--eps", "a"), "--eps"),
        (("--eps", "-1"), "ε is"),
        (("--eps", ""), "at least one"),
        (("--eps", "0.1", "--methods", "magic"), "magic"),
        (("--eps", "0.1", "--first", "9"), "5 inputs"),
        (("--eps", "0.1", "--clip", "0"), "two numbers"),
        (("--eps", "0.1", "--clip", "0.9,1"), "outside clip"),
        (("--eps", "0.1", "--data", "nothing.npz"), "nothing.npz"),
        (("--eps", "0.1", "--data", "number"), "digits"),
    ],
)
def test_bad_input_is_one_line(files: Path, tmp_path: Path, more: tuple[str, ...], text: str) -> None:
    found = certify(files, tmp_path, *more, code=2)
    assert text in found.stderr
    assert "Traceback" not in found.output


def test_a_model_that_is_none(tmp_path: Path) -> None:
    found = called("radius", str(tmp_path / "model.onnx"), code=2)
    assert "ONNX" in found.stderr
