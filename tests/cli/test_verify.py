"""`vertex verify` as its users meet it: the competition's words, exit codes, files, and what it refuses."""

from __future__ import annotations

import functools
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from tests.forks import Forked, vertex
from tests.search.small import network, run
from vertex_softmax.cli import verify as cli_verify
from vertex_softmax.cli.main import app
from vertex_softmax.search import answers

RELU = network(
    (np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([0.0, 0.5])), "Relu", (np.array([[1.0, 1.0]]), np.array([0.25]))
)
"""y = relu(x0 + x1) + relu(x0 − x1 + ½) + ¼: ¼ at the least over [−1, 1]², at x = (−1, 0) for one."""
BOX = "".join(f"(declare-const X_{i} Real)\n" for i in range(2)) + "(declare-const Y_0 Real)\n"
BOX += "".join(f"(assert (>= X_{i} -1.0))\n(assert (<= X_{i} 1.0))\n" for i in range(2))
HOLDS = BOX + "(assert (<= Y_0 0.2))\n"
BROKEN = BOX + "(assert (<= Y_0 0.3))\n"


@pytest.fixture(autouse=True)
def _just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts from the start of the process, and this one runs all tests; the first attack is short."""
    monkeypatch.setattr(cli_verify, "_since_start", lambda: 0.0)
    monkeypatch.setattr(answers, "Budget", functools.partial(answers.Budget, first=1e-3))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(RELU)
    (tmp_path / "holds.vnnlib").write_text(HOLDS)
    (tmp_path / "broken.vnnlib").write_text(BROKEN)
    return tmp_path


def verify(folder: Path, model: str, spec: str, *options: str):
    return CliRunner().invoke(app, ["verify", str(folder / model), str(folder / spec), "--timeout", "15", *options])


def test_a_property_that_holds(files: Path) -> None:
    found = verify(files, "model.onnx", "holds.vnnlib", "--json", str(files / "a.json"))
    assert (found.exit_code, found.stdout) == (0, "unsat\n")
    assert "excluded over its whole box" in found.stderr
    answer = json.loads((files / "a.json").read_text())
    assert answer["status"] == "unsat"
    assert answer["counterexample"] is None
    assert answer["bounds"][0][0] > 0
    assert answer["version"]
    assert re.fullmatch("[0-9a-f]{64}", answer["model_sha256"])
    assert answer["rates"] == {}  # narrowing is enough, and nothing is split
    assert answer["seconds"]["total"] >= answer["seconds"]["loading"]


def test_a_property_that_does_not_hold_comes_with_a_counterexample(files: Path) -> None:
    path = files / "ce.txt"
    found = verify(files, "model.onnx", "broken.vnnlib", "--counterexample", str(path), "--json", str(files / "a.json"))
    assert found.exit_code == 10
    first, rest = found.stdout.split("\n", 1)
    assert first == "sat"
    assert path.read_text() == rest
    numbers = dict(re.findall(r"\((\w_\d+) ([-+.e\d]+)\)", rest))
    x = np.array([float(numbers[f"X_{i}"]) for i in range(2)], np.float32)
    assert np.all(np.abs(x.astype(np.float64)) <= 1)
    assert float(run(RELU, x)[0, 0]) == np.float32(numbers["Y_0"])
    assert float(numbers["Y_0"]) <= 0.3
    assert json.loads((files / "a.json").read_text())["counterexample"]["x"] == x.tolist()


def test_no_counterexample_file_for_what_holds(files: Path) -> None:
    assert verify(files, "model.onnx", "holds.vnnlib", "--counterexample", str(files / "ce.txt")).exit_code == 0
    assert not (files / "ce.txt").exists()


def test_gzip_and_every_method(files: Path) -> None:
    (files / "model.onnx.gz").write_bytes(gzip.compress(RELU))
    (files / "holds.vnnlib.gz").write_bytes(gzip.compress(HOLDS.encode()))
    for method in ("crown", "joint", "bab", "ibp", "alpha-crown", "vertex", "hybrid"):
        found = verify(files, "model.onnx.gz", "holds.vnnlib.gz", "--method", method)
        assert found.stdout in ("unsat\n", "unknown\n"), method
        assert found.exit_code == cli_verify.CODES[found.stdout.strip()]
    found = verify(files, "model.onnx", "holds.vnnlib", "--method", "attack")
    assert (found.stdout, found.exit_code) == ("unknown\n", 3)


def unsupported() -> bytes:
    node = helper.make_node("Det", ["x"], ["y"], name="determinant")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 2, 2]), ("y", [1]))]
    made = helper.make_model(
        helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    )
    return made.SerializeToString()


WRONG = {
    "no model": ({"model.onnx": None}, "is not a file"),
    "no property": ({"holds.vnnlib": None}, "not a file"),
    "truncated model": ({"model.onnx": RELU[: len(RELU) // 2]}, "not an ONNX file|damaged|not a valid"),
    "empty model": ({"model.onnx": b""}, "is empty"),
    "model is text": ({"model.onnx": b"hello"}, "ONNX"),
    "unsupported operator": ({"model.onnx": unsupported()}, "Det.*not supported.*determinant"),
    "empty property": ({"holds.vnnlib": b""}, "vnnlib"),
    "contradictory box": (
        {"holds.vnnlib": HOLDS.replace(">= X_0 -1.0", ">= X_0 2.0").encode()},
        "line|empty|contradict|no input",
    ),
    "no output asked": ({"holds.vnnlib": BOX.encode()}, "output"),
    "NaN bound": ({"holds.vnnlib": HOLDS.replace("-1.0", "NaN").encode()}, "line 4.*NaN"),
    "infinite bound": ({"holds.vnnlib": HOLDS.replace("-1.0", "-inf").encode()}, "line 4"),
    "unbounded input": ({"holds.vnnlib": HOLDS.replace("(assert (<= X_1 1.0))\n", "").encode()}, "X_1"),
    "fewer inputs": ({"holds.vnnlib": HOLDS.replace("X_1", "X_0").encode()}, "X_0|inputs"),
    "more outputs": (
        {"holds.vnnlib": HOLDS.replace("Y_0 Real", "Y_0 Real)\n(declare-const Y_1 Real").encode()},
        "2 outputs|outputs",
    ),
    "half an s-expression": ({"holds.vnnlib": HOLDS[:-3].encode()}, "line|parenthes|end"),
    "not text": ({"holds.vnnlib": b"\xff\xfe\x00\x01"}, "UTF-8|text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_an_error_with_its_reason(files: Path, name: str) -> None:
    changes, text = WRONG[name]
    for path, content in changes.items():
        (files / path).unlink()
        if content is not None:
            (files / path).write_bytes(content)
    found = verify(files, "model.onnx", "holds.vnnlib", "--json", str(files / "a.json"))
    assert found.exit_code == 2, found.output
    assert found.stdout == "error\n"
    assert re.search(text, found.stderr.replace("\n", " "), re.DOTALL | re.IGNORECASE), found.stderr
    assert "Traceback" not in found.output
    assert not (files / "a.json").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--timeout", "0"), "timeout"),
        (("--timeout", "nan"), "timeout"),
        (("--timeout", "inf"), "timeout"),
        (("--timeout", "1e10"), "timeout"),
        (("--seed", "-1"), "seed"),
        (("--seed", str(2**64)), "seed"),
        (("--threads", "1000000000"), "threads"),
        (("--threads", "-1"), "threads"),
        (("--memory", "inf"), "memory"),
        (("--memory", "nan"), "memory"),
        (("--memory", "1e30"), "memory"),
        (("--counterexample", "-"), "for --json only"),
        (("--certificate", "-"), "for --json only"),
        (("--method", "magic"), "magic.*joint"),
        (("--device", "tpu"), "tpu"),
        (("--threads", "0"), "threads"),
        (("--memory", "-1"), "memory"),
        (("--json", "/proc/nothing/here.json"), "cannot be written"),
        (("--json", "."), "cannot be written"),
        (("--counterexample", "/nowhere/ce.txt"), "cannot be written"),
    ],
)
def test_bad_options_are_an_error_before_anything_runs(files: Path, options: tuple[str, ...], text: str) -> None:
    found = verify(files, "model.onnx", "holds.vnnlib", *options)
    assert found.exit_code == 2
    assert found.stdout == "error\n"
    assert re.search(text, found.stderr.replace("\n", " "))


def test_external_data_outside_the_folder_is_refused(files: Path) -> None:
    import onnx

    model = onnx.load_from_string(RELU)
    secret = files / "secret.bin"
    secret.write_bytes(np.zeros(4, np.float32).tobytes())
    inner = files / "inner"
    inner.mkdir()
    for location in ("../secret.bin", str(secret), "link.bin"):
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=location)
        (inner / "model.onnx").write_bytes(model.SerializeToString())
        if location == "link.bin":
            (inner / location).symlink_to(secret)
        (inner / "holds.vnnlib").write_text(HOLDS)
        found = verify(inner, "model.onnx", "holds.vnnlib")
        assert (found.exit_code, found.stdout) == (2, "error\n")
        assert "not a file inside the model's folder" in found.stderr.replace("\n", " ")


def test_a_property_of_300_000_lines_is_read(tmp_path: Path) -> None:
    """It does not fit the model, and that is said; the lines are all read before."""
    (tmp_path / "model.onnx").write_bytes(RELU)
    count = 100_000
    lines = [f"(declare-const X_{i} Real)" for i in range(count)] + ["(declare-const Y_0 Real)"]
    lines += [f"(assert (>= X_{i} 0))\n(assert (<= X_{i} 1))\n" for i in range(count)] + ["(assert (<= Y_0 0))"]
    (tmp_path / "long.vnnlib").write_text("\n".join(lines))
    found = verify(tmp_path, "model.onnx", "long.vnnlib", "--timeout", "600")
    assert (found.exit_code, found.stdout) == (2, "error\n")
    assert "100000" in found.stderr.replace(",", "").replace("\n", "")


def hard(folder: Path) -> None:
    """Branch and bound has a long time to spend on this."""
    draw = np.random.default_rng(0)
    layers: list[object] = []
    for n, m in ((40, 60), (60, 60)):
        layers += [(draw.normal(size=(m, n)) / np.sqrt(n), draw.normal(size=m)), "Relu"]
    last = draw.normal(size=60)
    middle = run(network(*layers, (last[None], np.zeros(1))), np.zeros(40, np.float32))[0, 0]  # type: ignore[arg-type]
    model = network(*layers, (last[None], np.array([2.0 - middle])))  # type: ignore[arg-type]
    (folder / "hard.onnx").write_bytes(model)
    text = "".join(f"(declare-const X_{i} Real)\n" for i in range(40)) + "(declare-const Y_0 Real)\n"
    text += "".join(f"(assert (>= X_{i} -0.35))\n(assert (<= X_{i} 0.35))\n" for i in range(40))
    (folder / "hard.vnnlib").write_text(text + "(assert (<= Y_0 -6.0))\n")


def told_when_it_branches(*arguments: str) -> None:
    """The command, which leaves a file when branch and bound begins."""
    from vertex_softmax.search import cascade

    branch = cascade.branch

    def begun(*given: Any, **more: Any) -> Any:
        Path("begun").touch()
        return branch(*given, **more)

    cascade.branch = begun
    vertex(*arguments)


def start(folder: Path, *options: str) -> Forked:
    return Forked(folder, told_when_it_branches, "verify", "hard.onnx", "hard.vnnlib", *options)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_nothing_that_looks_like_an_answer(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    hard(tmp_path)
    process = start(tmp_path, "--timeout", "60", "--json", str(tmp_path / "a.json"))
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in error
    assert list(tmp_path.glob("*a.json*")) == []


def test_the_time_is_kept(tmp_path: Path) -> None:
    hard(tmp_path)
    process = start(tmp_path, "--timeout", "3", "--json", str(tmp_path / "a.json"))
    out, _ = process.communicate(timeout=100)
    assert (process.returncode, out) == (4, "timeout\n")
    answer = json.loads((tmp_path / "a.json").read_text())
    assert answer["status"] == "timeout"


def test_what_is_imported_counts(files: Path) -> None:
    """The clock here says 1.5 s once the search is imported, and 0 before: the start must be read after that."""
    code = """
