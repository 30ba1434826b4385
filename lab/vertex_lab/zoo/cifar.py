"""The binary version of CIFAR-10: records of a label and 3×32×32 levels, red before green before blue; nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vertex_lab.zoo.idx import in_range
from vertex_softmax.foundation.errors import InvalidValueError

RECORD = 1 + 3 * 32 * 32


def records(content: bytes, where: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 3, 32, 32) and labels (n) in 0 … classes − 1."""
    if not content or len(content) % RECORD:
        raise InvalidValueError(f"{where} has {len(content):,} bytes: not a whole number of records of {RECORD:,}")
    found = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return found[:, 1:].reshape(-1, 3, 32, 32), in_range(found[:, 0], where, classes)


def luma(levels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """One channel in [0, 1], black exactly 0 and white exactly 1: (0.299 R + 0.587 G + 0.114 B) / 255, ITU-R BT.601.

    Computed as (299 R + 587 G + 114 B) / 255000 with one rounding, and not rounded to 256 levels.
    Levels (n, 3, height, width), result (n, 1, height, width).
    """
    found = levels[:, :1].astype(np.int32) * 299
    found += levels[:, 1:2].astype(np.int32) * 587
    found += levels[:, 2:].astype(np.int32) * 114
    return found / 255_000.0
