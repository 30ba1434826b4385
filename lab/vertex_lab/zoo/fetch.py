"""Downloading the official files: each is verified before it is written, and appears whole or not at all.

Verified means that the SHA-256 of the uncompressed content is that of the official file (`zoo/sources.py`), so it does
not matter who served it. What a folder already has is kept, and never overwritten.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from vertex_lab.zoo import places
from vertex_lab.zoo.sources import File, Source
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.foundation.reading import content_of, everything, packed, unpacked

SCHEMES = ("https", "http", "file")
CHUNK = 1 << 16
Progress = Callable[[str, int, int], None]  # what, KiB done, KiB in all (0: not known)


def fetch(
    source: Source,
    folder: Path,
    *,
    address: str | None = None,
    timeout: float = 30.0,
    progress: Progress = lambda _what, _done, _total: None,
) -> list[Path]:
    """Bring the files of the source that are not there into FOLDER/NAME; the paths written.

    `address` is the folder on the network that has them, if not the official one: https, http or file.
    """
    base = _checked(source.address if address is None else address)
    target = folder / source.name
    if source.archive is not None:
        if _complete(source, folder):
            return []
        raw = _download(base, source.archive.name, target, packed(source.unpacked), timeout, progress)
        _verify_archive(source, raw, base + source.archive.name)
        return [_written(target / source.archive.name, raw)]
    written = []
    for file in [file for file in source.files if not _there(target, file)]:
        name = f"{file.name}.gz"
        raw = _download(base, name, target, packed(file.size), timeout, progress)
        with unpacked(BytesIO(raw), base + name) as stream:
            content = everything(stream, file.size, base + name)
        _verify(file, content, base + name)
        written.append(_written(target / name, raw))
    return written


def _checked(address: str) -> str:
    try:
        found = urllib.parse.urlsplit(address)
    except ValueError as error:
        raise InvalidValueError(f"{address!r} is not an address ({error})") from error
    if found.scheme not in SCHEMES or not (found.netloc or found.path):
        raise InvalidValueError(
            f"{address!r} is not the address of a folder; it starts with https://, http:// or file://"
        )
    return address if address.endswith("/") else f"{address}/"


def _there(target: Path, file: File) -> bool:
    """The official file is there. Another in its place is an error: it is not ours to remove."""
    for path in (target / file.name, target / f"{file.name}.gz"):
        if os.path.lexists(path):
            try:
                _verify(file, content_of(path, file.size), str(path))
            except InvalidValueError as error:
                raise InvalidValueError(f"{error}; move it away to get the official file") from error
            return True
    return False


def _complete(source: Source, folder: Path) -> bool:
    """All official files are there. Others where the archive would go are an error: they would be read before it."""
    place = places.find(source, folder)
    if place is None:
        return False
    try:
        found = places.contents(place)
    except InvalidValueError as error:
        what = str(error)
    else:
        missing = [file.name for file in source.files if file.name not in found.data]
        if not found.unofficial and not missing:
            return True
        what = f"{', '.join(found.unofficial)} not official" if found.unofficial else f"{', '.join(missing)} missing"
    if place.folder == folder / source.name:
        raise InvalidValueError(f"{place.folder} has other files of {source.name} ({what}); move them away first")
    return False


def _download(base: str, name: str, target: Path, limit: int, timeout: float, progress: Progress) -> bytes:
    """At most `limit` bytes from the address."""
    url = base + urllib.parse.quote(name)
    request = urllib.request.Request(url, headers={"User-Agent": "vertex-softmax"})  # noqa: S310 - see _checked
    received = bytearray()
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310
            length = response.headers.get("Content-Length") or ""
            total = min(int(length), limit) if length.isascii() and length.isdigit() else 0
            while chunk := response.read(CHUNK):
                received += chunk
                if len(received) > limit:
                    raise InvalidValueError(f"{url} sends more than {limit:,} bytes: not the official file")
                progress(name, len(received) >> 10, total >> 10)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, InvalidValueError):
            raise
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise InvalidValueError(
            f"{url} cannot be read ({reason or type(error).__name__}); name a mirror with --url, "
            f"or get {name} in another way and put it at {target / name}"
        ) from error
    return bytes(received)


def _verify(file: File, content: bytes, where: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        sums = f"the SHA-256 of its content is {found[:12]}…, not {file.sha256[:12]}…"
        raise InvalidValueError(f"{where} is not the official {file.name}: {sums}")


def _verify_archive(source: Source, raw: bytes, where: str) -> None:
    """Byte for byte the published archive, or one with the same files in it."""
    if source.archive is not None and hashlib.sha256(raw).hexdigest() == source.archive.sha256:
        return
    found = places.archive_members(source, BytesIO(raw), where)
    for file in source.files:
        if file.name not in found:
            raise InvalidValueError(f"{where} has no {file.name} in it")
        _verify(file, found[file.name], f"{file.name} in {where}")


def _written(path: Path, raw: bytes) -> Path:
    try:
        return write_whole(path, raw)
    except OSError as error:
        raise InvalidValueError(f"{path} cannot be written ({error.strerror}); choose another --data-dir") from error
