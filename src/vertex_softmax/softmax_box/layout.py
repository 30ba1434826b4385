"""The memory layout of the rows of broadcast arrays: sizes and strides, with neighbouring dimensions merged.

Shared by the kernels that follow strides themselves, so that broadcast arrays are never expanded in memory.
"""

from __future__ import annotations

from torch import Tensor

Dim = tuple[int, tuple[int, ...]]
"""A dimension: its size, and the stride of each array along it (0 where the array is broadcast)."""


def merged_dims(arrays: list[Tensor]) -> list[Dim]:
    """The dimensions of equally shaped arrays without those of size 1; neighbours are merged where strides allow.

    Two neighbours merge if in every array the outer stride is the inner stride times the inner size.
    """
    merged: list[Dim] = []
    for i, size in enumerate(arrays[0].shape):
        if size == 1:
            continue
        strides = tuple(array.stride(i) for array in arrays)
        if merged and all(a == size * b for a, b in zip(merged[-1][1], strides, strict=True)):
            merged[-1] = (merged[-1][0] * size, strides)
        else:
            merged.append((size, strides))
    return merged
