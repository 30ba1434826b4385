"""How the rows of broadcast arrays lie in memory: sizes and strides, with neighbouring dimensions merged.

Shared by the kernels that walk strides themselves, so that nothing broadcast is ever stored.
"""

from __future__ import annotations

from torch import Tensor

Dim = tuple[int, tuple[int, ...]]
"""A dimension: its size, and the stride of each array along it (0 where the array is broadcast)."""


def merged_dims(arrays: list[Tensor]) -> list[Dim]:
    """The dimensions of equally shaped arrays, without those of size 1, merged where every array steps alike."""
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
