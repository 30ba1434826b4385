"""The identity of a model file: one SHA-256 of everything the model computes with, including its external data files.

Invariant: two ONNX files with the same identity have the same bytes, decompressed, and so have their external data
files, each under the name by which the model refers to it. The identity of a model without external data is the SHA-256
of its bytes, as `sha256sum` prints it; else it is the SHA-256 of the JSON text

    ["vertex-model-1",SHA-256 of the model,[[location,SHA-256 of that file],…]]

without spaces, in ASCII, sorted by location. Locations are found by a walk over the protobuf bytes, so that the checker
does not need the package onnx; WAYS lists every field of ONNX's schema that can contain a tensor.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pathlib
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO, cast

from .file import MOST_BYTES, Path, Rejected, opened

FORMAT = "vertex-model-1"
MOST_MODEL = 1 << 31
"""The largest model in bytes, without its external data: protobuf's own limit."""
MOST_FIELDS = 1 << 25
"""The most protobuf fields that are visited in a model with external data."""
MOST_DEPTH = 100
"""The deepest nesting of protobuf messages: protobuf's own limit."""
WAYS: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {13: "StringStringEntryProto"},
}
"""For each message, its fields that lead to a tensor's external data, by their numbers in onnx.proto."""
KEY, VALUE = 1, 2
"""Field numbers of StringStringEntryProto."""
VARINT, EIGHT, LENGTH, FOUR = 0, 1, 2, 5
"""Wire types of protobuf; the two types for groups do not occur in ONNX."""


def locations(data: bytes) -> tuple[str, ...]:
    """The names of all external data files of the model with these bytes, sorted, without repetition."""
    if len(data) > MOST_MODEL:
        raise Rejected(f"the model has more than {MOST_MODEL} bytes")
    if b"location" not in data:
        return ()
    found: set[str] = set()
    left = MOST_FIELDS
    stack = [("ModelProto", 0, len(data), 0)]
    while stack:
        kind, start, end, depth = stack.pop()
        if depth > MOST_DEPTH:
            raise Rejected(f"the model's messages nest deeper than {MOST_DEPTH}")
        entry = {KEY: b"", VALUE: b""}
        for number, wire, begin, stop in _fields(data, start, end):
            left -= 1
            if left < 0:
                raise Rejected(f"the model has more than {MOST_FIELDS} fields, and keeps numbers in other files")
            if wire != LENGTH:
                continue
            if kind == "StringStringEntryProto":
                if number in entry:
                    entry[number] = data[begin:stop]
            elif number in WAYS[kind]:
                stack.append((WAYS[kind][number], begin, stop, depth + 1))
        if entry[KEY] == b"location":
            try:
                found.add(entry[VALUE].decode("utf-8"))
            except UnicodeDecodeError as error:
                raise Rejected("the model keeps numbers in a file whose name is not UTF-8 text") from error
    return tuple(sorted(found))


def _fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """For each field of the message data[position:end]: its number, wire type, and the start and stop of its value."""
    while position < end:
        tag, position = _varint(data, position, end)
        number, wire, stop = tag >> 3, tag & 7, position
        if wire == VARINT:
            _, stop = _varint(data, position, end)
        elif wire == EIGHT:
            stop = position + 8
        elif wire == FOUR:
            stop = position + 4
        elif wire == LENGTH:
            length, position = _varint(data, position, end)
            stop = position + length
        else:
            raise Rejected("this is not an ONNX model: a field of its protobuf has a type that ONNX does not use")
        if stop > end or not 0 < number < 1 << 29:
            raise Rejected("this is not an ONNX model, or it is damaged: a field ends after the message it is in")
        yield number, wire, position, stop
        position = stop


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The variable-length integer (at most 64 bits) at a position, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & ((1 << 64) - 1), position
    raise Rejected("this is not an ONNX model, or it is damaged: an integer of its protobuf does not end")


def identity(data: bytes, files: Mapping[str, bytes | str]) -> str:
    """The identity of a model from its decompressed bytes.

    `files` maps each name that `locations` returns to the content of that file, or to its SHA-256.
    """
    own = hashlib.sha256(data).hexdigest()
    names = locations(data)
    if not names:
        return own
    if missing := [name for name in names if name not in files]:
        raise Rejected(f"the model keeps numbers in {missing[0][:200]!r}, which was not given")
    each = [[name, _hash(files[name])] for name in names]
    text = json.dumps([FORMAT, own, each], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _hash(content: bytes | str) -> str:
    return content if isinstance(content, str) else hashlib.sha256(content).hexdigest()


def identity_of_file(path: Path) -> str:
    """The identity of a model file, compressed by gzip or not, with its external data files; each file is read once."""
    data = _content(path)
    folder = pathlib.Path(path).parent
    return identity(data, {name: _hash_of_file(beside(folder, name)) for name in locations(data)})


def beside(folder: pathlib.Path, location: str) -> pathlib.Path:
    """The external data file that a model in this folder names: a regular file inside it, after links are resolved."""
    try:
        home = folder.resolve()
        path = (home / location).resolve()
        if path.is_relative_to(home) and path.is_file():
            return path
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, or a cycle of links
        pass
    raise Rejected(f"the model keeps numbers in {location[:200]!r}, which is not a file inside its folder {folder}")


def _content(path: Path) -> bytes:
    """The bytes of a model file, decompressed if it is compressed by gzip."""
    parts, left = [], MOST_MODEL
    with opened(path) as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            with cast(BinaryIO, gzip.open(raw)) if packed else raw as stream:
                while part := stream.read(1 << 20):
                    parts.append(part)
                    left -= len(part)
                    if left < 0:
                        raise Rejected(f"{os.fspath(path)!r} has more than {MOST_MODEL} bytes")
        except (OSError, EOFError, zlib.error) as error:
            raise Rejected(f"{os.fspath(path)!r} cannot be read: {error}") from error
    return b"".join(parts)


def _hash_of_file(path: pathlib.Path) -> str:
    digest, left = hashlib.sha256(), MOST_BYTES
    with opened(path) as stream:
        while part := stream.read(1 << 20):
            digest.update(part)
            left -= len(part)
            if left < 0:
                raise Rejected(f"{os.fspath(path)!r} has more than {MOST_BYTES} bytes")
    return digest.hexdigest()
