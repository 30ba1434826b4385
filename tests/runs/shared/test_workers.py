"""Workers that are processes: what they say is handed on, what ends is replaced, and none outlives the search."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import gone
from tests.runs.shared.crews import BLIND, OPTIONS, ask, files
from vertex_softmax.foundation.errors import ClusterError
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.shared.workers import Event, LocalWorkers

ECHO = """
import os, runpy, signal, sys, time
for line in sys.stdin:
    if line == "die\\n":
        os.kill(os.getpid(), signal.SIGKILL)
    if line == "fail\\n":
        sys.exit("out of luck")
    if line == "pid\\n":
        line = f"{os.getpid()}\\n"
    if line == "threads\\n":
        line = os.environ["OMP_NUM_THREADS"] + "\\n"
    sys.stdout.write(line)
    sys.stdout.flush()
"""


def command(program: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", program)


@pytest.fixture
def echo() -> Iterator[LocalWorkers]:
    workers = LocalWorkers(2, 3, command(ECHO))
    yield workers
    workers.stop()


def until(workers: LocalWorkers, enough: Callable[[list[Event]], bool]) -> list[Event]:
    found: list[Event] = []
    limit = time.monotonic() + 30
    while not enough(found):
        assert time.monotonic() < limit, found
        found += workers.poll(0.1)
    return found


def lines(events: list[Event]) -> list[str]:
    return [event.line.strip() for event in events if event.line is not None]


def test_lines_are_handed_on_in_their_order(echo: LocalWorkers) -> None:
    names = [event.worker for event in echo.poll(0) if event.joined]
    assert names == ["worker 1", "worker 2"]
    large = "x" * (1 << 20)
    for k in range(5):
        for name in names:
            echo.send(name, f"{name} {k}")
    echo.send(names[0], large)  # more than a pipe holds
    echo.send(names[1], "threads")
    found = until(echo, lambda found: len(lines(found)) == 12)
    for name in names:
        mine = [event.line.strip() for event in found if event.worker == name and event.line]
        assert mine == [*(f"{name} {k}" for k in range(5)), large if name == names[0] else "3"]
    assert echo.note == "2 workers on this machine"


@pytest.mark.parametrize(
    ("word", "why"),
    [("die", "worker 1 was ended by SIGKILL"), ("fail", "worker 1 ended with exit code 1 (out of luck)")],
)
def test_one_that_ends_is_reported_and_replaced(word: str, why: str, echo: LocalWorkers) -> None:
    echo.poll(0)
    echo.send("worker 1", word)
    found = until(echo, lambda found: any(event.joined for event in found))
    assert [(event.worker, event.left) for event in found if event.left] == [("worker 1", why)]
    assert [event.worker for event in found if event.joined] == ["worker 3"]
    echo.send("worker 1", "nobody hears this")
    echo.drop("worker 1", "twice")
    echo.send("worker 3", "new")
    assert lines(until(echo, lambda found: bool(lines(found)))) == ["new"]


def test_one_that_is_dropped_is_killed(echo: LocalWorkers) -> None:
    echo.poll(0)
    echo.send("worker 2", "pid")
    (pid,) = map(int, lines(until(echo, lambda found: bool(lines(found)))))
    echo.drop("worker 2", "it was late")
    found = until(echo, lambda found: any(event.left for event in found))
    assert [event.left for event in found if event.left] == ["it was late"]
    assert gone(pid)


def test_none_is_left_at_the_end(echo: LocalWorkers) -> None:
    echo.poll(0)
    for name in ("worker 1", "worker 2"):
        echo.send(name, "pid")
    pids = [int(line) for line in lines(until(echo, lambda found: len(lines(found)) == 2))]
    echo.stop()
    echo.stop()
    assert all(map(gone, pids))
    assert not any(event.joined for event in echo.poll(0))


def test_a_program_that_never_works_is_an_error(tmp_path: Path) -> None:
    workers = LocalWorkers(1, 1, command("import sys; sys.exit('nothing is installed here')"))
    with pytest.raises(ClusterError, match=r"the workers fail again and again: .*\(nothing is installed here\)"):
        ask(files(tmp_path, 9, 0.01, 0.02), workers)


class Killed(LocalWorkers):
    """Real workers, of which some are killed while they work."""

    def __init__(self, kills: int) -> None:
        super().__init__(2, 1)
        self.kills, self.pids = kills, list[int]()

    def send(self, worker: str, line: str) -> None:
        super().send(worker, line)
        if self.kills and '"do":"grow"' in line:
            self.kills -= 1
            pid = self._running[worker]._process.pid
            os.kill(pid, signal.SIGKILL)

    def poll(self, wait: float) -> list[Event]:
        found = super().poll(wait)
        self.pids += [p._process.pid for p in self._running.values() if p._process.pid not in self.pids]
        return found


def test_real_workers_agree_with_the_truth_and_may_be_killed(tmp_path: Path) -> None:
    for margins, verdicts in (
        ((0.01, 0.02), (Verdict.VERIFIED,)),
        ((0.05, -0.01), (Verdict.UNKNOWN, Verdict.FALSIFIED)),
    ):
        workers = Killed(1)
        answer, search = ask(files(tmp_path / str(margins), 9, *margins), workers, options=OPTIONS, budget=BLIND)
        assert answer.verdict in verdicts
        assert (search.parts["open"] == 0) == (answer.verdict is Verdict.VERIFIED)
        assert len(workers.pids) == 3
        assert all(map(gone, workers.pids))


def test_an_event_says_what_it_is() -> None:
    kinds: list[dict[str, Any]] = [{}, {"line": "x"}, {"left": "why"}]
    assert [Event("w", **kind).joined for kind in kinds] == [True, False, False]
