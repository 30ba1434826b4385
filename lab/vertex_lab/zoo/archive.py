"""The files of a tar archive that are asked for by their exact names, and nothing else: nothing is extracted to a path.

So absolute names, `..`, links, devices and owners in an archive mean nothing here: what does not have a wanted name is
passed over, and a wanted name that is not a regular file is an error. The stream is read once, a block of 512 bytes at
a time, never past `limit`. (Python's tarfile follows long chains of extension headers recursively and trusts the sizes
in them; the archives we read need none of these.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

from vertex_softmax.foundation.errors import InvalidValueError

BLOCK = 512
CHUNK = 1 << 20
REGULAR = (b"0", b"\0")
WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes


def members(stream: BinaryIO, wanted: Mapping[str, int], limit: int, where: str) -> dict[str, bytes]:
    """The content of each wanted member that is there; `wanted` gives the most bytes each may have."""
    found: dict[str, bytes] = {}
    while True:
        header = _exactly(stream, BLOCK, where)
        limit -= BLOCK
        if not any(header):
            break
        name, kind, size = _member(header, where)
        padded = -(-size // BLOCK) * BLOCK if kind not in WITHOUT_DATA else 0
        if padded > limit:
            raise InvalidValueError(f"{where} holds more than the official archive")
        limit -= padded
        if name not in wanted:
            _skip(stream, padded, where)
            continue
        if kind not in REGULAR or name in found:
            what = "twice" if name in found else "as something else than a regular file"
            raise InvalidValueError(f"{where} holds {name} {what}")
        if size > wanted[name]:
            raise InvalidValueError(f"{where}: {name} has {size:,} bytes; the official file has {wanted[name]:,}")
        found[name] = _exactly(stream, size, where)
        _skip(stream, padded - size, where)
    _end(stream, limit, where)
    return found


def _member(header: bytes, where: str) -> tuple[str, bytes, int]:
    """Name, kind and size, if the sum of the header's bytes, its own field taken as spaces, is what the field says."""
    if _octal(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise InvalidValueError(f"{where} is not a tar archive, or is damaged: a header does not have its checksum")
    size = _octal(header[124:136])
    if size is None:
        raise InvalidValueError(f"{where} is damaged: a member without a size")
    name = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("latin-1"), header[156:157], size


def _octal(field: bytes) -> int | None:
    digits = field.strip(b" \0")
    return int(digits, 8) if digits and all(digit in b"01234567" for digit in digits) else None


def _exactly(stream: BinaryIO, size: int, where: str) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise InvalidValueError(f"{where} is cut off inside the archive")
    return content


def _skip(stream: BinaryIO, size: int, where: str) -> None:
    while size > 0:
        size -= len(_exactly(stream, min(size, CHUNK), where))


def _end(stream: BinaryIO, limit: int, where: str) -> None:
    """Nothing but zeros follows the first block of zeros; reading on to the end also verifies the gzip checksum."""
    while block := stream.read(min(CHUNK, limit + 1)):
        limit -= len(block)
        if limit < 0 or any(block):
            raise InvalidValueError(f"{where} goes on after the end of the archive")
