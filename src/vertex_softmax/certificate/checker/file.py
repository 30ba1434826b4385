"""Reading a certificate: the layout of safetensors (8 bytes n, n bytes of JSON, numbers), without trusting any of it.

Every array is a view into the bytes of the file, so nothing is allocated that the file does not hold; lengths, types
and places are compared with the file's before anything is read, and every number that is used must be finite.
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
MOST_HEADER = 1 << 26
TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "BOOL": "u1"}
FORMAT = "vertex-certificate-2"
Path = str | os.PathLike[str]


class Rejected(Exception):  # noqa: N818
    """Why a certificate is not accepted."""


class File(NamedTuple):
    """A certificate as read: its header, and its arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    def array(self, name: object, kind: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """An array of integers (i) or truth values (b), of a shape if one is given."""
        found = self.arrays.get(name) if isinstance(name, str) else None
        kinds = {"i": "i", "b": "ub", "f": "f"}
        if found is None or found.dtype.kind not in kinds[kind] or (shape is not None and found.shape != shape):
            has = "nothing" if found is None else f"{found.dtype} {found.shape}"
            raise Rejected(f"the array {str(name)[:80]!r} is {has}; {kind} {shape} is needed")
        if kind == "b" and not (found <= 1).all():
            raise Rejected(f"{str(name)[:80]!r} holds a truth value that is neither 0 nor 1")
        return found.astype(bool) if kind == "b" else found

    def numbers(self, name: object, shape: tuple[int, ...] | None = None) -> NDArray[np.float64]:
        """An array of finite floats."""
        found = self.array(name, "f", shape).astype(np.float64)
        if not np.isfinite(found).all():
            raise Rejected(f"{str(name)[:80]!r} holds a number that is not finite")
        return found


def place(value: Any, count: int) -> int:
    """One of 0 … count − 1: an integer and nothing that only counts as one (numpy takes true as an index of all)."""
    if type(value) is not int or not 0 <= value < count:
        raise Rejected(f"{str(value)[:80]!r} is not one of {count} places")
    return value


def read(source: Path | bytes) -> File:
    """The file, or bytes of one; the header is looked at before the rest is read."""
    if isinstance(source, bytes):
        return _parse(io.BytesIO(source), len(source))
    with opened(source) as stream:
        return _parse(stream, os.fstat(stream.fileno()).st_size)


def opened(path: Path) -> BinaryIO:
    """A plain file, open; a pipe's writer is not waited for, and a device is not read."""
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    about = os.fstat(stream.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
        stream.close()
        raise Rejected(f"{os.fspath(path)!r} is not a plain file of at most {MOST_BYTES} bytes")
    return stream


def _parse(stream: BinaryIO, size: int) -> File:
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > min(size - 8, MOST_HEADER):
        raise Rejected("this is no certificate, or it is cut short: its header is longer than the file")
    table = json.loads(stream.read(length), object_pairs_hook=_once)
    header = json.loads(table.pop("__metadata__")["certificate"], object_pairs_hook=_once)
    if header["format"] != FORMAT:
        raise Rejected(f"the header does not say {FORMAT}")
    entries, end = sorted(table.items(), key=lambda pair: pair[1]["data_offsets"]), 0
    for name, entry in entries:
        itemsize, shape, (start, stop) = np.dtype(TYPES[entry["dtype"]]).itemsize, entry["shape"], entry["data_offsets"]
        if start != end or not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
            raise Rejected(f"{name[:80]!r} is not where the last array ends, or its shape is none")
        if len(shape) > 8 or math.prod(shape) * itemsize != stop - start:
            raise Rejected(f"{name[:80]!r} has {stop - start} bytes; its shape needs others")
        end = stop
    if end != size - 8 - length:
        raise Rejected("the arrays are not as long as the file: it was cut short, or added to")
    body = memoryview(stream.read(end))
    parts = {
        name: (body[slice(*entry["data_offsets"])], TYPES[entry["dtype"]], entry["shape"]) for name, entry in entries
    }
    return File(header, {name: np.frombuffer(part, kind).reshape(shape) for name, (part, kind, shape) in parts.items()})


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise Rejected("a name occurs twice in the header")
    return dict(pairs)
