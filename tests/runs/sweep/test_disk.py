"""A sweep on a disk that fills up, or that cannot be written any more: a clear error, nothing lost, and on it goes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.processes import files_up_to
from tests.runs.sweep.sweeps import SAT, UNKNOWN, UNSAT, answers, benchmark, child, lines, ran, rows
from vertex_softmax.cli.main import app
from vertex_softmax.runs.sweep import runner, sweep

COUNT = 9


@pytest.fixture(autouse=True)
def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "COMMAND", child(tmp_path))
    monkeypatch.setattr(sweep, "source", lambda: "these sources")


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """Some with counterexamples as long as those of an image."""
    told = [UNSAT, {**SAT, "found": "(X_0 0.5)\n" * 3000}, UNKNOWN]
    return benchmark(tmp_path / "bench", {f"n{i}": told[i % 3] for i in range(COUNT)})


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mount("-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def vertex(*arguments: str | Path | float) -> Any:
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def fill(disk: Path, left: int) -> Path:
    """A file that leaves so many bytes, in pages."""
    place = disk / "filler"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    place.write_bytes(b"\0" * max(0, free - left))
    return place


@pytest.mark.parametrize("left", [0, 64, 72, 84])
def test_a_disk_that_is_full_or_gets_full(left: int, disk: Path, listed: Path, tmp_path: Path) -> None:
    assert vertex(listed, "--out", tmp_path / "whole").exit_code == 0
    before, out = len(ran(listed.parent)), disk / "out"
    filler = fill(disk, left * 1024)
    result = vertex(listed, "--out", out)
    assert result.exit_code == 2, result.output
    assert "No space left on device" in result.stderr
    assert "choose another --out" in result.stderr or "the same command goes on from there" in result.stderr
    assert "Traceback" not in result.output
    filler.unlink()
    kept = lines_of(out)
    result = vertex(listed, "--out", out)
    assert result.exit_code == 0, result.output
    assert [line["spec"] for line in lines(out)[: len(kept)]] == kept
    assert answers(out) == answers(tmp_path / "whole")
    assert rows(out) == rows(tmp_path / "whole")
    assert len(lines(out)) == COUNT
    assert len(ran(listed.parent)) - before <= COUNT + 1 - (len(kept) == COUNT)  # at most one had to be run again


def lines_of(out: Path) -> list[str]:
    return [line["spec"] for line in lines(out)] if (out / "journal.jsonl").exists() else []


def test_a_disk_that_is_read_only(disk: Path, listed: Path) -> None:
    out = disk / "out"
    assert vertex(listed, "--out", out, "--limit", 3).exit_code == 0
    mount("-o", "remount,ro", str(disk))
    for place in (out, disk / "new"):
        result = vertex(listed, "--out", place)
        assert result.exit_code == 2
        assert "journal.jsonl cannot be written (Read-only file system); choose another --out" in result.stderr
    assert len(ran(listed.parent)) == 3
    mount("-o", "remount,rw", str(disk))
    result = vertex(listed, "--out", out)
    assert result.exit_code == 0, result.output
    assert f"3 of {COUNT} are finished and kept" in result.stderr
    assert len(lines(out)) == len(ran(listed.parent)) == COUNT


def test_a_folder_without_the_right_to_write(tmp_path: Path, listed: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; `test_a_disk_that_is_read_only` is for root")
    out = tmp_path / "out"
    out.mkdir(mode=0o555)
    result = vertex(listed, "--out", out)
    assert result.exit_code == 2
    assert "journal.jsonl cannot be written (Permission denied); choose another --out" in result.stderr
    out.chmod(0o755)
    assert vertex(listed, "--out", out).exit_code == 0


@pytest.mark.parametrize("size", [10, 700, 3000])
def test_files_that_cannot_grow(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a full disk, where nothing can be mounted: the journal cannot grow."""
    listed = benchmark(tmp_path / "bench", {f"n{i}": UNSAT for i in range(COUNT)})
    monkeypatch.setattr(runner, "ROOM", 5)
    out = tmp_path / "out"
    with files_up_to(size):
        result = vertex(listed, "--out", out)
    assert result.exit_code == 2, result.output
    assert "File too large" in result.stderr
    assert "the same command goes on from there" in result.stderr
    kept = lines_of_torn(out)
    assert vertex(listed, "--out", out).exit_code == 0
    assert lines_of(out)[: len(kept)] == kept
    assert sorted(rows(out)) == sorted(f"n{i}" for i in range(COUNT))
    assert len(lines(out)) == COUNT
    assert len(ran(listed.parent)) <= COUNT + 1


def lines_of_torn(out: Path) -> list[str]:
    """Of the lines that are whole."""
    text = (out / "journal.jsonl").read_text()
    (out / "whole").mkdir()
    (out / "whole" / "journal.jsonl").write_text(text[: text.rfind("\n") + 1])
    return lines_of(out / "whole")
