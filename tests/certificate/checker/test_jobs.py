"""Jobs: the same results as in one process, or a rejection; never fewer results than were asked for."""

from __future__ import annotations

import os
import signal
import struct
import time

import numpy as np
import pytest

from tests.certificate.checker.helpers import Array, module
from tests.processes import gone

jobs = module("jobs")
Rejected = module("file").Rejected


def squares(k: int) -> Array:
    return np.full((k % 3, 2), float(k) ** 2) if k % 2 else np.array(k / 3)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 40])
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_the_same_results_in_their_order(count: int, processes: int) -> None:
    found = jobs.Jobs(processes).run(squares, count, [0])
    assert len(found) == count
    for k, each in enumerate(found):
        assert each.dtype == np.float64
        assert each.shape == squares(k).shape
        assert (each == squares(k)).all()


def test_numbers_come_back_bit_by_bit() -> None:
    numbers = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e308, 1 / 3])
    for found in jobs.Jobs(2).run(lambda _: numbers, 4, [0]):
        assert found.tobytes() == numbers.tobytes()


def test_more_than_a_pipe_holds() -> None:
    found = jobs.Jobs(2).run(lambda k: np.full(300_000, float(k)), 6, [0])
    assert [each[[0, -1]].tolist() for each in found] == [[float(k)] * 2 for k in range(6)]
    assert all(len(each) == 300_000 for each in found)


def test_work_is_added_up() -> None:
    spent = [7]

    def task(k: int) -> Array:
        spent[0] += k
        return np.zeros(1)

    jobs.Jobs(3).run(task, 10, spent)
    assert spent == [7 + sum(range(10))]


@pytest.mark.parametrize("error", [Rejected("no"), ValueError("no"), KeyError("no"), ZeroDivisionError("no")])
def test_what_a_job_refuses_is_refused(error: Exception) -> None:
    def task(k: int) -> Array:
        if k == 5:
            raise error
        return np.zeros(1)

    with pytest.raises(Rejected, match="no"):
        jobs.Jobs(2).run(task, 9, [0])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_a_job_that_is_killed_is_a_rejection(number: int) -> None:
    def task(k: int) -> Array:
        if k == 8:  # the last one: all before it were answered
            os.kill(os.getpid(), number)
        return np.ones(3)

    with pytest.raises(Rejected, match="ended without an answer"):
        jobs.Jobs(3).run(task, 9, [0])


@pytest.mark.parametrize("code", [0, 1, 9])
def test_a_job_that_ends_early_is_a_rejection(code: int) -> None:
    """Also with exit code 0, and between two answers."""

    def task(k: int) -> Array:
        if k == 6:
            os._exit(code)
        return np.ones(3)

    with pytest.raises(Rejected, match="ended without an answer"):
        jobs.Jobs(2).run(task, 9, [0])


def test_an_error_that_is_none_of_a_file_is_a_rejection() -> None:
    def task(k: int) -> Array:
        if k == 3:
            raise AssertionError("a fault of the checker itself")
        return np.ones(3)

    with pytest.raises(Rejected, match="exit code 1"):
        jobs.Jobs(2).run(task, 9, [0])


def test_no_process_is_left_when_the_check_is_interrupted() -> None:
    here, seen = os.getpid(), os.pipe()

    def task(_: int) -> Array:
        os.write(seen[1], struct.pack("<q", os.getpid()))
        time.sleep(60)
        return np.ones(1)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            jobs.Jobs(2).run(task, 4, [0])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    pids = struct.unpack("<2q", os.read(seen[0], 16))
    assert all(pid != here and gone(pid) for pid in pids)


def test_answers_are_read_with_care() -> None:
    """Cut, out of order, twice, for others' tasks, with an array that is none, or after a bad end: never taken."""
    whole = {}
    for k in (0, 2):
        data = struct.pack("<qq", 1, 2) + np.array([k, k], dtype=np.float64).tobytes()
        whole[k] = jobs.HEAD.pack(jobs.RESULT, k, len(data)) + data
    done = jobs.HEAD.pack(jobs.DONE, 5, 0)
    results: dict[int, Array] = {}
    assert jobs._read(whole[0] + whole[2] + done, 0, range(0, 4, 2), results) == 5
    assert {k: x.tolist() for k, x in results.items()} == {0: [0.0, 0.0], 2: [2.0, 2.0]}
    other = jobs.HEAD.pack(jobs.RESULT, 1, 8) + bytes(8)
    long = jobs.HEAD.pack(jobs.RESULT, 0, 1 << 40)
    negative = jobs.HEAD.pack(jobs.RESULT, 0, -24)
    strange = jobs.HEAD.pack(9, 0, 0)
    wrong = [
        (b"", 0), (whole[0] + whole[2], 0), (whole[0] + done, 0), (whole[2] + whole[0] + done, 0), (done, 0),
        (whole[0] + whole[0] + done, 0), (whole[0] + whole[2] + done, 1), (whole[0] + whole[2] + done, -9),
        (whole[0] + whole[2] + done + b"\0", 0), (whole[0] + whole[2] + whole[2] + done, 0),
        (whole[0] + other + done, 0),
        (long + done, 0), (negative + done, 0), (strange + done, 0), ((whole[0] + whole[2] + done)[:-1], 0),
        (whole[0][:-1] + whole[2] + done, 0), (whole[0] + whole[2] + done + done, 0),
    ]  # fmt: skip
    for answer, code in wrong:
        with pytest.raises((Rejected, ValueError)):
            jobs._read(answer, code, range(0, 4, 2), {})
    for data in (b"", bytes(7), struct.pack("<q", 9), struct.pack("<q", -1), struct.pack("<qq", 1, 3) + bytes(8)):
        message = jobs.HEAD.pack(jobs.RESULT, 0, len(data)) + data
        with pytest.raises((Rejected, ValueError)):
            jobs._read(message + jobs.HEAD.pack(jobs.DONE, 0, 0), 0, range(1), {})


def test_where_the_system_cannot_fork_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    assert jobs.Jobs(4).count == 1
    here = os.getpid()
    assert all(each.item() == here for each in jobs.Jobs(4).run(lambda _: np.array(float(os.getpid())), 3, [0]))


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are ended, and the check is not accepted."""
    fork, started = os.fork, []

    def few() -> int:
        if len(started) == 1:
            raise BlockingIOError("no more processes")
        started.append(fork())
        return started[-1]

    monkeypatch.setattr(os, "fork", few)

    def slow(_: int) -> Array:
        time.sleep(60)
        return np.zeros(1)

    with pytest.raises(OSError, match="no more processes"):
        jobs.Jobs(2).run(slow, 4, [0])
    assert gone(started[0])
