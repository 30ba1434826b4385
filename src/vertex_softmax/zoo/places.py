"""Which files of a data set a folder holds, and what is in them: nothing is called official that is not.

FOLDER/mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]         FOLDER/fashion-mnist/ likewise
FOLDER/cifar10/data_batch_{1…5}.bin[.gz], test_batch.bin[.gz]          or cifar-10-binary.tar.gz there
A FOLDER that has the files itself will do where it is clear which data set they belong to.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from vertex_softmax.errors import InvalidValueError
from vertex_softmax.zoo.reading import content_of
from vertex_softmax.zoo.sources import CIFAR10, SOURCES, File, Source


@dataclass(frozen=True)
class Place:
    """Where the files of a source are: each by its name without .gz."""

    source: Source
    folder: Path
    files: dict[str, Path]
    certain: bool  # the folder's name says whose files they are


@dataclass(frozen=True)
class Contents:
    """The uncompressed content of every file found, and the SHA-256 of those that are not official."""

    place: Place
    data: dict[str, bytes]
    unofficial: dict[str, str]


def default_folder() -> Path:
    """Where data is looked for unless told: the environment variable VERTEX_DATA, or `data` in the current folder."""
    return Path(os.environ.get("VERTEX_DATA") or "data")


def remedy(source: Source, folder: Path) -> str:
    """What to do about a file that is missing or wrong."""
    return f"`vertex data fetch {source.name} --data-dir {folder}` gets the official files from {source.address}"


def find(source: Source, folder: Path) -> Place | None:
    """The first place in the folder with any file of the source; `None` if there is none."""
    for name in source.places:
        place = folder / name
        files = {file.name: path for file in source.files if (path := _path(place, file)) is not None}
        if files:
            certain = source is CIFAR10 or name != "." or folder.resolve().name == source.name
            return Place(source, place, files, certain)
    return None


def _path(place: Path, file: File) -> Path | None:
    for name in (file.name, f"{file.name}.gz"):
        if os.path.lexists(place / name):
            return place / name
    return None


def contents(place: Place) -> Contents:
    """Read what was found, no further than the official sizes."""
    data, unofficial = {}, {}
    for file in place.source.files:
        if file.name in place.files:
            path = place.files[file.name]
            data[file.name] = content_of(path, file.size)
            checksum = hashlib.sha256(data[file.name]).hexdigest()
            if checksum != file.sha256:
                unofficial[file.name] = checksum
                _not_of_another(path, checksum, place.source)
    if unofficial and not place.certain:
        raise InvalidValueError(
            f"{place.folder} has files with the names of {place.source.name} and not its content; other data sets have "
            f"the same names: put the files in a folder {place.source.name} if that is what they are"
        )
    return Contents(place, data, unofficial)


def _not_of_another(path: Path, checksum: str, source: Source) -> None:
    for other in SOURCES.values():
        for file in other.files:
            if other is not source and file.sha256 == checksum:
                raise InvalidValueError(f"{path} is a file of {other.name}, not of {source.name}")
