"""Reading untrusted files: never more than a stated number of bytes, and every fault is a `VertexError`.

Each message names the file and what is wrong with it; the caller adds a remedy.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import regular, up_to


@contextmanager
def opened(path: Path, limit: int) -> Iterator[BufferedReader]:
    """A regular file of at most `limit` bytes, open for reading. A symbolic link, a device or a pipe is an error."""
    if path.is_symlink():
        raise InvalidValueError(f"{path} is a symbolic link, not a file")
    try:
        file = regular(path, getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        raise InvalidValueError(f"{path} cannot be read ({error.strerror})") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise InvalidValueError(f"{path} has {size:,} bytes; at most {limit:,} are expected")
        yield file


@contextmanager
def unpacked(stream: BinaryIO, where: str) -> Iterator[BinaryIO]:
    """The decompressed content of a gzip stream, as a stream; `where` names the source in errors.

    The checksum is verified when the end is reached; a damaged stream raises a `VertexError`.
    """
    try:
        with gzip.GzipFile(fileobj=stream, mode="rb") as content:
            yield cast(BinaryIO, content)
    except EOFError as error:
        raise InvalidValueError(f"{where} is cut off: the gzip stream does not end") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InvalidValueError(f"{where} is damaged or not gzip ({error})") from error
    except OSError as error:
        raise InvalidValueError(f"{where} cannot be read ({error})") from error


def packed(size: int) -> int:
    """An upper bound on the length of a gzip file with `size` bytes of content.

    Even incompressible content grows by only 5 bytes per stored block, and by a short header.
    """
    return size + size // 100 + 65_536


def everything(stream: BinaryIO, limit: int, where: str) -> bytes:
    """The rest of the stream, at most `limit` bytes; an error if there is more. `where` names the source in errors.

    One byte more than the limit is requested, so that the end of a gzip stream is reached and its checksum verified.
    """
    content = up_to(stream, limit + 1)
    if len(content) > limit:
        raise InvalidValueError(f"{where} holds more than the {limit:,} bytes of the official file")
    return content


def content_of(path: Path, limit: int) -> bytes:
    """The content, at most `limit` bytes, of a file; decompressed if its name ends in .gz."""
    if path.suffix != ".gz":
        with opened(path, limit) as file:
            try:
                return everything(file, limit, str(path))
            except OSError as error:
                raise InvalidValueError(f"{path} cannot be read ({error.strerror})") from error
    with opened(path, packed(limit)) as file, unpacked(file, str(path)) as content:
        return everything(content, limit, str(path))
