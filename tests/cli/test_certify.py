"""`vertex certify` and `vertex radius` as they are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.runs.made import inputs, network
from vertex_softmax.cli.main import app
from vertex_softmax.runs.demo.training import save
from vertex_softmax.runs.run import read


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


def test_a_page_of_an_earlier_run_is_said_to_be_one(files: Path, tmp_path: Path) -> None:
    how = ("--eps", "0.05", "--methods", "ibp", "--count", "1")
    assert "earlier run" not in certify(files, tmp_path, *how).stderr
    called("report", str(tmp_path))
    assert "report.html is of an earlier run" in " ".join(certify(files, tmp_path, *how).stderr.split())


def test_inputs_of_another_scale_are_remarked(files: Path, tmp_path: Path) -> None:
    some = inputs()
    np.savez(tmp_path / "wrong.npz", inputs=some.x.numpy()[:1], labels=1 - some.labels.numpy()[:1].clip(0, 1))
    where = (str(files / "model"), "--data", str(tmp_path / "wrong.npz"), "--out", str(tmp_path), "--methods", "ibp")
    for more in (("certify", *where, "--eps", "1/255"), ("radius", *where)):
        shown = " ".join(called(*more).stdout.split())
        assert "No input is classified correctly: compare the scale" in shown
    assert "No input" not in certify(files, tmp_path / "right", "--eps", "1/255", "--methods", "ibp").stdout


def test_an_interruption_says_what_is_kept(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vertex_softmax.runs.evaluate.evaluate", interrupted)
    said = certify(files, tmp_path, "--eps", "0.05", code=130).stderr
    assert "interrupted: what is finished is kept in" in said
    assert "goes on from there" in said


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
        (("--eps", "1/0"), "such as 0.01,0.02 or 2/255"),
        (("--eps", "-1"), "ε is"),
        (("--eps", ""), "at least one"),
        (("--eps", "0.1", "--methods", "magic"), "magic"),
        (
            ("--eps", "0.1", "--first", "9"),
            "5 inputs, numbered from 0; --first 9 selects none of them: give --first 0 to 4\n",
        ),
        (("--eps", "0.1", "--first", "9", "--count", "2"), "--first 9 and --count 2 select none"),
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


def residual(path: Path, first: str, second: str) -> None:
    """y = first − second with a bias for class 0, where h = x and r = relu(h)."""
    onnx = pytest.importorskip("onnx")
    numbers = {"w": np.eye(2, 3, dtype=np.float32), "b": np.zeros(3, np.float32), "c": np.array([2, 0, 0], np.float32)}
    nodes = [
        onnx.helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        onnx.helper.make_node("Relu", ["h"], ["r"]),
        onnx.helper.make_node("Sub", [first, second], ["d"]),
        onnx.helper.make_node("Add", ["d", "c"], ["y"]),
    ]
    ends = [onnx.helper.make_tensor_value_info(name, 1, [1, n]) for name, n in (("x", 2), ("y", 3))]
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in numbers.items()]
    graph = onnx.helper.make_graph(nodes, "residual", ends[:1], ends[1:], constants)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("command", ["certify", "radius"])
def test_another_network_in_the_same_folder_is_not_answered_from_the_journal(tmp_path: Path, command: str) -> None:
    """relu(h) − h and h − relu(h) have the same ops, shapes and numbers; only their edges differ."""
    np.savez(tmp_path / "data.npz", inputs=np.array([[-1.0, -2.0]]), labels=np.array([0]))
    model = tmp_path / "model.onnx"
    said = ("--data", str(tmp_path / "data.npz"), "--methods", "crown", "--json")
    said += ("--eps", "0.9") if command == "certify" else ("--most", "0.9")
    found = {}
    for out in ("one", "other", "both", "both again"):  # "both" sees one network, then the other; then both again
        for edges in (("r", "h"), ("h", "r")):
            if out.startswith("both") or (out == "one") == (edges[0] == "r"):
                residual(model, *edges)
                place = tmp_path / out.split()[0]
                found[out, edges[0]] = json.loads(called(command, str(model), *said, "--out", str(place)).stdout)

    def told(data: Any) -> object:
        rows = [(row["certified"], row["mean_bound"]) for row in data.get("rows", ())]
        return rows, [(r["certified"], r["attacked"]) for r in data.get("radii", ())]

    assert told(found["one", "r"]) != told(found["other", "h"])
    for out in ("both", "both again"):
        assert told(found[out, "r"]) == told(found["one", "r"])
        assert told(found[out, "h"]) == told(found["other", "h"])


def test_edited_inputs_are_not_answered_from_the_journal(tmp_path: Path) -> None:
    """Another label, another number, another clip, another order: each is another question."""
    model = tmp_path / "model.onnx"
    residual(model, "h", "r")  # which is read in no time, ten times
    x, labels = np.random.default_rng(0).uniform(size=(5, 2)), np.array([0, 0, 1, 0, 2])
    moved, swapped = x.copy(), x[[1, 0, *range(2, len(x))]]
    moved[0, 0] = np.nextafter(moved[0, 0], 2)
    given = [(x, labels, "0,1"), (moved, labels, "0,1"), (x, (labels + 1) % 3, "0,1"), (x, labels, "-1,2")]
    given.append((swapped, labels, "0,1"))

    def lines() -> int:
        place = tmp_path / "out" / "journal.jsonl"
        return len(place.read_text().splitlines()) if place.exists() else 0

    def asked(inputs: Any, labels: Any, clip: str) -> int:
        """How many lines the journal got."""
        before = lines()
        np.savez(tmp_path / "data.npz", inputs=inputs, labels=labels)
        where = (str(model), "--data", str(tmp_path / "data.npz"), "--clip", clip)
        called(
            "certify", *where, "--out", str(tmp_path / "out"), "--eps", "0.05", "--methods", "ibp", "--verdicts-only"
        )
        return lines() - before

    assert [asked(*each) > 0 for each in given] == [True] * len(given)
    assert [asked(*each) for each in given] == [0] * len(given)
