"""IDX, the format of MNIST: 0, 0, type, rank, the sizes as big-endian 32-bit numbers, then the elements; nothing else.

The declared sizes are held against the length before anything is made of them.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.foundation.errors import InvalidValueError

UNSIGNED_BYTE = 0x08


def images(content: bytes, where: str, height: int, width: int) -> NDArray[np.uint8]:
    """Images (n, height, width) of an IDX file of rank 3."""
    found = _array(content, where, 3)
    if found.shape[1:] != (height, width):
        size = f"{found.shape[1]}×{found.shape[2]}"
        raise InvalidValueError(f"{where} holds images of {size}; {height}×{width} is expected")
    return found


def labels(content: bytes, where: str, classes: int) -> NDArray[np.uint8]:
    """Labels (n) in 0 … classes − 1 of an IDX file of rank 1."""
    return in_range(_array(content, where, 1), where, classes)


def in_range(labels: NDArray[np.uint8], where: str, classes: int) -> NDArray[np.uint8]:
    """The labels, if each is one of the classes."""
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        first = int(wrong[0])
        raise InvalidValueError(f"{where}: label {labels[first]} of image {first} is not in 0 … {classes - 1}")
    return labels


def _array(content: bytes, where: str, rank: int) -> NDArray[np.uint8]:
    start = 4 + 4 * rank
    if len(content) < start:
        raise InvalidValueError(f"{where} is cut off: {len(content)} bytes, and the header alone has {start}")
    if content[:2] != b"\0\0":
        raise InvalidValueError(f"{where} is not an IDX file: it starts with {content[:4].hex(' ')}")
    if content[2] != UNSIGNED_BYTE:
        raise InvalidValueError(f"{where} has elements of type 0x{content[2]:02x}; 0x08 (unsigned bytes) is expected")
    if content[3] != rank:
        raise InvalidValueError(f"{where} has {content[3]} dimensions; {rank} are expected")
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if prod(sizes) != len(content) - start:
        declared = " × ".join(f"{size:,}" for size in sizes)
        raise InvalidValueError(f"{where} declares {declared} bytes and holds {len(content) - start:,}")
    if not all(sizes) and prod(filter(None, sizes)) >= 2**63:  # nothing, of a size that numpy does not have
        raise InvalidValueError(f"{where} declares {' × '.join(f'{size:,}' for size in sizes)} bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
