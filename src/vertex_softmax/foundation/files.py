"""Reading untrusted files: regular files only, never more than a stated number of bytes, and no memory is allocated
for bytes that are not there. Writing is in outputs.py; `write_whole` is re-exported here.
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
"""The exceptions that a damaged, truncated or invalid gzip stream raises."""
_PART = 1 << 20


class Stream(Protocol):
    """A source of bytes that is read in parts, such as a file that is open for reading."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most `size`; empty at the end of the stream."""


def up_to(stream: Stream, limit: int) -> bytes:
    """The rest of the stream, but at most `limit` bytes; read in parts, so that a large limit allocates nothing."""
    parts: list[bytes] = []
    while limit > 0 and (part := stream.read(min(limit, _PART))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def regular(path: str | os.PathLike[str], extra_flags: int = 0) -> io.BufferedReader:
    """A regular file, open for reading. Anything else is an OSError, also a name that no file can have.

    Devices are refused because they may never end, pipes because opening one waits for its writer.
    `extra_flags` are added to those of os.open.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | extra_flags
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:  # a NUL, or half a surrogate pair
        raise OSError(errno.EINVAL, "no file can have this name") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_whole(path: Path, limit: int, remedy: str) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    `remedy` tells the user what to do if the file cannot be read; it ends the error message.
    """
    try:
        with regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            content = up_to(file, limit + 1) if size <= limit else b""
    except OSError as error:
        raise InvalidValueError(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    if max(size, len(content)) > limit:
        raise InvalidValueError(f"{path} has {max(size, len(content))} bytes; files up to {limit} bytes are read")
    return content


def decompressed(data: bytes, limit: int) -> bytes:
    """The first `limit` bytes of the content of gzip data; any other data unchanged. Raises one of DAMAGED."""
    if data[:2] != b"\x1f\x8b":
        return data
    with gzip.open(io.BytesIO(data)) as file:
        return up_to(file, limit)