import sys
from vertex_softmax.cli import main, verify
verify._since_start = lambda: 1.5 if "vertex_softmax.search.cascade" in sys.modules else 0.0
main.app(["verify", "model.onnx", "holds.vnnlib", "--timeout", "15", "--json", "-"])
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=files, capture_output=True, text=True, check=True)
    seconds = json.loads(found.stdout)["seconds"]
    assert seconds["starting"] == 1.5
    assert seconds["total"] >= 1.5


def test_the_watchdog_answers_whatever_is_under_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(cli_verify, "GRACE", 0.0)
    out = cli_verify._AnswerWriter(tmp_path / "a.json", {"model": "m"})
    with cli_verify._watchdog(0.05, out):
        limit = time.monotonic() + 10  # something long
        while not ended and time.monotonic() < limit:
            time.sleep(0.01)
    assert ended == [4]
    assert capsys.readouterr().out == "timeout\n"
    assert json.loads((tmp_path / "a.json").read_text())["status"] == "timeout"


def test_too_little_memory_is_said(files: Path) -> None:
    process = Forked(files, vertex, "verify", "model.onnx", "holds.vnnlib", "--memory", "0.01")
    out, error = process.communicate()
    assert (process.returncode, out) == (2, "error\n")
    assert re.search(r"memory is 0.01 GiB.* in use .* or more", error.replace("\n", " "))


