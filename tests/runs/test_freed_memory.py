"""A process that keeps freed memory does not ask the system for it again."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from vertex_softmax.runs import freed_memory

ARRAYS = """
import resource, sys
import numpy as np
from vertex_softmax.runs.freed_memory import keep_freed_memory
print(keep_freed_memory() if sys.argv[1] == "kept" else False)
np.ones(1 << 23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(1 << 23)  # 64 MiB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(way: str) -> tuple[bool, int]:
    """Whether memory is kept, and how many pages a process asks for while it makes twenty arrays, one at a time."""
    done = subprocess.run([sys.executable, "-c", ARRAYS, way], check=True, capture_output=True, text=True)
    kept, count = done.stdout.split()
    return kept == "True", int(count)


def test_arrays_take_the_memory_of_those_before_them() -> None:
    (kept, few), (_, many) = pages("kept"), pages("returned")
    if not kept:
        pytest.skip("the C library has no mallopt")
    assert few < many / 4


def test_another_system_or_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not freed_memory.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not freed_memory.keep_freed_memory()
