"""Norms, tokens, choices of words and Python models on the command line: answers, journals and bad combinations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import vertex_softmax as vx
from tests.runs.made import inputs, network
from tests.runs.words import IDS, words, written
from tests.search.small import network as small
from tests.slowly import few
from vertex_softmax.cli import verify
from vertex_softmax.cli.main import app
from vertex_softmax.runs.demo.training import save
from vertex_softmax.runs.run import read
from vertex_softmax.sets import LpBall, TokenBall


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = written(tmp_path_factory.mktemp("files"))
    save(network(), found / "model", {})
    some = inputs(3)
    np.savez(found / "data.npz", inputs=some.x.numpy(), labels=some.labels.numpy())
    np.savez(found / "four.npz", inputs=np.full((2, 1, 2, 2), 0.5), labels=np.array([0, 1]))
    (found / "model.onnx").write_bytes(small((np.eye(2), np.zeros(2))))
    return found


@pytest.fixture(autouse=True)
def _just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of `vertex verify` counts from the start of the process, and this one runs all tests."""
    monkeypatch.setattr(verify, "_since_start", lambda: 0.0)


def called(*arguments: object, code: int = 0) -> Any:
    found = CliRunner().invoke(app, [str(each) for each in arguments])
    assert found.exit_code == code, (found.output, found.exception)
    assert "Traceback" not in found.output
    return found


def lines(out: Path) -> int:
    place = out / "journal.jsonl"
    return place.read_text().count("\n") if place.exists() else 0


def python(place: Path, name: str = "net", weights: str = "weights.safetensors") -> list[object]:
    return [f"{place / 'code.py'}:{name}", "--weights", place / weights]


@pytest.mark.parametrize("norm", ["1", "2", "inf"])
def test_certify_in_a_norm_is_certify_of_that_ball(place: Path, tmp_path: Path, norm: str) -> None:
    said = ("certify", place / "model", "--data", place / "data.npz", "--clip", "0,1", "--out", tmp_path)
    shown = called(*said, "--eps", "0.1", "--methods", "crown", "--norm", norm)
    run, some = read(tmp_path), inputs(3)
    expected = vx.certify(network(), LpBall(some.x, 0.1, float(norm), clip=(0, 1)), some.labels, "crown", attack=None)
    assert [a.bound for a in run.answers] == pytest.approx(expected.worst.tolist(), rel=1e-12)
    assert [a.verdict for a in run.answers] == [str(v) for v in expected.verdicts]
    assert run.data.norm == norm
    sign = {"1": "ℓ1", "2": "ℓ2", "inf": "ℓ∞"}[norm]
    assert run.settings["norm"] == sign
    assert (sign in shown.stdout) == (norm != "inf")
    called("report", tmp_path)
    assert f"<dd>{sign}</dd>" in (tmp_path / "report.html").read_text()
    for attack in run.attacks:
        bound = next(a.bound for a in run.answers if a.input == attack.input)
        assert bound is not None
        assert bound <= attack.margin + 1e-9


def test_radii_in_other_norms(place: Path, tmp_path: Path) -> None:
    found = {}
    for norm in ("inf", "2", "1"):
        said = ("radius", place / "model", "--data", place / "data.npz", "--methods", "crown", "--precision", "0.9")
        told = json.loads(called(*said, "--norm", norm, "--out", tmp_path, "--json").stdout)
        found[norm] = [row["certified"] for row in told["radii"]]
        before = lines(tmp_path)
        again = json.loads(called(*said, "--norm", norm, "--out", tmp_path, "--json").stdout)
        assert lines(tmp_path) == before
        assert [row["certified"] for row in again["radii"]] == found[norm]
        assert f"{float(norm):g}" == read(tmp_path).data.norm
        some = inputs(3)
        for i, eps in enumerate(found[norm]):
            if eps:
                ball = LpBall(some.x[i : i + 1], eps, float(norm))
                assert bool(vx.certify(network(), ball, some.labels[i : i + 1], "crown").certified.all())
    assert all(a <= 1.91 * b for a, b in zip(found["inf"], found["2"], strict=True))
    assert all(a <= 1.91 * b for a, b in zip(found["2"], found["1"], strict=True))
    assert found["inf"] != found["2"]