def test_the_bounds_are_given_what_the_limit_leaves(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    monkeypatch.setattr(cli_verify, "limit_memory", limits.append)
    monkeypatch.setattr(cli_verify, "memory_left", lambda: 1 << 40)
    assert verify(files, "model.onnx", "holds.vnnlib", "--memory", "3").exit_code == 0
    assert limits == [3.0]
    monkeypatch.setattr(cli_verify, "memory_left", lambda: 1)
    found = verify(files, "model.onnx", "holds.vnnlib", "--memory", "3")
    assert (found.exit_code, found.stdout) == (3, "unknown\n")
    said = " ".join(found.stderr.split())
    for stage in ("an attack on one point", "crown on one input", "joint on one input", "bab on one input"):
        assert f"{stage} may need" in said


def test_a_certificate_that_does_not_fit_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(bytes_of: int) -> None:
        monkeypatch.setattr(cli_verify, "limit_memory", lambda _: None)
        monkeypatch.setattr(cli_verify, "memory_left", lambda: bytes_of)

    proof = files / "proof.vertex"
    left(1 << 40)
    easy = BOX + "(assert (<= Y_0 -100.0))\n"
    (files / "easy.vnnlib").write_text(easy)
    assert verify(files, "model.onnx", "easy.vnnlib", "--memory", "3", "--certificate", str(proof)).exit_code == 0
    proof.unlink()
    left(36 << 20)  # enough for intervals
    found = verify(files, "model.onnx", "easy.vnnlib", "--memory", "3", "--certificate", str(proof))
    assert (found.exit_code, found.stdout) == (3, "unknown\n")
    assert "not proved: a certificate may need" in " ".join(found.stderr.split())
    assert not proof.exists()


def test_a_limit_holds_in_a_process(files: Path) -> None:
    process = Forked(files, vertex, "verify", "model.onnx", "holds.vnnlib", "--memory", "2", "--timeout", "30")
    assert process.communicate()[0] == "unsat\n"
    assert process.returncode == 0
