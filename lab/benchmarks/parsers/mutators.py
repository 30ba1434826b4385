"""Changes that keep an input's outer form, so that what lies behind the first check is reached too.

A mutator is a function of the bytes, a random generator and a function that changes bytes blindly (the fuzzer's own).
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import math
import random
import re
import zipfile
from collections.abc import Callable
from typing import Any

from targets import joined, parts, unzipped

Blind = Callable[[bytes], bytes]
Mutator = Callable[[bytes, random.Random, Blind], bytes]

NUMBERS: tuple[Any, ...] = (0, 1, -1, 2, 3, 7, 8, 0.5, -0.0, 1e-300, 1e300, 1e308, -1e308, 255, 256, 65535, 1 << 16)
NUMBERS += ((1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, -(1 << 63), 10**400)
NUMBERS += (math.nan, math.inf, -math.inf)
TEXTS = ("", "0", "x", "a/b", "../x", "/etc/passwd", "\x00", "\udc80", "é", "1e5", "nan", "<script>", "A" * 300, "true")


def plain(rng: random.Random) -> Any:
    """Some JSON value that may be where another is expected."""
    pick = rng.random()
    if pick < 0.5:
        return rng.choice(NUMBERS)
    if pick < 0.75:
        return rng.choice(TEXTS)
    return rng.choice((None, True, False, [], {}, [[]], [{}], {"": 0}, [0] * 9, {"a": {"b": [1]}}))


def change(value: Any, rng: random.Random, words: tuple[str, ...] = ()) -> Any:
    """A copy with one place changed."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        node = stack.pop()
        items = (
            list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else ()
        )
        for key, inner in items:
            places.append((node, key))
            if isinstance(inner, dict | list):
                stack.append(inner)
    if not places or rng.random() < 0.02:
        return plain(rng)
    node, key = rng.choice(places)
    kind = rng.randrange(9)
    if kind == 0:
        del node[key]
    elif kind == 1:
        node[key] = plain(rng)
    elif kind == 2:  # another value of the same file
        other, at = rng.choice(places)
        node[key] = copy.deepcopy(other[at])
    elif kind == 3 and isinstance(node, list):
        node[key:key] = [copy.deepcopy(node[key])] * rng.choice((1, 2, 50))
    elif kind == 3:
        node[rng.choice((*words, *TEXTS))] = copy.deepcopy(node[key])
    elif kind == 4 and isinstance(node[key], int | float) and not isinstance(node[key], bool):
        node[key] = rng.choice((node[key] + 1, node[key] - 1, -node[key], node[key] * 2, node[key] + 0.5))
    elif kind == 5:
        node[key] = [node[key]]
    elif kind == 6:
        inner: Any = node[key]
        for _ in range(rng.choice((3, 50, 2000))):
            inner = [inner]
        node[key] = inner
    elif kind == 7 and words:
        node[key] = rng.choice(words)
    else:
        node[key] = rng.choice(NUMBERS)
    return value


def dumped(value: Any) -> bytes:
    """JSON with NaN and infinity as Python writes them; what nests too deeply is written by hand."""
    try:
        return json.dumps(value).encode(errors="replace")
    except RecursionError:
        return b"[" * 3000 + b"]" * 3000