def test_tokens_are_balls_around_embeddings(place: Path, tmp_path: Path) -> None:
    given = ("--data", place / "data.json", "--tokens", "1,-1", "--eps", "0.02,0.3", "--norm", "2")
    called("certify", *python(place), *given, "--methods", "crown", "--out", tmp_path)
    run, labels = read(tmp_path), json.loads((place / "data.json").read_text())["labels"]
    for eps in run.eps:
        ball = TokenBall.of(words(), IDS, eps, [1, 3], p=2)
        expected = vx.certify(words(), ball, labels, "crown", attack=None)
        mine = [a for a in run.answers if a.eps == eps]
        assert [a.bound for a in mine] == pytest.approx(expected.worst.tolist(), rel=1e-12)
    assert [x.ids for x in run.inputs] == [tuple(row) for row in IDS.tolist()]
    assert run.data.tokens == "tokens 1, 3"
    assert "moving tokens 1, 3" in run.title
    called("report", tmp_path)


@pytest.mark.parametrize(
    ("command", "every"), few([("certify", False), ("certify", True), ("radius", True)], lambda _, every: not every)
)
def test_other_norms_weights_tokens_and_functions_are_asked_anew(
    place: Path, tmp_path: Path, command: str, every: bool
) -> None:
    eps = ("--eps", "0.05", "--verdicts-only") if command == "certify" else ("--precision", "1", "--most", "0.5")

    def asked(*model: object, tokens: str = "1", norm: str = "2") -> int:
        before = lines(tmp_path)
        said = ("--data", place / "data.json", "--tokens", tokens, "--norm", norm, "--methods", "ibp", "--count", "2")
        called(command, *model, *said, *eps, "--out", tmp_path)
        return lines(tmp_path) - before

    net = python(place)
    ways: list[tuple[list[object], dict[str, str]]] = [
        (net, {}),
        (net, {"norm": "1"}),
        (net, {"norm": "inf"}),
        (net, {"tokens": "2"}),
        (net, {"tokens": "1,2"}),
        (net, {"tokens": "all"}),
        (python(place, weights="moved.safetensors"), {}),
        (python(place, "other"), {}),
        (python(place, "double"), {}),
    ]
    if command == "certify" and not every:
        ways = ways[::3] + ways[-2:]
    assert [asked(*model, **more) > 0 for model, more in ways] == [True] * len(ways)
    assert [asked(*model, **more) for model, more in ways] == [0] * len(ways)


def test_weights_that_only_another_sentence_uses_are_another_question(place: Path, tmp_path: Path) -> None:
    """`moved` differs in the row of a word of the first sentence; the second sentence has the same answer."""
    both = [load_file(place / name)["words.weight"] for name in ("weights.safetensors", "moved.safetensors")]
    assert (both[0] != both[1]).any(1).nonzero().flatten().tolist() == [14]
    said = ("--data", place / "data.json", "--tokens", "0", "--eps", "0.1", "--methods", "ibp", "--first", "1")
    for weights in ("weights.safetensors", "moved.safetensors"):
        before = lines(tmp_path)
        called("certify", *python(place, weights=weights), *said, "--out", tmp_path)
        assert lines(tmp_path) > before


def test_choices_are_decided(place: Path, tmp_path: Path) -> None:
    said = ("certify", *python(place), "--choices", place / "choices.json", "--out", tmp_path)
    shown = called(*said)
    assert "bab:" in shown.stdout
    run = read(tmp_path)
    assert run.methods == ("bab",)
    assert len(run.sentences) == 3
    before = lines(tmp_path)
    told = json.loads(called(*said, "--json", "--first", "1").stdout)
    assert lines(tmp_path) == before
    assert [row["number"] for row in told["rows"]] == [1, 2]
    assert all((row["counterexample"] is None) == (row["verdict"] != "falsified") for row in told["rows"])
    assert sum(told["verdicts"]["bab"].values()) == 2
    called("report", tmp_path)
    called(*said, "--methods", "crown,bab")
    assert lines(tmp_path) == before + 3


