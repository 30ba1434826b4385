"""Which files of a data set a folder holds, and what is in them: nothing is called official that is not.

FOLDER/mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]         FOLDER/fashion-mnist/ likewise
FOLDER/cifar10/data_batch_{1…5}.bin[.gz], test_batch.bin[.gz]          or cifar-10-binary.tar.gz there
A FOLDER that has the files itself will do where it is clear which data set they belong to.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vertex_lab.zoo.archive import members
from vertex_lab.zoo.sources import SOURCES, File, Source
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.reading import content_of, opened, packed, unpacked

PICKLED = ("cifar-10-python.tar.gz", "cifar-10-batches-py", "data_batch_1", "test_batch")


@dataclass(frozen=True)
class Place:
    """Where the files of a source are: each by its name without .gz, or all in the archive."""

    source: Source
    folder: Path
    files: dict[str, Path]
    archive: Path | None
    certain: bool  # no other data set has files of these names, or the folder's name says whose they are

    def where(self, file: File) -> str:
        """How messages name the file."""
        if self.archive is not None:
            return f"{file.name} in {self.archive}"
        return str(self.files.get(file.name, self.folder / f"{file.name}[.gz]"))


@dataclass(frozen=True)
class Contents:
    """The uncompressed content of every file found, its SHA-256, and the names of those that are not official."""

    place: Place
    data: dict[str, bytes]
    checksums: dict[str, str]
    unofficial: tuple[str, ...]


def default_folder() -> Path:
    """Where data is looked for unless told: the environment variable VERTEX_DATA, or `data` in the current folder."""
    return Path(os.environ.get("VERTEX_DATA") or "data")


def remedy(source: Source, folder: Path) -> str:
    """What to do about a file that is missing or wrong."""
    return f"`vertex data fetch {source.name} --data-dir {folder}` gets the official files from {source.address}"


def find(source: Source, folder: Path) -> Place | None:
    """The first place in the folder with any file of the source, else with the archive; `None` if there is none."""
    for name in source.places:
        place = folder / name
        files = {file.name: path for file in source.files if (path := _path(place, file)) is not None}
        archive = place / source.archive.name if source.archive is not None and not files else None
        if files or (archive is not None and os.path.lexists(archive)):
            certain = source.format == "cifar" or name != "." or folder.resolve().name == source.name
            return Place(source, place, files, archive, certain)
    return None


def found(source: Source, folder: Path) -> Place:
    """As `find`; that nothing is there is an error which says what was looked for."""
    place = find(source, folder)
    if place is None:
        raise InvalidValueError(absent(source, folder))
    return place


def absent(source: Source, folder: Path) -> str:
    """Why nothing was found: there is nothing, or a version that is not read."""
    for place in source.places if source.format == "cifar" else ():
        for name in PICKLED:
            if os.path.lexists(folder / place / name):
                return (
                    f"{folder / place / name} is the Python version of CIFAR-10, which is not read: unpickling runs "
                    f"whatever is in it. Get the binary version"
                )
    wanted = ", ".join(f"{file.name}[.gz]" for file in source.test)
    archive = f" or {source.archive.name}" if source.archive is not None else ""
    return f"{folder} has no file of {source.name}; {folder / source.places[0]} needs {wanted}{archive}"


def contents(place: Place) -> Contents:
    """Read what was found, no further than the official sizes."""
    source = place.source
    if place.archive is not None:
        data = _archived(source, place.archive)
    else:
        data = {
            file.name: content_of(place.files[file.name], file.size)
            for file in source.files
            if file.name in place.files
        }
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}
    unofficial = differing(source, checksums)
    if unofficial and place.archive is not None and _is_published(source, place.archive):
        unofficial = ()
    for other in SOURCES.values():
        for file in other.files:
            if other is not source and file.name in unofficial and checksums[file.name] == file.sha256:
                raise InvalidValueError(f"{place.where(file)} is a file of {other.name}, not of {source.name}")
    if unofficial and not place.certain:
        raise InvalidValueError(
            f"{place.folder} has files with the names of {source.name} and not its content; other data sets have "
            f"the same names: put the files in a folder {source.name} if that is what they are"
        )
    return Contents(place, data, checksums, unofficial)


def differing(source: Source, checksums: Mapping[str, str]) -> tuple[str, ...]:
    """The names among these whose SHA-256 is not that of the official file."""
    return tuple(file.name for file in source.files if checksums.get(file.name, file.sha256) != file.sha256)


def archive_members(source: Source, stream: BinaryIO, where: str) -> dict[str, bytes]:
    """The content of the source's files in its archive, by their names; the stream is the compressed archive."""
    if source.archive is None:
        return {}
    inside = {f"{source.archive.inside}/{file.name}": file for file in source.files}
    with unpacked(stream, where) as content:
        found = members(content, {name: file.size for name, file in inside.items()}, source.unpacked, where)
    if not found:
        raise InvalidValueError(f"{where} has no {next(iter(inside))} in it")
    return {inside[name].name: content for name, content in found.items()}


def _archived(source: Source, path: Path) -> dict[str, bytes]:
    with opened(path, packed(source.unpacked)) as file:
        return archive_members(source, file, str(path))


def _is_published(source: Source, path: Path) -> bool:
    """The archive is the published one, byte for byte."""
    with opened(path, packed(source.unpacked)) as file:
        return source.archive is not None and hashlib.file_digest(file, "sha256").hexdigest() == source.archive.sha256


def _path(place: Path, file: File) -> Path | None:
    for name in (file.name, f"{file.name}.gz"):
        if os.path.lexists(place / name):
            return place / name
    return None