def json_(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """One JSON value."""
    if rng.random() < 0.1:
        return blind(data)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return blind(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = change(value, rng)
    text = dumped(value)
    if rng.random() < 0.03:
        text = text.replace(b"1", b"1" * rng.choice((400, 5000)), 1)
    return text


def lines(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """Lines of JSON."""
    found = data.split(b"\n")
    at = rng.randrange(len(found))
    pick = rng.random()
    if pick < 0.75:
        found[at] = json_(found[at], rng, blind)
    elif pick < 0.85:
        found.insert(at, rng.choice(found))
    elif pick < 0.95:
        del found[at]
    else:
        return blind(data)
    return b"\n".join(found)


def both(first: Mutator, second: Mutator) -> Mutator:
    """An input of two files: one of them is changed."""

    def mutate(data: bytes, rng: random.Random, blind: Blind) -> bytes:
        a, b = parts(data)
        return joined(first(a, rng, blind), b) if rng.random() < 0.6 else joined(a, second(b, rng, blind))

    return mutate


# Text ----------------------------------------------------------------------------------------------------------------

TOKEN = re.compile(rb"[()]|[^\s()]+|\s+")
DICTIONARY = tuple(
    b"""( ) assert and or not => <= >= < > = != + - * / declare-const declare-fun Real X_0 X_1 Y_0 Y_1 X_999999999
0 1 -1 0.5 .5 1. 1e5 1e-5 1e1500 1e99999999999 -0 nan inf true false set-logic set-info check-sat () " | ; \0
vnnlib-version <2.0> <1.0> declare-network declare-input declare-output declare-hidden f x y real float32 float64 int8
[1] [2] [1,2] [] [0] [999999999] [1,1,1,1,1,1,1,1,1] x[0] y[0] x[5] y[1] x[0,0] isomorphic-to equal-to ==""".split()
)


def tokens(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """Words of a specification, moved, repeated, exchanged, nested."""
    if rng.random() < 0.1:
        return blind(data)
    found = TOKEN.findall(data) or [b"("]
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at, other = rng.randrange(len(found)), rng.randrange(len(found))
        kind = rng.randrange(8)
        if kind == 0:
            del found[at]
            found = found or [b")"]
        elif kind == 1:
            found.insert(at, rng.choice(DICTIONARY))
        elif kind == 2:
            found[at] = rng.choice(DICTIONARY)
        elif kind == 3:
            found[at], found[other] = found[other], found[at]
        elif kind == 4:
            low, high = sorted((at, other))
            found[at:at] = found[low : min(high, low + 200)] * rng.choice((1, 1, 2, 10))
        elif kind == 5:
            depth = rng.choice((2, 90, 110, 3000))
            found[at:at] = [b"(", rng.choice((b"and", b"or", b"not", b"-", b"+")), b" "] * depth
            if rng.random() < 0.7:
                found[other:other] = [b")"] * depth
        elif kind == 6:
            found[at] = b"%d%s" % (rng.choice((1, 9, 10**30)), rng.choice((b"", b"." + b"3" * 200, b"e300", b"e-400")))
        else:
            found[at] = found[at] + rng.choice((b"0", b"_", b"]", b"[", b".5", b'"'))
    return b" ".join(found) if rng.random() < 0.3 else b"".join(found)


def rows(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """Lines of values that commas separate."""
    found = [line.split(b",") for line in data.split(b"\n")]
    words = (
        b"",
        b"model.onnx",
        b"property.vnnlib",
        b"..",
        b"/dev/zero",
        b'"',
        b'"a\nb"',
        b"nan",
        b"1e400",
        b"-1",
        b"60",
    )
    words += (b"x" * 200_000, b"\0", b"\xff", b"\xef\xbb\xbf", b" 60 ", b"time", b"model.onnx/")
    for _ in range(rng.choice((1, 2, 3))):
        line = rng.choice(found)
        at = rng.randrange(len(line)) if line else 0
        kind = rng.randrange(5)
        if kind == 0:
            line[at : at + 1] = [rng.choice(words)]
        elif kind == 1:
            line.insert(at, rng.choice(words))
        elif kind == 2:
            del line[at : at + 1]
        elif kind == 3:
            found.append(list(line))
        else:
            return blind(data)
    return b"\n".join(b",".join(line) for line in found)


# Binary --------------------------------------------------------------------------------------------------------------


def packed(inner: Mutator) -> Mutator:
    """What a gzip file holds is changed, or the file."""

    def mutate(data: bytes, rng: random.Random, blind: Blind) -> bytes:
        if rng.random() < 0.1:
            return blind(data)
        changed = inner(unzipped(data), rng, blind)
        pick = rng.random()
        if pick < 0.003:
            changed += bytes(32 << 20)
        return gzip.compress(changed, 1, mtime=0) if pick < 0.7 else changed

    return mutate


def tar(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """A header's field is changed, and its checksum made right."""
    found = bytearray(data)
    at = 512 * rng.randrange(max(1, len(found) // 512))
    if rng.random() < 0.2 or len(found) < at + 512:
        return blind(data)
    fields = ((0, 100), (100, 8), (124, 12), (156, 1), (157, 100), (257, 8), (345, 155))
    start, size = rng.choice(fields)
    values = (
        b"0" * 11,
        b"7" * 11,
        b"\x80" + b"\xff" * 10,
        b"../../etc/x",
        b"5",
        b"1",
        b"2",
        b"L",
        b"x",
        b"K",
        b"",
        b"-1",
    )
    values += (b"cifar-10-batches-bin/test_batch.bin", b"00000006001", b"00000001000", b" ", b"8" * 11, b"ustar")
    found[at + start : at + start + size] = rng.choice(values).ljust(size, b"\0")[:size]
    if rng.random() < 0.9:
        found[at + 148 : at + 156] = b" " * 8
        found[at + 148 : at + 156] = b"%06o\0 " % sum(found[at : at + 512])
    return bytes(found)


def big_endian(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """The sizes in an IDX header."""
    if rng.random() < 0.5 or len(data) < 8:
        return blind(data)
    found = bytearray(data)
    at = rng.choice((0, 2, 3, 4, 8, 12))
    values = (0, 1, 2, 8, 9, 28, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 10_000, 1 << 16)
    found[at : at + (1 if at < 4 else 4)] = rng.choice(values).to_bytes(4, "big")[3 if at < 4 else 0 :]
    return bytes(found)


def zip_(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """Members of an .npz file: names, headers, contents, methods; now and then one that unpacks to much more."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.open(info).read(1 << 20)) for info in archive.infolist()]
    except Exception:  # noqa: BLE001 (it is a fuzzer: whatever zipfile says of a spoilt file)
        return blind(data)
    if rng.random() < 0.15 or not members:
        return blind(data)
    at = rng.randrange(len(members))
    name, content = members[at]
    kind = rng.randrange(6)
    if kind == 0:
        name = rng.choice(("inputs.npy", "labels.npy", "images.npy", "../x.npy", "x.npy", "y.npy", ""))
    elif kind in (1, 2, 3):
        content = npy(content, rng, blind)
    elif kind == 4:
        members.append((name, content))
    else:
        content += bytes(rng.choice((1, 8, 1 << 16, 1 << 24)))
    members[at] = (name, content)
    stream = io.BytesIO()
    with zipfile.ZipFile(
        stream, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    ) as made:
        for name, content in members:
            made.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED if len(content) > 1 << 20 else None)
    return stream.getvalue()


HEADERS = (
    "'<f8'",
    "'<f4'",
    "'<i8'",
    "'|u1'",
    "'|O'",
    "'<M8[s]'",
    "'|V8'",
    "'<U4'",
    "'>i4'",
    "'<c16'",
    "'<f2'",
    "'|b1'",
)
SHAPES = ("(2, 4)", "(2,)", "()", "(0, 4)", "(-1, 4)", "(4611686018427387904, 4)", "(2, 4, 0)", "(1e3,)", "('a',)")
SHAPES += ("(2, 2, 2)", "(9" + "9" * 300 + ",)", "(True, 2)", "(2, " * 300 + "1" + ")" * 300, "(" * 9000)


def npy(data: bytes, rng: random.Random, blind: Blind) -> bytes:
    """The header of a .npy file: its type, its shape, its version."""
    if rng.random() < 0.2 or data[:6] != b"\x93NUMPY":
        return blind(data)
    length = int.from_bytes(data[8:10], "little")
    head, body = data[10 : 10 + length].decode("latin-1"), data[10 + length :]
    if rng.random() < 0.4:
        head = re.sub(r"'descr': [^,]*,", lambda _: f"'descr': {rng.choice(HEADERS)},", head, count=1)
    elif rng.random() < 0.6:
        head = re.sub(r"'shape': \([^)]*\)", lambda _: f"'shape': {rng.choice(SHAPES)}", head, count=1)
    else:
        head = blind(head.encode("latin-1")).decode("latin-1")
    text = head.encode("latin-1")[:60_000]
    version = rng.choice((1, 1, 1, 2, 3, 9))
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + body


def headed(inner: str = "") -> Mutator:
    """Safetensors: 8 bytes of length, JSON, numbers. `inner`: JSON inside the metadata that is changed too."""

    def mutate(data: bytes, rng: random.Random, blind: Blind) -> bytes:
        length = int.from_bytes(data[:8], "little")
        try:
            head = json.loads(data[8 : 8 + length])
            body = data[8 + length :]
            held = json.loads(head["__metadata__"][inner]) if inner else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return blind(data)
        pick = rng.random()
        if pick < 0.1:
            return blind(data)
        if inner and pick < 0.75:
            words = tuple(name for name in head if name != "__metadata__")[:200]
            for _ in range(rng.choice((1, 1, 2))):
                held = change(held, rng, words)
            head["__metadata__"][inner] = dumped(held).decode()
        elif pick < 0.9:
            body = _numbers(body, rng)
        else:
            head = change(head, rng, ("F64", "F32", "I64", "BOOL", "F16", "BF16", "U8"))
        text = dumped(head)
        return (len(text) if rng.random() < 0.98 else rng.choice((0, 1 << 62))).to_bytes(8, "little") + text + body

    return mutate


def _numbers(body: bytes, rng: random.Random) -> bytes:
    """Eight bytes of the numbers, or their end."""
    import struct

    found = bytearray(body)
    if len(found) < 8 or rng.random() < 0.1:
        return bytes(found[: rng.randrange(len(found) + 1)])
    for _ in range(rng.choice((1, 2, 8))):
        at = 8 * rng.randrange(len(found) // 8)
        if rng.random() < 0.5:
            value = rng.choice([x for x in NUMBERS if isinstance(x, float)])
            found[at : at + 8] = struct.pack("<d", value)
        else:
            value = rng.choice((0, 1, -1, 5, 1 << 40, (1 << 63) - 1))
            found[at : at + 8] = struct.pack("<q", value)
    return bytes(found)