def test_a_python_model_that_takes_numbers(place: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = f"{place / 'code.py'}:image"
    said = ("--data", place / "four.npz", "--eps", "0.1", "--methods", "crown", "--out", tmp_path, "--norm", "2")
    called("certify", model, *said)
    assert len(read(tmp_path).answers) == 2


BAD: list[tuple[list[str], str]] = [
    (["model", "--eps", "0.1", "--norm", "3"], "--norm is '3'"),
    (["model"], "--eps is missing"),
    (["model", "--eps", "0.1", "--tokens", "1"], "which are images"),
    (["code", "--eps", "0.1", "--tokens", "1", "--data", "digits"], "which are images"),
    (["model", "--eps", "0.1", "--tokens", "1", "--data", "data.json"], "needs a model that takes token ids"),
    (["model.onnx", "--eps", "0.1", "--weights", "weights.safetensors", "--data", "data.npz"], "weights of its own"),
    (["code", "--eps", "0.1", "--tokens", "1", "--data", "data.npz"], "no array 'ids'"),
    (["code", "--eps", "0.1", "--tokens", "4", "--data", "data.json"], "position 4"),
    (["code", "--eps", "0.1", "--tokens", "1", "--data", "data.json", "--clip", "0,1"], "--clip does not go"),
    (["code", "--eps", "0.1", "--tokens", "1", "--data", "far.json"], "input 0"),
    (["code", "--eps", "0.1", "--tokens", "1", "--data", "label.json"], "label 5"),
    (["code", "--eps", "0.1", "--data", "ids.npz"], "--tokens"),
    (["code", "--eps", "0.1", "--data", "data.npz"], ""),
    (["code", "--choices", "choices.json", "--eps", "0.1"], "--eps does not go with --choices"),
    (["code", "--choices", "choices.json", "--norm", "2"], "--norm does not go"),
    (["code", "--choices", "choices.json", "--tokens", "2"], "--tokens does not go"),
    (["code", "--choices", "choices.json", "--data", "data.json"], "--data does not go"),
    (["code", "--choices", "choices.json", "--clip", "0,1"], "--clip does not go"),
    (["code", "--choices", "choices.json", "--verdicts-only"], "--verdicts-only does not go"),
    (["code", "--choices", "choices.json", "--methods", "magic"], "magic"),
    (["code", "--choices", "choices.json", "--methods", ","], "nothing to do"),
    (["code", "--choices", "choices.json", "--first", "7"], "3 inputs"),
    (["code", "--choices", "itself.json"], "the word itself"),
    (["code", "--choices", "empty.json"], "at least one id"),
    (["code", "--choices", "vocabulary.json"], "sentence 0"),
    (["model.onnx", "--choices", "choices.json"], "--choices needs a model"),
    (["number", "--choices", "choices.json"], "returned a int"),
    (["absent", "--choices", "choices.json"], "has no 'absent'"),
    (["image", "--choices", "choices.json"], "input 0"),
]


@pytest.mark.parametrize(("given", "text"), BAD, ids=[" ".join(each) for each, _ in BAD])
def test_what_does_not_go_together(place: Path, tmp_path: Path, given: list[str], text: str) -> None:
    (place / "far.json").write_text(json.dumps({"ids": [[1, 2, 30]], "labels": [0]}))
    (place / "label.json").write_text(json.dumps({"ids": [[1, 2, 3]], "labels": [5]}))
    np.savez(place / "ids.npz", ids=IDS.numpy(), labels=np.zeros(3, int))
    for name, choices in (("itself", {"1": [3]}), ("empty", {"1": []}), ("vocabulary", {"1": [2, 30]})):
        (place / f"{name}.json").write_text(json.dumps([{"ids": [1, 2], "label": 0, "choices": choices}]))
    model, *rest = given
    functions = {"code": python(place), "number": python(place, "number")[:1], "absent": python(place, "absent")[:1]}
    functions["image"] = python(place, "image")[:1]
    first = functions.get(model, [place / model])
    more = [place / word if word.endswith((".json", ".npz", ".safetensors")) else word for word in rest]
    found = called("certify", *first, *more, "--out", tmp_path, code=2)
    assert text in " ".join(found.stderr.split())
    assert not (tmp_path / "run.json").exists()


PROPERTY = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const X_2 Real) (declare-const X_3 Real)
(declare-const Y_0 Real) (declare-const Y_1 Real) (declare-const Y_2 Real)
"""


@pytest.mark.parametrize(("eps", "code", "status"), [(1e-3, 0, "unsat"), (50.0, 10, "sat")])
def test_verify_takes_a_python_model(place: Path, tmp_path: Path, eps: float, code: int, status: str) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\nfrom torch import nn\n\ndef f():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))\n"
    )
    namespace: dict[str, Any] = {}
    exec((tmp_path / "m.py").read_text(), namespace)  # noqa: S102
    model = namespace["f"]()
    y = model(torch.full((1, 1, 2, 2), 0.5))[0]
    best, other = y.argsort(descending=True)[:2].tolist()
    ends = [f"(assert (>= X_{i} {0.5 - eps})) (assert (<= X_{i} {0.5 + eps}))" for i in range(4)]
    (tmp_path / "p.vnnlib").write_text(PROPERTY + "\n".join([*ends, f"(assert (>= Y_{other} Y_{best}))"]))
    said = ("verify", f"{tmp_path / 'm.py'}:f", tmp_path / "p.vnnlib", "--json", "-", "--timeout", "60")
    told = json.loads(called(*said, "--shape", "1,2,2", code=code).stdout)
    assert told["status"] == status
    if status == "sat":
        x = torch.tensor(told["counterexample"]["x"]).reshape(1, 1, 2, 2)
        y = model(x)[0]
        assert y[other] >= y[best]
        assert bool(((x - 0.5).abs() <= eps).all())
    assert json.loads(called(*said, code=code).stdout)["status"] == status  # without a shape: a row of numbers
    assert len(told["model_sha256"]) == 64
    for more, text in ((("--shape", "2,3"), "6"), (("--certificate", tmp_path / "c"), "--certificate is for ONNX")):
        assert text in called(*said, *more, code=2).output
    (tmp_path / "rows.py").write_text("from torch import nn\n\ndef f():\n    return nn.Conv2d(1, 3, 2)\n")
    unshaped = called("verify", f"{tmp_path / 'rows.py'}:f", tmp_path / "p.vnnlib", code=2)
    assert "an input has 4 numbers: give its shape, without the batch, as in --shape 1,28,28" in unshaped.output
    assert (
        "Python models" in called("verify", place / "model.onnx", tmp_path / "p.vnnlib", "--shape", "4", code=2).stderr
    )


def test_the_help_says_that_code_runs() -> None:
    for command in ("certify", "radius", "verify"):
        text = " ".join(called(command, "--help").stdout.replace("│", " ").split())
        assert "runs its code" in text


def test_math_is_in_the_norms() -> None:
    from vertex_softmax.cli import values

    assert [values.norm("--norm", text) for text in (None, "inf", "2", "1")] == [math.inf, math.inf, 2.0, 1.0]
    assert values.positions("--tokens", "all") is None
    assert values.positions("--tokens", "3,1,3,-1") == (3, 1, -1)


def test_each_word_has_a_radius_and_a_name(place: Path, tmp_path: Path) -> None:
    texts = {word: i for i, word in enumerate(["[PAD]", *(f"w{i}" for i in range(1, 30))])}
    (tmp_path / "vocab.json").write_text(json.dumps(texts))
    asked = [*python(place), "--data", place / "data.json", "--count", 1, "--methods", "crown", "--precision", "0.5"]
    named = ["--vocabulary", tmp_path / "vocab.json", "--classes", "no, yes"]
    shown = called("radius", *asked, "--tokens", "0,2", "--each", *named, "--out", tmp_path / "out")
    run = read(tmp_path / "out")
    assert [r.part for r in run.part_radii] == [0, 1]
    assert run.parts is not None
    assert run.parts.places == (0, 2)
    assert run.words["14"] == "w14"
    assert run.data.classes == ("no", "yes")
    assert "w3 (0)" in shown.stdout or "w15 (2)" in shown.stdout
    told = json.loads(called("radius", *asked, "--tokens", "0,2", "--each", "--json", "--out", tmp_path / "out").stdout)
    assert [(r["part"], r["certified"]) for r in told["radii"]] == [
        (place, r.certified) for place, r in zip((0, 2), run.part_radii, strict=True)
    ]
    called("report", tmp_path / "out")
    assert "Word by word" in (tmp_path / "out" / "report.html").read_text()


def test_choices_are_shown_as_words(place: Path, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("".join(f"<{i}>\n" for i in range(30)))
    more = ["--vocabulary", tmp_path / "vocab.txt", "--classes", "no,yes", "--out", tmp_path / "out"]
    called("certify", *python(place), "--choices", place / "choices.json", *more)
    run = read(tmp_path / "out")
    assert run.words["21"] == "<21>"  # of a choice, too
    assert run.data.classes == ("no", "yes")
    first = run.sentences[0]
    assert first.choices == {"1": (14, 7, 21), "2": (15, 8)}
    assert first.alone["1"][0] == pytest.approx(first.clean, rel=1e-9)
    assert first.evaluated is not None
    assert first.evaluated > 0
    assert {rows.input for rows in run.attention} == {0, 1, 2}


def test_each_patch_has_a_radius(place: Path, tmp_path: Path) -> None:
    asked = [place / "model", "--data", place / "data.npz", "--clip", "0,1", "--count", 1, "--methods", "crown"]
    shown = called("radius", *asked, "--precision", "0.5", "--patches", "2x4", "--out", tmp_path)
    run = read(tmp_path)
    assert run.parts is not None
    assert run.parts.grid == (2, 1)
    assert len(run.part_radii) == 2
    assert "row 1" in shown.stdout
    called("report", tmp_path)
    assert "Patch by patch" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["radius", "MODEL", "--each"], "give --tokens too"),
        (["radius", "MODEL", "--patches", "4"], "4x4"),
        (["radius", "MODEL", "--patches", "0x4"], "whole number from 1"),
        (["radius", "MODEL", "--patches", "9" * 5000 + "x4"], "4x4"),
        (["radius", "MODEL", "--patches", "3x3"], "do not divide"),
        (["radius", "CODE", "--tokens", "1", "--patches", "2x2"], "does not go with"),
        (["radius", "MODEL", "--vocabulary", "vocab.txt"], "--vocabulary is for sentences"),
        (["radius", "CODE", "--tokens", "1", "--vocabulary", "vocab.doc"], "give a file .txt"),
        (["certify", "CODE", "--choices", "CHOICES", "--vocabulary", "none.txt"], "none.txt"),
    ],
)
def test_bad_parts_and_vocabularies(place: Path, tmp_path: Path, arguments: list[str], text: str) -> None:
    known = {
        "MODEL": [place / "model", "--data", place / "data.npz", "--clip", "0,1"],
        "CHOICES": [place / "choices.json"],
    }
    known["CODE"] = [*python(place), *(["--data", place / "data.json"] if arguments[0] == "radius" else [])]
    given = [part for each in arguments for part in known.get(each, [each])]
    assert text in called(*given, "--out", tmp_path, code=2).stderr
