"""A worker process with limits: a case that crashes it or hangs it is a finding, and the next case gets a new one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from vertex_lab.fuzz.recipe import Recipe

START = 300.0
"""Seconds that a worker may take to import torch."""
PATIENCE = 5
"""How many times its seconds a case may take on the clock, where the processor was others'."""


class Worker:
    """One process; `check` always answers, within the limit."""

    def __init__(self, device: str = "cpu", seconds: float = 60.0, cases: int = 150) -> None:
        self.device, self.seconds, self.cases = device, seconds, cases
        self.process: subprocess.Popen[bytes] | None = None
        self.left = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def check(self, recipe: Recipe) -> dict[str, Any]:
        """The report of a recipe as JSON."""
        if self.process is None or self.left <= 0:
            self._start()
        self.left -= 1
        process = self.process
        if process is None or process.stdin is None:
            return _finding("crash", "start", "the worker does not start")
        begin = time.perf_counter()
        try:
            process.stdin.write(json.dumps(recipe).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            return _finding("crash", "before", "the worker ended between two cases")
        line = self._line(self.seconds, _spent(process.pid))
        spent = time.perf_counter() - begin
        if line is None:
            ended = process.poll()
            self.stop()
            if ended is None:
                return _finding("slow", "case", f"no answer within {self.seconds:.0f} s")
            return _finding("crash", f"{ended}", f"the process ended with {ended} after {spent:.1f} s")
        found: dict[str, Any] = json.loads(line)
        found["seconds"]["case"] = spent
        return found

    def _start(self) -> None:
        self.stop()
        command = [sys.executable, "-m", "vertex_lab.fuzz.worker", self.device]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.buffer = b""
        self.left = self.cases
        if self._line(START) is None:
            self.stop()

    def _line(self, seconds: float, before: float | None = None) -> bytes | None:
        """The next line, or None if the worker ends or is late: by its own time since `before`, if that is told."""
        if self.process is None or self.process.stdout is None:
            return None
        begin, file = time.monotonic(), self.process.stdout.fileno()
        end, last = begin + seconds, begin + PATIENCE * seconds
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([file], [], [], max(0.0, end - time.monotonic()))
            own = _spent(self.process.pid)
            if not ready and before is not None and own is not None and own - before < seconds:
                end = time.monotonic() + max(0.1, seconds - (own - before))
                if end <= last:
                    continue
            part = os.read(file, 1 << 16) if ready else b""
            if not part:
                if ready:
                    self.process.wait(10)
                return None
            self.buffer += part
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _finding(kind: str, where: str, text: str) -> dict[str, Any]:
    return {"findings": [{"kind": kind, "where": where, "text": text}], "notes": {}, "seconds": {}}


def _spent(pid: int) -> float | None:
    """Seconds of processor time that a process has had; None where that is not told."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")
