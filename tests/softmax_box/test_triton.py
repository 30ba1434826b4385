"""The Triton kernel on the CPU, through Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vertex_softmax.softmax_box import triton_backend

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rows", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_the_kernel_gives_the_exact_minimum_in_the_interpreter(rows: str) -> None:
    """Values, proofs, broadcasting, and NaN for rows it does not handle; see triton_script.py."""
    if not triton_backend.available():  # no Triton for this platform: then the public functions do not use it either
        assert not triton_backend.usable(16)
        return
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "tests.softmax_box.triton_script", rows]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": ok") == 4


def test_longer_rows_than_the_kernel_takes_are_refused() -> None:
    assert not triton_backend.usable(triton_backend.MOST_KEYS + 1)
