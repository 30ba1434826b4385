"""The competition's scripts: what they refuse, and that a results file is whole however an instance ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.processes import gone
from tests.search.small import network
from tests.specs.second_version import assignment, in_version_2

SCRIPTS = Path(__file__).parents[1] / "competition"
NAMES = ("install_tool.sh", "prepare_instance.sh", "run_instance.sh")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("bash") is None, reason="the scripts are for bash on Linux"
)
SPEC = """(declare-const X_0 Real)
(declare-const Y_0 Real)
(assert (>= X_0 0.0))
(assert (<= X_0 1.0))
(assert (>= Y_0 0.5))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a space in its name, a model and a property that does not hold of it."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(network((np.eye(1), np.zeros(1)), "Relu"))
    (folder / "p.vnnlib").write_text(SPEC)
    return folder


def environment(place: Path, python: str | Path = sys.executable) -> dict[str, str]:
    """As empty as can be, as the competition's machines have little: the system's programs, and a home of its own."""
    (place / "home").mkdir(exist_ok=True)
    path = os.pathsep.join([str(place / "programs"), os.defpath])
    own = {"VERTEX_PYTHON": str(python), "VERTEX_STATE": str(place / "state"), "HOME": str(place / "home")}
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "VERTEX_MARGIN", "TMPDIR") if name in os.environ}
    return {**kept, **own, "PATH": path, "OMP_NUM_THREADS": "1"}


def script(name: str, place: Path, *arguments: str, python: str | Path = sys.executable) -> subprocess.CompletedProcess:
    command = ["bash", str(SCRIPTS / name), *arguments]
    return subprocess.run(
        command, cwd=place, env=environment(place, python), capture_output=True, text=True, timeout=60, check=False
    )


def tool(place: Path, body: str) -> Path:
    """An interpreter that does as it is told instead."""
    path = place / "pretended python"
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def clock(place: Path, *milliseconds: int) -> None:
    """A program `date` that says these times, one after another, and then the last of them."""
    (place / "programs").mkdir()
    times = " ".join(f"{1000000 * t}" for t in milliseconds)
    body = f"""times=({times}) file="{place}/asked the time"
n=$(cat "$file" 2>/dev/null || echo 0); echo $((n + 1)) >"$file"
last=$((${{#times[@]}} - 1)); echo "${{times[n < last ? n : last]}}"
"""
    (place / "programs" / "date").write_text(f"#!/bin/bash\n{body}")
    (place / "programs" / "date").chmod(0o755)


@pytest.mark.parametrize("name", [*NAMES, "common.sh"])
def test_the_syntax_is_bash(name: str) -> None:
    subprocess.run(["bash", "-n", str(SCRIPTS / name)], check=True)
    assert name == "common.sh" or os.access(SCRIPTS / name, os.X_OK)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arguments", [(), ("v2",), ("v2", "c", "m.onnx", "p.vnnlib", "out.txt", "9"), ("v1", "c")])
def test_another_version_or_too_few_arguments_are_refused(name: str, arguments: tuple[str, ...], place: Path) -> None:
    result = script(name, place, *arguments)
    assert result.returncode == 1
    assert result.stderr.startswith(f"{name}: ")
    assert not (place / "out.txt").exists()


@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_prepare_and_run_for_real(version: int, place: Path) -> None:
    """In both versions of VNNLIB; in the second the model is given as the competition of 2026 gives it."""
    model = "m.onnx" if version == 1 else "[('f', 'm.onnx')]"
    if version == 2:
        (place / "p.vnnlib").write_text(in_version_2(SPEC))
    prepared = script("prepare_instance.sh", place, "v1", "test", model, "p.vnnlib")
    assert prepared.returncode == 0, prepared.stderr
    assert prepared.stdout.startswith("vertex ")
    result = script("run_instance.sh", place, "v1", "test", model, "p.vnnlib", "the results.txt", "30")
    assert result.returncode == 0, result.stderr
    status, *counterexample = (place / "the results.txt").read_text().splitlines()
    assert status == "sat"
    if version == 1:
        assert [line[:5] for line in counterexample] == ["((X_0", " (Y_0"]
    else:
        found = assignment("\n".join(counterexample))
        assert {name: of[:2] for name, of in found.items()} == {"X": ("float32", [1, 1]), "Y": ("float32", [1, 1])}
        assert 0 <= found["X"][2][0] <= 1
        assert found["Y"][2][0] >= 0.5
    assert not list((place / "state").iterdir())
    there = {path.name for path in place.iterdir()}
    assert there == {"m.onnx", "p.vnnlib", "state", "home", "the results.txt"}
    assert not list((place / "home").rglob("*"))


