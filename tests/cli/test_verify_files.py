"""Where `vertex verify` writes: onto nothing that it reads, all files or none, and nothing after an error."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.cli.test_verify import BROKEN, HOLDS, RELU, verify
from vertex_softmax.cli import verify as cli_verify
from vertex_softmax.foundation import outputs


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cli_verify, "_since_start", lambda: 0.0)
    (tmp_path / "model.onnx").write_bytes(RELU)
    (tmp_path / "holds.vnnlib").write_text(HOLDS)
    (tmp_path / "broken.vnnlib").write_text(BROKEN)
    return tmp_path


def _hard(files: Path, name: str) -> str:
    os.link(files / name, files / "other-name")
    return str(files / "other-name")


def _linked(files: Path, name: str) -> str:
    (files / "a-link").symlink_to(files / name)
    return str(files / "a-link")


@pytest.mark.parametrize("way", [lambda files, name: str(files / name), _hard, _linked], ids=["itself", "hard", "link"])
@pytest.mark.parametrize("name", ["model.onnx", "holds.vnnlib"])
@pytest.mark.parametrize("option", ["--json", "--counterexample", "--certificate"])
def test_no_output_takes_the_place_of_an_input(files: Path, option: str, name: str, way: Any) -> None:
    before = (files / name).read_bytes()
    found = verify(files, "model.onnx", "holds.vnnlib", option, way(files, name))
    assert (found.exit_code, found.stdout) == (2, "error\n")
    assert re.search("that this run reads|symbolic link", found.stderr.replace("\n", " "))
    assert (files / name).read_bytes() == before


def test_outputs_do_not_take_the_place_of_each_other(files: Path) -> None:
    found = verify(
        files, "model.onnx", "broken.vnnlib", "--json", str(files / "x"), "--counterexample", str(files / "x")
    )
    assert found.exit_code == 2
    assert "two outputs" in found.stderr
    assert not (files / "x").exists()


def test_a_run_that_fails_writes_nothing(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for the second file: then the first is not written either."""
    real, calls = os.fsync, []

    def full(number: int) -> None:
        calls.append(number)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    monkeypatch.setattr(outputs.os, "fsync", full)
    places = [files / "a.json", files / "found.txt"]
    before = sorted(files.iterdir())
    found = verify(files, "model.onnx", "broken.vnnlib", "--json", str(places[0]), "--counterexample", str(places[1]))
    assert (found.exit_code, found.stdout) == (2, "error\n")
    assert "No space left on device" in found.stderr
    assert sorted(files.iterdir()) == before


def test_the_external_data_of_the_model_are_inputs(files: Path) -> None:
    (files / "big").mkdir()
    proto = onnx.load(files / "model.onnx")
    onnx.save(proto, files / "big" / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = (files / "big" / "weights.bin").read_bytes()
    found = verify(files, "big/m.onnx", "holds.vnnlib", "--json", str(files / "big" / "weights.bin"))
    assert (found.exit_code, found.stdout) == (2, "error\n")
    assert "that this run reads" in found.stderr
    assert (files / "big" / "weights.bin").read_bytes() == before


def test_the_watchdog_ends_the_process_also_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(cli_verify, "GRACE", 0.0)
    (tmp_path / "a.json").mkdir()
    out = cli_verify._AnswerWriter(tmp_path / "a.json", {"model": "m"})
    with cli_verify._watchdog(0.05, out):
        time.sleep(0.5)
    assert ended == [2]
    assert capsys.readouterr().out == "error\n"
