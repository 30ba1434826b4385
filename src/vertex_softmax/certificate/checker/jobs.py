"""Jobs: independent tasks of a check in several processes, with the same answer as in one.

Invariant: `run` returns the result of every task, each computed by the same function of the same numbers, or it raises.
A process that ends without having answered for all of its tasks, in whatever way, is a rejection.

Processes are forks, which know everything that was proved before. Each answers through a pipe, in bytes: for every task
its number and its result, and in the end a word and the work it has done. Nothing that comes through a pipe is trusted
to be whole: numbers, shapes and lengths are compared with what was asked.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import struct
import zlib
from collections.abc import Callable

import numpy as np

from .file import Rejected
from .rounding import Array

WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError, MemoryError)
UNREADABLE = (*WRONG, OSError, EOFError, zlib.error, np.linalg.LinAlgError, Rejected)
"""The exceptions that reading or replaying a file may raise if it is not a valid certificate."""
HEAD = struct.Struct("<qqq")
"""What every message begins with: its kind, a number, and how many bytes follow."""
RESULT, DONE, REFUSED = 1, 2, 3
"""Kinds of messages: the result of a task, the end with the work done, and a rejection with its reason."""
MOST_TEXT = 2000
"""The most bytes of a reason."""


def why(error: Exception) -> str:
    """Why a certificate is rejected whose check raised this error."""
    return (
        str(error)
        if isinstance(error, Rejected)
        else f"the certificate makes no sense: {type(error).__name__}: {error}"
    )


class Jobs:
    """Runs tasks in so many processes; in this one if there is one, or where the system cannot fork."""

    def __init__(self, count: int = 1) -> None:
        self.count = count if hasattr(os, "fork") else 1

    def run(self, task: Callable[[int], Array], count: int, spent: list[int]) -> list[Array]:
        """The results of tasks 0 to count − 1, float64 arrays; `spent`: the work done so far, which grows."""
        jobs = min(self.count, count)
        if jobs <= 1:
            return [task(k) for k in range(count)]
        processes: list[tuple[int, int]] = []
        try:
            for k in range(jobs):
                one = _started(task, range(k, count, jobs), spent)
                processes.append(one)  # at once: those that run are ended if another cannot be started
            answers = _answers([pipe for _, pipe in processes])
            codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process, _ in processes]
        except BaseException:
            for process, _ in processes:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
            raise
        finally:
            for _, pipe in processes:
                os.close(pipe)
        results: dict[int, Array] = {}
        for k, (answer, code) in enumerate(zip(answers, codes, strict=True)):
            spent[0] += _read(answer, code, range(k, count, jobs), results)
        if len(results) != count:
            raise Rejected("a job of the check did not answer for all of its tasks")
        return [results[k] for k in range(count)]


def _started(task: Callable[[int], Array], mine: range, spent: list[int]) -> tuple[int, int]:
    """Start a process for some of the tasks: its id, and the end of the pipe from which its answer is read."""
    pipe, answer = os.pipe()
    process = os.fork()
    if process:
        os.close(answer)
        return process, pipe
    code = 1
    try:
        os.close(pipe)
        _work(task, mine, spent, answer)
        code = 0
    finally:
        os._exit(code)


def _work(task: Callable[[int], Array], mine: range, spent: list[int], answer: int) -> None:
    """Be one of the processes: compute its tasks, and answer."""
    parent, before = os.getppid(), spent[0]
    try:
        for k in mine:
            if os.getppid() != parent:  # whoever asked is gone
                return
            found = np.asarray(task(k), dtype="<f8")
            shape = struct.pack(f"<q{found.ndim}q", found.ndim, *found.shape)
            _send(answer, RESULT, k, shape + found.tobytes())
        _send(answer, DONE, spent[0] - before, b"")
    except UNREADABLE as error:
        _send(answer, REFUSED, 0, why(error).encode(errors="replace")[:MOST_TEXT])


def _send(answer: int, kind: int, number: int, data: bytes) -> None:
    left = memoryview(HEAD.pack(kind, number, len(data)) + data)
    while left:
        left = left[os.write(answer, left) :]


def _answers(pipes: list[int]) -> list[bytes]:
    """All that comes from some pipes, until each is closed."""
    parts: dict[int, list[bytes]] = {pipe: [] for pipe in pipes}
    with selectors.DefaultSelector() as waiting:
        for pipe in pipes:
            waiting.register(pipe, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                part = os.read(key.fd, 1 << 20)
                if part:
                    parts[key.fd].append(part)
                else:
                    waiting.unregister(key.fd)
    return [b"".join(parts[pipe]) for pipe in pipes]


def _read(answer: bytes, code: int, mine: range, results: dict[int, Array]) -> int:
    """Take the results from the answer of a process that ended with this exit code; the work that it has done."""
    at, waiting = 0, list(mine)
    while at + HEAD.size <= len(answer):
        kind, number, length = HEAD.unpack_from(answer, at)
        data = answer[at + HEAD.size : at + HEAD.size + length]
        at += HEAD.size + length
        if length < 0 or len(data) != length:
            break
        if kind == REFUSED:
            raise Rejected(data.decode(errors="replace"))
        if kind == DONE and not waiting and at == len(answer) and code == 0:
            return int(number)
        if kind != RESULT or not waiting or number != waiting.pop(0):
            break
        results[number] = _array(data)
    raise Rejected(f"a job of the check ended without an answer (exit code {code}): run it again, with fewer --jobs")


def _array(data: bytes) -> Array:
    """The array of a message."""
    try:
        (ndim,) = struct.unpack_from("<q", data)
        shape = struct.unpack_from(f"<{ndim}q", data, 8)
    except struct.error as error:
        raise Rejected(f"a job of the check answered with what is no array: {error}") from error
    return np.frombuffer(data, "<f8", offset=8 * (1 + ndim)).reshape(shape).astype(np.float64)
