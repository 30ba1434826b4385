"""Small made-up files in the formats of the data sets, and a registry that takes them for the official ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from vertex_lab.zoo.sources import SOURCES, Archive, File, Source

INSIDE = "cifar-10-batches-bin"


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def idx_files(part: str, count: int, seed: int) -> dict[str, bytes]:
    random = np.random.default_rng(seed)
    return {
        f"{part}-images-idx3-ubyte": idx(random.integers(0, 256, (count, 28, 28))),
        f"{part}-labels-idx1-ubyte": idx(random.integers(0, 10, count)),
    }


def cifar(count: int, seed: int) -> bytes:
    random = np.random.default_rng(seed)
    found = random.integers(0, 256, (count, 3073), dtype=np.uint8)
    found[:, 0] = random.integers(0, 10, count)
    return found.tobytes()


def mnist_files(seed: int = 0) -> dict[str, bytes]:
    return idx_files("train", 6, seed) | idx_files("t10k", 5, seed + 1)


def cifar_files(seed: int = 0) -> dict[str, bytes]:
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    return {name: cifar(3, seed + i) for i, name in enumerate(names)}


def tarred(entries: Iterable[tuple[tarfile.TarInfo | str, bytes]], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar archive; a name alone is a regular file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for entry, content in entries:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            if info.isreg():
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def cifar_archive(files: dict[str, bytes]) -> bytes:
    entries = [(f"{INSIDE}/{name}", content) for name, content in files.items()]
    return gzip.compress(tarred([(f"{INSIDE}/readme.html", b"<html>"), *entries]), mtime=0)


def write(folder: Path, files: dict[str, bytes], *, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return folder


def taken_for_official(source: Source, files: dict[str, bytes]) -> Source:
    """The source with these files in the place of the official ones."""

    def made(file: File) -> File:
        return File(file.name, len(files[file.name]), hashlib.sha256(files[file.name]).hexdigest())

    archive = source.archive and Archive(source.archive.name, source.archive.inside, "0" * 64)
    return replace(
        source, training=tuple(map(made, source.training)), test=tuple(map(made, source.test)), archive=archive
    )


def registered(monkeypatch, name: str, files: dict[str, bytes]) -> Source:
    source = taken_for_official(SOURCES[name], files)
    monkeypatch.setitem(SOURCES, name, source)
    return source
