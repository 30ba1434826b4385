"""Reading a certificate: the layout of safetensors (8 bytes n, n bytes of JSON, numbers), without trusting any of it.

Every array is a view into the bytes of the file, so no more memory is allocated than the file has bytes. Lengths, types
and offsets are compared with the size of the file before the arrays are read, and every number used must be finite.
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 1 << 33
"""The largest certificate, in bytes."""
MOST_HEADER = 1 << 26
"""The largest JSON header of a certificate, in bytes."""
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "BOOL": "u1"}
"""Names of element types in safetensors → numpy's."""
FORMAT = "vertex-certificate-8"
"""The format that is written. It has what the older ones have, and zonotopes from zonotopes (images.py)."""
BOXES = ("vertex-certificate-2", "vertex-certificate-3")
"""Formats whose input sets are boxes; the second has forward proofs, the first has none."""
UNPACKED = (*BOXES, "vertex-certificate-4")
"""Formats without packed trees and without boxes with chosen parameters; the last has input sets that are no boxes."""
WITHOUT_ROUNDS = (*UNPACKED, "vertex-certificate-5")
"""Formats without proofs in rounds over narrower sets; the last has packed trees."""
WITHOUT_RESTS = (*WITHOUT_ROUNDS, "vertex-certificate-6")
"""Formats without rests of leaves; the last has proofs in rounds."""
OLDER = (*WITHOUT_RESTS, "vertex-certificate-7")
"""The formats that are read as well: the last has rests of leaves, and no zonotopes from zonotopes."""
Path = str | os.PathLike[str]


class Rejected(Exception):  # noqa: N818
    """A certificate is not accepted; the message says why."""


class File(NamedTuple):
    """A certificate as it was read: its JSON header, and its arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    def array(self, name: object, kind: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """The array of this name, of the shape if one is given; kind: "i" integers, "b" booleans, "f" floats."""
        array = self.arrays.get(name) if isinstance(name, str) else None
        kinds = {"i": "i", "b": "ub", "f": "f"}
        if array is None or array.dtype.kind not in kinds[kind] or (shape is not None and array.shape != shape):
            actual = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise Rejected(f"the array {str(name)[:80]!r} is {actual}; {kind} {shape} is needed")
        if kind == "b" and not (array <= 1).all():
            raise Rejected(f"{str(name)[:80]!r} holds a truth value that is neither 0 nor 1")
        return array.astype(bool) if kind == "b" else array

    def numbers(self, name: object, shape: tuple[int, ...] | None = None) -> NDArray[np.float64]:
        """The array of finite floats of this name, as float64; with `shape`, it must have that shape."""
        array = self.array(name, "f", shape).astype(np.float64)
        if not np.isfinite(array).all():
            raise Rejected(f"{str(name)[:80]!r} holds a number that is not finite")
        return array


def checked_index(value: Any, count: int) -> int:
    """The value if it is an integer from 0 to count − 1. Booleans are refused: numpy takes True as an index of all."""
    if type(value) is not int or not 0 <= value < count:
        raise Rejected(f"{str(value)[:80]!r} is not an index from 0 to {count - 1}")
    return value


def checked_word(value: Any, words: tuple[str, ...]) -> str:
    """The value if it is one of these words."""
    if not isinstance(value, str) or value not in words:
        raise Rejected(f"{str(value)[:80]!r} is not one of {', '.join(words)}")
    return value


def read(source: Path | bytes) -> File:
    """Read a certificate from a file or from its bytes; the header is checked before the arrays are read."""
    if isinstance(source, bytes):
        return _parse(io.BytesIO(source), len(source))
    with opened(source) as stream:
        return _parse(stream, os.fstat(stream.fileno()).st_size)


def opened(path: Path) -> BinaryIO:
    """Open a regular file for reading. Pipes and devices are refused, without waiting for the writer of a pipe."""
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    status = os.fstat(stream.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
        stream.close()
        raise Rejected(f"{os.fspath(path)!r} is not a plain file of at most {MOST_BYTES} bytes")
    return stream


def _parse(stream: BinaryIO, size: int) -> File:
    """The certificate in a stream of `size` bytes."""
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > min(size - 8, MOST_HEADER):
        raise Rejected("this is not a certificate, or it is truncated: its header is longer than the file")
    table = json.loads(stream.read(length), object_pairs_hook=_without_duplicates)
    header = json.loads(table.pop("__metadata__")["certificate"], object_pairs_hook=_without_duplicates)
    if header["format"] not in (FORMAT, *OLDER):
        said = str(header["format"])[:80]
        known = ", ".join((*OLDER, FORMAT))
        raise Rejected(f"the format is {said!r}; this checker reads {known}: a newer Vertex may read it")
    entries, end = sorted(table.items(), key=lambda pair: pair[1]["data_offsets"]), 0
    for name, entry in entries:
        itemsize, shape, (start, stop) = np.dtype(TYPES[entry["dtype"]]).itemsize, entry["shape"], entry["data_offsets"]
        if start != end or not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
            raise Rejected(f"{name[:80]!r} does not start where the array before it ends, or its shape is not valid")
        if len(shape) > 8 or math.prod(shape) * itemsize != stop - start:
            raise Rejected(f"{name[:80]!r} has {stop - start} bytes, which does not fit its shape")
        end = stop
    if end != size - 8 - length:
        raise Rejected("the arrays do not fill the file exactly: the file was truncated or extended")
    body = memoryview(stream.read(end))
    parts = {
        name: (body[slice(*entry["data_offsets"])], TYPES[entry["dtype"]], entry["shape"]) for name, entry in entries
    }
    return File(header, {name: np.frombuffer(part, kind).reshape(shape) for name, (part, kind, shape) in parts.items()})


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict; a name that occurs twice is refused, since readers would disagree about its value."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise Rejected("a name occurs twice in the header")
    return dict(pairs)
