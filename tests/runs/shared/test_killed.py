"""A shared search that is killed goes on where it was, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.processes import gone
from tests.runs.shared.crews import Rehearsed, ask
from vertex_softmax.methods.verdict import Verdict


def children(pid: int) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(place.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(place.parent.name))
    return found


def whole_lines(path: Path) -> list[str]:
    text = path.read_text() if path.exists() else ""
    return text.splitlines(keepends=True)[: text.count("\n")]


def test_a_search_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """Twice, each time after some answers; the third time it comes to its end."""
    seen = 3
    for _ in range(2):
        command = [sys.executable, "-m", "tests.runs.shared.killed_search", str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        limit = time.monotonic() + 120
        while len(whole_lines(tmp_path / "tree")) < seen + 1 and process.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.02)
        family = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=30)
        assert said == "", "it had come to its end before it was killed"
        assert len(family) == 2
        assert all(map(gone, family))
        before = whole_lines(tmp_path / "tree")
        assert len(before) > seen
        seen = len(before)
    paths = (tmp_path / "model.onnx", tmp_path / "property.vnnlib")
    answer, search = ask(paths, Rehearsed(2), journal=tmp_path / "tree")
    assert (answer.verdict, search.parts["open"]) == (Verdict.VERIFIED, 0)
    assert search.parts["read"] == seen - 2
    assert whole_lines(tmp_path / "tree")[:seen] == before
