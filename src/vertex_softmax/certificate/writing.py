"""A certificate as bytes: the header and the arrays of several parts, each array stored once; and reading it back.

Invariant: the file that is returned says what the provers have proved, number by number: it is read again and compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.certificate.checker.file import FORMAT, read
from vertex_softmax.certificate.lowering import Lowered
from vertex_softmax.foundation.errors import InternalError

Arrays = Mapping[str, NDArray[Any]]


class WrittenPart(NamedTuple):
    """A part of a certificate: its header, in which arrays are named, and the arrays."""

    header: dict[str, Any]
    arrays: Arrays


def written(network: Lowered, parts: list[WrittenPart], about: dict[str, Any], claimed: float) -> bytes:
    """One file of several parts, of one network; `about` goes into its header, and the margin that is claimed."""
    from safetensors.numpy import save

    store = _Store()
    graph = [{**entry, "arrays": store.named(entry["arrays"], network.arrays)} for entry in network.entries]
    headers = [store.named(part.header, part.arrays, f"part.{k}.") for k, part in enumerate(parts)]
    header = {"format": FORMAT, **about, "claimed": claimed, "graph": graph, "parts": headers}
    data = bytes(save(store.arrays, metadata={"certificate": json.dumps(header)}))
    _compare(data, network, parts)
    return data


class _Store:
    """Arrays by name; two that are the same are stored once, under the name of the first."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self._names: dict[tuple[object, ...], str] = {}

    def named(self, value: Any, arrays: Arrays, prefix: str = "") -> Any:
        """The same header with the names of the arrays as they are stored: longer by a prefix, or another's."""
        if isinstance(value, dict):
            return {key: self.named(item, arrays, prefix) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.named(item, arrays, prefix) for item in value]
        return self._add(prefix + value, arrays[value]) if isinstance(value, str) and value in arrays else value

    def _add(self, name: str, array: NDArray[Any]) -> str:
        small = compact(array)
        key = (small.dtype.str, small.shape, hashlib.sha256(small.tobytes()).digest())
        if key not in self._names:
            self._names[key] = name
            self.arrays[name] = small
        return self._names[key]


def compact(x: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in the fewest bytes that hold each of them exactly."""
    kinds: tuple[type[np.generic], ...] = ()
    if x.dtype.kind == "f":
        kinds = (np.float16, np.float32)
    elif x.dtype.kind == "i":
        kinds = (np.int16, np.int32)
    for kind in kinds:
        if np.dtype(kind).itemsize < x.dtype.itemsize:
            with np.errstate(over="ignore", under="ignore"):
                small = x.astype(kind)
            if np.array_equal(small.astype(x.dtype), x):
                return np.ascontiguousarray(small).reshape(x.shape)
    return np.ascontiguousarray(x).reshape(x.shape)  # it makes a number an array of one


def _compare(data: bytes, network: Lowered, parts: list[WrittenPart]) -> None:
    """Raise unless the file, read again, says the same."""
    file = read(data)
    pairs: list[tuple[Any, Any, Arrays]] = [(file.header["graph"], network.entries, network.arrays)]
    pairs += [(own, part.header, part.arrays) for own, part in zip(file.header["parts"], parts, strict=True)]
    for theirs, ours, arrays in pairs:
        if not _same(theirs, ours, file.arrays, arrays):
            raise InternalError("a certificate does not say what was proved")


def _same(theirs: Any, ours: Any, stored: Arrays, arrays: Arrays) -> bool:
    """Whether two headers are the same, but for the names of arrays that are the same."""
    if isinstance(ours, dict):
        return theirs.keys() == ours.keys() and all(_same(theirs[k], ours[k], stored, arrays) for k in ours)
    if isinstance(ours, list | tuple):
        return len(theirs) == len(ours) and all(_same(*pair, stored, arrays) for pair in zip(theirs, ours, strict=True))
    if isinstance(ours, str) and ours in arrays:
        return theirs in stored and np.array_equal(stored[theirs], arrays[ours])
    return bool(theirs == ours)
