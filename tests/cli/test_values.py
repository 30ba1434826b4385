"""Every number and every path that a command takes: what nobody can mean is an error of one line, exit code 2."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tests import forks
from tests.runs.sweep.sweeps import real_benchmark
from tests.search.small import network
from vertex_softmax.cli import verify
from vertex_softmax.cli.main import app

HUGE = str(10**40)
SEED, THREADS = ("-1", HUGE, str(2**64), "1.5", "nan", ""), ("0", "-1", "1000000000", HUGE, "inf")
SECONDS, GIB = ("0", "-1", "nan", "inf", "-inf", "1e10", "1e400", ""), ("0", "-1", "nan", "inf", "1e30", "1e400")
COUNT = ("0", "-1", "nan", "1e3")
SHAPE = ("", "0", "-1", "1.5", "nan", HUGE, "2,", "1,2")
NORM, TOKENS = ("3", "0", "-2", "nan", "-inf", "2.5", ""), ("x", "", "1,", "1.5", "nan", HUGE, "0")
BAD: dict[str, dict[str, tuple[str, ...]]] = {
    "verify": {
        "--timeout": SECONDS, "--threads": THREADS, "--memory": GIB, "--seed": SEED, "--shape": SHAPE,
        "--workers": THREADS,
    },
    "check": {"--timeout": SECONDS, "--jobs": THREADS},
    "sweep": {
        "--timeout": SECONDS, "--jobs": THREADS, "--threads": THREADS, "--memory": GIB, "--limit": COUNT,
        "--seed": SEED,
    },
    "certify": {
        "--eps": ("nan", "inf", "-1", "1e400", "", ",", "x", "0.1,nan", "0x1"), "--count": COUNT,
        "--first": ("-1", HUGE, "nan"), "--clip": ("nan,1", "1,0", "0", "0,1,2", ""),
        "--threads": THREADS, "--norm": NORM, "--tokens": TOKENS,
    },
    "radius": {
        "--count": COUNT, "--first": ("-1", HUGE), "--clip": ("nan,1", "1,0"), "--threads": THREADS,
        "--norm": NORM, "--tokens": TOKENS,
        "--least": ("nan", "inf", "-1", "0"), "--most": ("nan", "inf", "-1", "0"),
        "--precision": ("nan", "inf", "-1", "0"),
        "--patches": ("", "4", "x", "0x4", "-1x2", "1x1x1", "1.5x1", f"{HUGE}x1", "1x1"),
    },
    "demo": {"--seed": SEED, "--images": (*COUNT, "361", HUGE)},
    "reproduce": {"--seeds": ("", "-1", "nan", HUGE, "3-1", "0-99999999")},
    "data fetch": {"--timeout": SECONDS},
    "bench fuzz": {
        "--minutes": ("-1", "nan", "inf", "1e400"), "--seed": SEED, "--limit": SECONDS, "--workers": THREADS,
    },
    "bench soundness": {"--seeds": (*COUNT, HUGE), "--first": SEED, "--seconds": SECONDS, "--jobs": THREADS},
    "suite verdicts": {"--seconds": SECONDS, "--jobs": THREADS},
}  # fmt: skip
"""What each command must refuse, by option."""
WORDS = {
    "--method", "--methods", "--device", "--json", "--counterexample", "--certificate", "--out", "--runner",
    "--address", "--data", "--data-dir", "--verdicts-only", "--open", "--quick", "--url", "--family", "--kinds",
    "--quiet", "--verbose", "--debug", "--help", "--weights", "--choices",
    "--vocabulary", "--classes", "--each", "--journal", "--families", "--against", "--file",
}  # fmt: skip
"""Options that take no number."""


@pytest.fixture(autouse=True)
def _just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_since_start", lambda: 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    real_benchmark(place, 1)
    np.savez(place / "inputs.npz", inputs=np.zeros((2, 2)), labels=np.zeros(2, dtype=np.int64))
    (place / "proof.vertex").write_bytes(b"nothing")
    (place / "suite").mkdir()
    (place / "suite" / "checksums.sha256").write_text("")
    (place / "code.py").write_text("from torch import nn\n\n\ndef f():\n    return nn.Linear(2, 2)\n")
    (place / "model.onnx").write_bytes(network((np.eye(2), np.zeros(2))))
    return place


def arguments(command: str, folder: Path, out: Path) -> list[str]:
    """A call that would work, or end at once, if it were not for the option."""
    model, spec, data = (str(folder / name) for name in ("model.onnx", "p0.vnnlib", "inputs.npz"))
    return {
        "verify": [model, spec],
        "check": [str(folder / "proof.vertex"), model],
        "sweep": [str(folder / "instances.csv"), "--out", str(out)],
        "certify": [model, "--data", data, "--out", str(out), "--methods", "ibp"],
        "radius": [model, "--data", data, "--out", str(out), "--methods", "ibp"],
        "demo": ["--out", str(out), "--images", "1"],
        "reproduce": ["slack", "--out", str(out)],
        "data fetch": ["mnist", "--data-dir", str(out), "--url", "file:///nowhere"],
        "bench fuzz": ["--minutes", "0", "--out", str(out)],
        "bench soundness": ["--quick", "--out", str(out)],
        "suite verdicts": [str(folder / "suite"), "--file", str(out / "verdicts.json")],
    }[command]


CASES = [
    (command, option, value)
    for command, options in BAD.items()
    for option, values in options.items()
    for value in values
]


@pytest.mark.parametrize(("command", "option", "value"), CASES, ids=[" ".join(case) for case in CASES])
def test_a_number_that_makes_no_sense(command: str, option: str, value: str, folder: Path, tmp_path: Path) -> None:
    given = [*command.split(), *arguments(command, folder, tmp_path / "out")]
    if option == "--eps":
        pass
    elif command == "certify":
        given += ["--eps", "0.1"]
    found = CliRunner().invoke(app, [*given, f"{option}={value}"])
    assert found.exit_code == 2, (found.exit_code, found.output, found.exception)
    assert "Traceback" not in found.output
    assert "internal error" not in found.output
    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert found.stdout in ("", "error\n")
    assert found.stderr.strip()
    assert not list(tmp_path.rglob("*.json"))


def commands() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, name: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for each, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*name, each))
        if not hasattr(command, "commands"):
            yield " ".join(name), command

    return walk(typer.main.get_command(app), ())


def test_every_option_is_here() -> None:
    """A new option that takes a number is tried above, or this fails."""
    for name, command in commands():
        listed = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        assert listed - WORDS == set(BAD.get(name, {})), name


ODD = ["", ".", "..", "a\0b", "\ud800", "x" * 5000, "/dev/null", "/dev/zero", "-", "~", "\n", "\x1b[31m"]
READ = ["verify {} {spec}", "verify {model} {}", "check {} {model}", "check {proof} {}", "check {proof} {model} {}",
        "sweep {}", "certify {} --eps 0.1", "certify {model} --eps 0.1 --data {}", "radius {}", "report {}",
        "certify {model} --eps 0.1 --data mnist --data-dir {}", "data list --data-dir {}", "reproduce {}",
        "data fetch {}", "data check {}", "certify {}:f --eps 0.1", "certify m:{} --eps 0.1",
        "certify {code}:f --weights {} --eps 0.1", "certify {code}:f --tokens 0 --data {} --eps 0.1",
        "certify {code}:f --choices {}", "verify {}:f {spec}", "verify {code}:f {}"]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=[repr(value)[:20] for value in ODD])
@pytest.mark.parametrize("call", READ)
def test_an_odd_name_is_no_crash(
    call: str, value: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = {"model": "model.onnx", "spec": "p0.vnnlib", "proof": "proof.vertex", "code": "code.py"}
    named = {name: str(folder / file) for name, file in named.items()}
    given = [word.format(value, **named) for word in call.split()]
    found = CliRunner().invoke(app, given)
    assert found.exit_code in ((0, 1, 2) if call.startswith(("check", "data")) else (2,)), (
        found.output,
        found.exception,
    )
    assert "Traceback" not in found.output
    assert "internal error" not in found.output
    assert found.exception is None or isinstance(found.exception, SystemExit)


@pytest.mark.parametrize("value", ["", ".", "..", "a\0b", "\ud800", "/dev/null", "/dev/zero", "-"], ids=repr)
@pytest.mark.parametrize("option", ["--json", "--counterexample", "--certificate"])
def test_an_odd_place_is_refused(
    option: str, value: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if (option, value) == ("--json", "-"):
        return
    found = CliRunner().invoke(app, ["verify", *arguments("verify", folder, tmp_path), f"{option}={value}"])
    assert found.exit_code == 2, (found.output, found.exception)
    assert found.stdout in ("", "error\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "names"), [
    ("certify", ("run.json", "journal.jsonl")), ("radius", ("run.json", "journal.jsonl")),
    ("sweep", ("journal.jsonl", "results.csv", "summary.json")),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "model", "model's link"])
def test_an_odd_file_in_the_folder_is_refused(
    command: str, names: tuple[str, ...], kind: str, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    model = folder / ("relu.onnx" if command == "sweep" else "model.onnx")
    before = model.read_bytes()
    for name in names:
        out.mkdir()
        place = out / name
        _put(kind, place, model, tmp_path / "victim")
        given = [command, *arguments(command, folder, out), *(["--eps", "0.1"] if command == "certify" else [])]
        found = CliRunner().invoke(app, given)
        assert found.exit_code == 2, (found.output, found.exception)
        assert re.search("cannot be written|that this run reads", found.stderr.replace("\n", " "))
        assert [path.name for path in out.iterdir()] == [name]
        assert model.read_bytes() == before
        assert not (tmp_path / "victim").exists()
        shutil.rmtree(out)


def _put(kind: str, place: Path, model: Path, victim: Path) -> None:
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "model":
        os.link(model, place)
    else:
        place.symlink_to(victim if kind == "link" else model)


def test_what_stdout_cannot_encode_is_shown(tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    process = forks.Forked(tmp_path, strictly, "data", "list", "--data-dir", odd)
    told, errors = process.communicate()
    assert process.returncode == 0, errors
    assert r"\udcff" in told


def strictly(*words: str) -> None:
    """The command, with the stdout of PYTHONIOENCODING=utf-8:strict."""
    sys.stdout.reconfigure(encoding="utf-8", errors="strict")  # type: ignore[union-attr]
    forks.vertex(*words)
