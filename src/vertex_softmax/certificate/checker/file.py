"""Reading a certificate: the layout of safetensors (8 bytes n, n bytes of JSON, numbers), without trusting any of it.

Every tensor is a view into the bytes of the file, so nothing is allocated that the file does not hold; lengths, types
and places are compared with the file's before anything is read, and every number must be finite.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 1 << 33
MOST_HEADER = 1 << 26
MOST_DEPTH = 12
TYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "BOOL": np.dtype("bool"),
}
FORMAT = "vertex-certificate-1"


class Rejected(Exception):  # noqa: N818
    """Why a certificate is not accepted."""


class File(NamedTuple):
    """A certificate as read: its header, and its arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    def numbers(self, name: object, shape: tuple[int, ...] | None = None) -> NDArray[np.float64]:
        """An array of floats, of a shape."""
        found = self.array(name, "f", shape)
        wide = found.astype(np.float64)
        if not np.isfinite(wide).all():
            raise Rejected(f"{name} holds a number that is not finite")
        return wide

    def array(self, name: object, kind: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """An array of some kind of numbers (f, i or b), of a shape."""
        if not isinstance(name, str) or name not in self.arrays:
            raise Rejected(f"there is no array {name!r} in the file")
        found = self.arrays[name]
        if found.dtype.kind != kind or (shape is not None and found.shape != shape):
            raise Rejected(f"{name} is {found.dtype} {found.shape}; {kind} {shape} is needed")
        return found


def read(source: str | os.PathLike[str] | bytes) -> File:
    """The file, or bytes of one."""
    if isinstance(source, bytes):
        return _parse(source)
    try:
        with open(source, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MOST_BYTES:
                raise Rejected(f"the file has {size} bytes; at most {MOST_BYTES} are read")
            return _parse(_exactly(stream, size))
    except OSError as error:
        raise Rejected(f"the file cannot be read: {error}") from error


def _exactly(stream: BinaryIO, size: int) -> bytes:
    found = stream.read(size)
    if len(found) != size or stream.read(1):
        raise Rejected("the file changed while it was read, or is none")
    return found


def _parse(data: bytes) -> File:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, MOST_HEADER):
        raise Rejected("this is no certificate, or it is cut short: its header is longer than the file")
    try:
        table = json.loads(data[8 : 8 + length], parse_constant=_no_constant, object_pairs_hook=_once)
        header = json.loads(table.pop("__metadata__")["certificate"], parse_constant=_no_constant)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Rejected(f"the header is not that of a certificate: {error!r}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT or _depth(header) > MOST_DEPTH:
        raise Rejected(f"the header does not say {FORMAT}")
    body = memoryview(data)[8 + length :]
    arrays: dict[str, NDArray[Any]] = {}
    end = 0
    for name, entry in sorted(table.items(), key=lambda pair: _start(pair[1])):
        arrays[name], end = _array(name, entry, body, end)
    if end != len(body):
        raise Rejected(f"{len(body) - end} bytes at the end belong to no array: the file is cut short or added to")
    return File(header, arrays)


def _start(entry: Any) -> int:
    try:
        return int(entry["data_offsets"][0])
    except (KeyError, TypeError, IndexError, ValueError, OverflowError) as error:
        raise Rejected("an array has no place in the file") from error


def _array(name: str, entry: Any, body: memoryview, end: int) -> tuple[NDArray[Any], int]:
    """One array, which begins where the last one ended."""
    kind, shape, place = TYPES.get(str(entry.get("dtype"))), entry.get("shape"), entry["data_offsets"]
    fine = kind is not None and isinstance(shape, list) and len(shape) <= 8 and isinstance(place, list)
    fine = fine and len(place) == 2 and all(type(n) is int and n >= 0 for n in (*shape, *place))
    if not fine or kind is None or place[0] != end or place[1] > len(body):
        raise Rejected(f"the place, shape or type of {name[:80]!r} is not one")
    if math.prod(shape) * kind.itemsize != place[1] - end:
        raise Rejected(f"{name[:80]!r} has {place[1] - end} bytes; its shape {shape} needs others")
    part = body[end : place[1]]
    if kind == np.dtype("bool") and not set(part.tobytes()) <= {0, 1}:
        raise Rejected(f"{name[:80]!r} holds a bool that is neither 0 nor 1")
    return np.frombuffer(part, kind).reshape(shape), int(place[1])


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max((_depth(v) for v in (value.values() if isinstance(value, dict) else value)), default=0)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def sha256(path: str | os.PathLike[str]) -> str:
    """Of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as stream:
        while part := stream.read(1 << 20):
            found.update(part)
    return found.hexdigest()
