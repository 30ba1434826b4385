"""What a data folder holds: files that are called present were read to the end, verified and made into images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vertex_lab.zoo import places
from vertex_lab.zoo.datasets import NAMES, source_of
from vertex_lab.zoo.records import records
from vertex_lab.zoo.sources import Source
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.demo.digits import digits

Status = Literal["built in", "present", "not official", "missing", "unusable"]


@dataclass(frozen=True)
class FileState:
    """One file that was read: where, how many bytes it holds unpacked, their SHA-256, and whether that is official."""

    name: str
    path: str
    bytes: int
    sha256: str
    official: bool


@dataclass(frozen=True)
class State:
    """One data set in a folder. `train` and `eval` count the images: those found, or else those of the official files.

    `note` is that of the `Dataset`; where files are missing or unusable it says what is wrong and what to do.
    """

    name: str
    status: Status
    shape: tuple[int, int, int]
    train: int
    eval: int
    where: str
    note: str
    files: tuple[FileState, ...] = ()

    @property
    def right(self) -> bool:
        """The files are official, whole and there."""
        return self.status in {"built in", "present"}


def inventory(folder: Path, names: Iterable[str] = NAMES) -> list[State]:
    """The state of each data set; files that two of them share are read once."""
    if folder.exists() and not folder.is_dir():
        raise InvalidValueError(f"the data folder {folder} is not a folder")
    read: dict[str, State] = {}
    found = []
    for name in names:
        if name == "digits":
            data = digits()
            counts = len(data.train_labels), len(data.eval_labels)
            found.append(State(name, "built in", (1, 8, 8), *counts, "scikit-learn", data.note))
            continue
        source = source_of(name)
        if source.name not in read:
            read[source.name] = _state(source, folder)
        state = read[source.name]
        shape = (1, *source.shape[1:]) if name == "cifar10-gray" else source.shape
        found.append(State(name, state.status, shape, state.train, state.eval, state.where, state.note, state.files))
    return found


def _state(source: Source, folder: Path) -> State:
    expected = str(folder / source.places[0])
    try:
        place = places.find(source, folder)
        if place is None:
            note = f"{places.absent(source, folder)}; {places.remedy(source, folder)}"
            return State(source.name, "missing", source.shape, *source.images, expected, note)
        expected = str(place.folder)
        contents = places.contents(place)
        found = records(contents)
    except InvalidValueError as error:
        note = f"{error}; {places.remedy(source, folder)}"
        return State(source.name, "unusable", source.shape, *source.images, expected, note)
    files = tuple(
        FileState(
            file.name,
            place.where(file),
            len(contents.data[file.name]),
            contents.checksums[file.name],
            file.name not in contents.unofficial,
        )
        for file in source.files
        if file.name in contents.data
    )
    status: Status = "not official" if contents.unofficial else "present"
    counts = len(found.train.labels), len(found.eval.labels)
    return State(source.name, status, source.shape, *counts, expected, found.note, files)
