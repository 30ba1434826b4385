"""The limit of a process's memory: refused where nothing could be read any more; it holds in that process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.memory_limit import limit_memory, memory_left


def test_too_little_is_refused_with_what_is_needed() -> None:
    with pytest.raises(InvalidValueError, match=r"--memory is 0.01 GiB, and .* are in use before anything is read"):
        limit_memory(0.01)


def test_more_than_the_limit_cannot_be_allocated() -> None:
    program = """
from vertex_softmax.runs.memory_limit import limit_memory
limit_memory(1.0)
try:
    bytearray(1 << 30)
except MemoryError:
    print("refused", len(bytearray(1 << 26)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"refused {1 << 26}\n"


def test_what_is_left_is_what_can_be_allocated() -> None:
    program = """
from vertex_softmax.runs.memory_limit import limit_memory, memory_left
print(memory_left())
limit_memory(1.0)
left = memory_left()
assert 0 < left < 1 << 30
taken = bytearray(left - (1 << 24))
assert memory_left() <= 1 << 25
del taken
try:
    bytearray(left + (1 << 20))
except MemoryError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None\nrefused\n"


def test_a_process_without_a_limit_has_no_end_of_it() -> None:
    assert memory_left() is None
