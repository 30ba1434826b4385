"""Reading what nobody vouches for: regular files only, never more than a stated number of bytes, and no memory for
bytes that do not come. Writing is in outputs.py; `write_whole` is here too.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import zlib
from pathlib import Path
from typing import Protocol

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.outputs import write_whole

__all__ = ["DAMAGED", "Stream", "decompressed", "read_whole", "regular", "up_to", "write_whole"]

DAMAGED = (OSError, EOFError, zlib.error)
"""What a gzip stream raises that is none, or is damaged or cut off."""
_PART = 1 << 20


class Stream(Protocol):
    """Bytes that are read one part after the other."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""


def up_to(stream: Stream, most: int) -> bytes:
    """What is left in the stream, but at most so many bytes; a limit is not asked for at once."""
    parts: list[bytes] = []
    while most > 0 and (part := stream.read(min(most, _PART))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def regular(path: str | os.PathLike[str], more: int = 0) -> io.BufferedReader:
    """A regular file, open for reading; an OSError for anything else, such as a name that no file can have.

    Devices never end, and a pipe would wait for its writer. more: flags of os.open.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | more
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:  # a NUL, or half a surrogate pair
        raise OSError(errno.EINVAL, "no file can have this name") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_whole(path: Path, most: int, remedy: str) -> bytes:
    """A regular file of at most so many bytes; `remedy` ends the sentence of the error where it cannot be read."""
    try:
        with regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            found = up_to(file, most + 1) if size <= most else b""
    except OSError as error:
        raise InvalidValueError(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    if max(size, len(found)) > most:
        raise InvalidValueError(f"{path} has {max(size, len(found))} bytes; files up to {most} bytes are read")
    return found


def decompressed(data: bytes, most: int) -> bytes:
    """The data as it is, or if it is gzip at most so many bytes of what it holds; raises DAMAGED."""
    if data[:2] != b"\x1f\x8b":
        return data
    with gzip.open(io.BytesIO(data)) as file:
        return up_to(file, most)
