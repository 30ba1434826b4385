"""From the content of files to images and labels, and which are for training: every record is used at most once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vertex_lab.zoo import cifar, idx
from vertex_lab.zoo.places import Contents
from vertex_lab.zoo.sources import File
from vertex_softmax.foundation.errors import InvalidValueError

CLASSES = 10


class Levels(NamedTuple):
    """Images (n, channels, height, width) with 256 levels, labels (n)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


class Records(NamedTuple):
    """What is for training, what for evaluation, and what a table made with them has to say."""

    train: Levels
    eval: Levels
    note: str


def records(found: Contents) -> Records:
    """The training files and the test file; without training files, four fifths and one fifth of the test file."""
    source, notes = found.place.source, []
    test = _levels(found, source.test)
    training = [file for file in source.training if file.name in found.data]
    if not training:
        cut = len(test.images) * 4 // 5
        train, test = Levels(test.images[:cut], test.labels[:cut]), Levels(test.images[cut:], test.labels[cut:])
        notes.append(f"{cut:,}/{len(test.images):,} split of the test file: no training file")
    elif source.format == "cifar":
        train = _levels(found, training)
        if len(training) < len(source.training):
            notes.append(f"trained on {', '.join(file.name for file in training)} only")
    else:
        train = _levels(found, source.training)
    if not (len(train.images) and len(test.images)):
        raise InvalidValueError(f"{found.place.folder} has no image for training, or none for evaluation")
    if found.unofficial:
        sums = ", ".join(f"{found.checksums[name][:12]}… of {name}" for name in found.unofficial)
        notes.append(f"not the official files (checksum {sums}) but those in {found.place.folder.resolve().name}")
    return Records(train, test, "; ".join(notes))


def _levels(found: Contents, files: Sequence[File]) -> Levels:
    for file in files:
        if file.name not in found.data:
            raise InvalidValueError(f"{found.place.where(file)} is missing")
    where = [found.place.where(file) for file in files]
    content = [found.data[file.name] for file in files]
    if found.place.source.format == "cifar":
        read = [cifar.records(one, name, CLASSES) for one, name in zip(content, where, strict=True)]
        return Levels(np.concatenate([images for images, _ in read]), np.concatenate([labels for _, labels in read]))
    _, height, width = found.place.source.shape
    images, labels = idx.images(content[0], where[0], height, width), idx.labels(content[1], where[1], CLASSES)
    if len(images) != len(labels):
        raise InvalidValueError(f"{where[0]} has {len(images):,} images and {where[1]} has {len(labels):,} labels")
    return Levels(images[:, None], labels)