@pytest.mark.parametrize(
    ("body", "results"),
    [
        ("echo unsat", "unsat\n"),
        ("echo unknown; exit 3", "unknown\n"),
        ("echo timeout; exit 4", "timeout\n"),
        ("echo error; exit 2", "error\n"),
        ("printf 'sat\\n((X_0 1.0)\\n (Y_0 2.0))\\n\\n'; exit 10", "sat\n((X_0 1.0)\n (Y_0 2.0))\n"),
        ("printf 'sat\\nX real [1]\\n1.0\\nY real []\\n2.0\\n'; exit 10", "sat\nX real [1]\n1.0\nY real []\n2.0\n"),
        ("echo sat; exit 10", "error\n"),
        ("echo sat", "error\n"),
        ("echo unsat; exit 10", "error\n"),
        ("echo unsat; exit 1", "error\n"),
        ("exit 0", "error\n"),
        ("echo unsat; kill -9 $$", "error\n"),
        ("kill -11 $$", "error\n"),
    ],
)
def test_only_an_answer_with_its_exit_code_is_passed_on(body: str, results: str, place: Path) -> None:
    python = tool(place, body)
    result = script("run_instance.sh", place, "v1", "c", "m.onnx", "p.vnnlib", "out.txt", "5", python=python)
    assert result.returncode == 0, result.stderr
    assert (place / "out.txt").read_text() == results


def asked(place: Path, seconds: str, model: str = "m.onnx") -> list[str]:
    """What run_instance.sh asks the tool for."""
    python = tool(place, f"printf '%s\\n' \"$@\" >{place / 'asked'!s}; echo unsat".replace(str(place), f'"{place}"'))
    script("run_instance.sh", place, "v1", "c", model, "p.vnnlib", str(place / "out.txt"), seconds, python=python)
    assert (place / "out.txt").read_text() == "unsat\n"
    return (place / "asked").read_text().split("\n")[3:-1]


def test_what_the_tool_is_asked(place: Path) -> None:
    """Less time than there is, so that it answers in time."""
    clock(place, 0)
    (place / "p.vnnlib").rename(place / "p.vnnlib.gz")
    assert asked(place, "7.5") == ["verify", "--timeout=6.000", "--device=cpu", "--", "m.onnx", "p.vnnlib.gz"]
    assert asked(place, "2")[1] == "--timeout=1.000"


def test_the_margin_can_be_chosen_and_starting_counts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(place, 10_000, 12_250)
    monkeypatch.setenv("VERTEX_MARGIN", "3.25")
    assert asked(place, "100")[1] == "--timeout=94.500"


def test_an_answer_that_comes_late_is_void(place: Path) -> None:
    """It ends in time, as a machine may be slow: two times are asked before the tool runs, one after it."""
    clock(place, 0, 100, 100, 5_000)
    python = tool(place, "echo unsat")
    script("run_instance.sh", place, "v1", "c", "m.onnx", "p.vnnlib", "out.txt", "5", python=python)
    assert (place / "out.txt").read_text() == "timeout\n"
    assert (place / "asked the time").read_text() == "4\n"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("[('f', 'm.onnx')]", "m.onnx"),
        ('[("f","m.onnx"),]', "m.onnx"),
        ("[f.onnx", "[f.onnx"),
        ("[('f', 'm.onnx')", None),
        ("[('f', 'm.onnx'), ('g', 'm.onnx')]", None),
    ],
)
def test_the_competition_names_networks(given: str, meant: str | None, place: Path) -> None:
    shutil.copy(place / "m.onnx", place / "[f.onnx")
    if meant is not None:
        assert asked(place, "9", given)[-2] == meant
        return
    for name, more in (("prepare_instance.sh", ()), ("run_instance.sh", ("out.txt", "9"))):
        result = script(name, place, "v1", "c", given, "p.vnnlib", *more)
        assert "several networks" in result.stderr
        assert result.returncode == (0 if more else 1)
    assert (place / "out.txt").read_text() == "error\n"


@pytest.mark.parametrize(
    "arguments", [("none.onnx", "p.vnnlib", "5"), ("m.onnx", "none.vnnlib", "5"), ("m.onnx", "p.vnnlib", "soon")]
)
def test_bad_input_is_an_error_in_a_whole_file(arguments: tuple[str, ...], place: Path) -> None:
    (place / "out.txt").write_text("no_result_in_file\n")
    model, spec, seconds = arguments
    result = script("run_instance.sh", place, "v1", "c", model, spec, "out.txt", seconds)
    assert result.returncode == 0
    assert (place / "out.txt").read_text() == "error\n"
    assert "run_instance.sh: " in result.stderr
    assert script("run_instance.sh", place, "v1", "c", "m.onnx", spec, "none/out.txt", seconds).returncode == 1


