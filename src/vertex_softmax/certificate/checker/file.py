"""Reading a certificate: the layout of safetensors (8 bytes n, n bytes of JSON, numbers), without trusting any of it.

Every array is a view into the bytes of the file, so nothing is allocated that the file does not hold; lengths, types
and places are compared with the file's before anything is read, and every number that is used must be finite.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import stat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 1 << 33
MOST_HEADER = 1 << 26
TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "BOOL": "u1"}
FORMAT = "vertex-certificate-1"
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
        kinds = {"i": "i", "b": "u", "f": "f"}
        if found is None or found.dtype.kind != kinds[kind] or (shape is not None and found.shape != shape):
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


def read(source: Path | bytes) -> File:
    """The file, or bytes of one."""
    if isinstance(source, bytes):
        return _parse(source)
    with open(source, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
        about = os.fstat(stream.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
            raise Rejected(f"{os.fspath(source)!r} is not a plain file of at most {MOST_BYTES} bytes")
        return _parse(stream.read(about.st_size))


def _parse(data: bytes) -> File:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, MOST_HEADER):
        raise Rejected("this is no certificate, or it is cut short: its header is longer than the file")
    table = json.loads(data[8 : 8 + length])
    header = json.loads(table.pop("__metadata__")["certificate"])
    if header["format"] != FORMAT:
        raise Rejected(f"the header does not say {FORMAT}")
    body, end = memoryview(data)[8 + length :], 0
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in sorted(table.items(), key=lambda pair: pair[1]["data_offsets"]):
        kind, shape, (start, stop) = np.dtype(TYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if start != end or not all(type(n) is int and n >= 0 for n in (*shape, start, stop)) or stop > len(body):
            raise Rejected(f"{name[:80]!r} is not where the last array ends, or its shape is none")
        if len(shape) > 8 or math.prod(shape) * kind.itemsize != stop - start:
            raise Rejected(f"{name[:80]!r} has {stop - start} bytes; its shape needs others")
        arrays[name], end = np.frombuffer(body[start:stop], kind).reshape(shape), stop
    if end != len(body):
        raise Rejected("bytes at the end belong to no array: the file was cut short, or added to")
    return File(header, arrays)


def sha256(path: Path) -> str:
    """Of a file's content, decompressed if it is gzip's."""
    found = hashlib.sha256()
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else open(path, "rb") as stream:
        while part := stream.read(1 << 20):
            found.update(part)
    return found.hexdigest()