def test_a_tool_that_is_not_there_is_an_error(place: Path) -> None:
    python = place / "none"
    assert script("prepare_instance.sh", place, "v1", "c", "m.onnx", "p.vnnlib", python=python).returncode == 1
    script("run_instance.sh", place, "v1", "c", "m.onnx", "p.vnnlib", "out.txt", "5", python=python)
    assert (place / "out.txt").read_text() == "error\n"


def test_a_tool_that_does_not_end_is_killed(place: Path) -> None:
    python = tool(place, "trap '' TERM; while true; do sleep 1; done")
    began = time.monotonic()
    script("run_instance.sh", place, "v1", "c", "m.onnx", "p.vnnlib", "out.txt", "0.1", python=python)
    assert time.monotonic() - began < 20
    assert (place / "out.txt").read_text() == "timeout\n"


def waiting(place: Path) -> tuple[subprocess.Popen, int]:
    """run_instance.sh with a tool that runs on, and the id of that tool."""
    python = tool(place, 'echo $$ >pid.tmp; mv pid.tmp pid; if [[ "$*" == *"verify --"* ]]; then exec sleep 100; fi')
    command = ["bash", str(SCRIPTS / "run_instance.sh"), "v1", "c", "m.onnx", "p.vnnlib", "out.txt", "60"]
    running = subprocess.Popen(command, cwd=place, env=environment(place, python), stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 20
    while not (place / "pid").exists() or not list((place / "state").glob("*")):
        assert running.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.02)
    return running, int((place / "pid").read_text())


def test_whoever_ends_the_script_ends_the_tool_and_finds_a_whole_file(place: Path) -> None:
    running, pid = waiting(place)
    assert (place / "out.txt").read_text() == "error\n"
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=20) == 143
    assert (place / "out.txt").read_text() == "timeout\n"
    assert gone(pid)
    assert not list((place / "state").iterdir())


def test_prepare_ends_what_a_killed_script_left_and_nothing_else(place: Path) -> None:
    running, pid = waiting(place)
    running.kill()
    running.wait(timeout=20)
    assert (place / "out.txt").read_text() == "error\n"
    assert not gone(pid)
    bystander = subprocess.Popen(["sleep", "100"])
    try:
        (place / "state" / str(bystander.pid)).write_text("12345\n")  # the id was another process's then
        prepared = script(
            "prepare_instance.sh", place, "v1", "c", "m.onnx", "p.vnnlib", python=place / "pretended python"
        )
        assert prepared.returncode == 0, prepared.stderr
        assert "of an earlier instance still runs: ended" in prepared.stderr
        assert gone(pid)
        assert bystander.poll() is None
        assert not list((place / "state").iterdir())
    finally:
        bystander.kill()
        bystander.wait()


def test_install_makes_an_environment_with_the_constraints(tmp_path: Path) -> None:
    """In a copy, and with an interpreter that only writes down what it is asked."""
    root = tmp_path / "a checkout"
    shutil.copytree(SCRIPTS, root / "competition", ignore=shutil.ignore_patterns(".venv"))
    python = tmp_path / "python"
    body = 'printf "%s|" "$PWD" "$@" >>"$LOG"; echo >>"$LOG"\n'
    body += 'if [[ "$2" == venv ]]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; fi'
    python.write_text(f"#!/bin/bash\n{body}\n")
    python.chmod(0o755)
    own = {"VERTEX_BASE_PYTHON": str(python), "LOG": str(tmp_path / "log")}
    command = ["bash", str(root / "competition" / "install_tool.sh"), "v1"]

    def install(**more: str) -> subprocess.CompletedProcess:
        env = {**os.environ, **own, **more}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    refused = install()
    assert refused.returncode == 1
    assert "pyproject.toml is not there; run the script from a whole checkout" in refused.stderr
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).touch()
    result = install()
    assert result.returncode == 0, result.stderr
    asked = [line.split("|")[:-1] for line in (tmp_path / "log").read_text().splitlines()]
    assert asked[1] == [str(tmp_path), "-m", "venv", "--clear", str(root / "competition" / ".venv")]
    assert asked[2][0] == str(root)
    assert asked[2][-3:] == ["--constraint", "constraints.txt", ".[onnx,vnnlib]"]
    assert asked[3][1:] == ["-P", "-m", "vertex_softmax", "--version"]
    refused = install(VERTEX_BASE_PYTHON="no-such-python")
    assert refused.returncode == 1
    assert "there is no Python 3.11 or newer with venv (tried no-such-python)" in refused.stderr
