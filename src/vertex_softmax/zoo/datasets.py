"""Data: images as float64 in [0, 1], and a split that depends on nothing but the files.

data = dataset("digits")                        # always at hand
data.train_images, data.train_labels            # (1437, 1, 8, 8), (1437)
data.eval_images, data.eval_labels              # (360, 1, 8, 8), (360)
dataset("mnist", "data")                        # the files in data/mnist; zoo/places.py has the names
restricted(dataset("mnist", "data"), (0, 1))    # zeros and ones only
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.errors import InvalidValueError
from vertex_softmax.zoo import cifar, idx, places
from vertex_softmax.zoo.sources import CIFAR10, SOURCES, File, Source

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar10-gray")
Levels = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # images (n, channels, height, width), labels (n)


@dataclass(frozen=True, eq=False)
class Dataset:
    """No record is in both parts. Images (n, channels, height, width) of float64 in [0, 1], labels (n) of int64.

    `note` says what a table made with this data has to say: another split than the usual, files that are not official.
    """

    name: str
    classes: int
    train_images: Tensor
    train_labels: Tensor
    eval_images: Tensor
    eval_labels: Tensor
    note: str = ""

    @property
    def checksum(self) -> str:
        """SHA-256 of the four tensors: the same for the same data in the same split."""
        found = hashlib.sha256()
        for part in (self.train_images, self.train_labels, self.eval_images, self.eval_labels):
            found.update(part.numpy().astype(part.numpy().dtype.newbyteorder("<")).tobytes())
        return found.hexdigest()


@cache
def digits() -> Dataset:
    """scikit-learn's bundled digits: 1,797 handwritten 8×8 images with 17 levels of grey, k/16 exactly.

    Every image is placed by the SHA-256 of its pixels: the first 360 in that order are for evaluation, the others for
    training. So the split depends on no random number generator and on no order of files, and both parts are mixed.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    levels = np.asarray(found.data, dtype=np.uint8)
    order = np.array(sorted(range(len(levels)), key=lambda i: hashlib.sha256(levels[i].tobytes()).digest()))
    images = torch.from_numpy(levels[order].reshape(-1, 1, 8, 8) / 16.0)
    labels = torch.from_numpy(np.asarray(found.target, dtype=np.int64)[order])
    return Dataset("digits", 10, images[360:], labels[360:], images[:360], labels[:360])


def dataset(name: str, folder: str | Path | None = None) -> Dataset:
    """The data set of that name; all but the digits are read from files in `folder` (default: VERTEX_DATA or data).

    The training files are for training, the test file for evaluation. Where no training file is: the first four fifths
    of the test file are for training, the rest for evaluation. `note` says so, and says if a file is not the official
    one, which is decided by the SHA-256 of its uncompressed content.
    """
    if name == "digits":
        return digits()
    if name not in NAMES:
        raise InvalidValueError(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}")
    source = source_of(name)
    where = places.default_folder() if folder is None else Path(folder)
    place = places.find(source, where)
    if place is None:
        wanted = f"{where / source.places[0]}/{source.test[0].name}[.gz] and the like"
        raise InvalidValueError(f"no file of {source.name} in {where}: {wanted}; {places.remedy(source, where)}")
    try:
        return _assembled(name, places.contents(place))
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}; {places.remedy(source, where)}") from error


def source_of(name: str) -> Source:
    """The published files that a data set is made of."""
    return SOURCES[name.removesuffix("-gray")]


def restricted(data: Dataset, classes: Sequence[int]) -> Dataset:
    """The images of these classes only, in their order; the labels are the positions in `classes`."""
    wanted = list(classes)
    if not wanted or len(set(wanted)) != len(wanted) or not set(wanted) <= set(range(data.classes)):
        raise InvalidValueError(f"classes {tuple(wanted)}: give different numbers from 0 to {data.classes - 1}")
    position = torch.full((data.classes,), -1)
    position[wanted] = torch.arange(len(wanted))
    train, evaluation = position[data.train_labels], position[data.eval_labels]
    return replace(
        data,
        name=f"{data.name} {'-'.join(map(str, wanted))}",
        classes=len(wanted),
        train_images=data.train_images[train >= 0],
        train_labels=train[train >= 0],
        eval_images=data.eval_images[evaluation >= 0],
        eval_labels=evaluation[evaluation >= 0],
    )


def _assembled(name: str, found: places.Contents) -> Dataset:
    source = found.place.source
    test = _levels(source, source.test, found)
    present = [file for file in source.training if file.name in found.data]
    notes = []
    if present:
        if source is CIFAR10 and len(present) < len(source.training):
            notes.append(f"trained on {', '.join(file.name for file in present)} only")
        train = _levels(source, present if source is CIFAR10 else source.training, found)
    else:
        cut = len(test[0]) * 4 // 5
        train, test = (test[0][:cut], test[1][:cut]), (test[0][cut:], test[1][cut:])
        notes.append(f"{cut:,}/{len(test[0]):,} split of the test file: no training file")
    if not (len(train[0]) and len(test[0])):
        raise InvalidValueError(f"{found.place.folder} has no images for training, or none for evaluation")
    if found.unofficial:
        sums = ", ".join(f"{checksum[:12]}… of {file}" for file, checksum in found.unofficial.items())
        notes.append(f"not the official files (checksum {sums}) but those in {found.place.folder.resolve().name}")
    return Dataset(name, 10, *_numbers(name, train), *_numbers(name, test), "; ".join(notes))


def _numbers(name: str, levels: Levels) -> tuple[Tensor, Tensor]:
    images = cifar.luma(levels[0]) if name == "cifar10-gray" else levels[0] / 255.0
    return torch.from_numpy(images), torch.from_numpy(levels[1].astype(np.int64))


def _levels(source: Source, files: Sequence[File], found: places.Contents) -> Levels:
    for file in files:
        if file.name not in found.data:
            raise InvalidValueError(f"{found.place.folder / file.name}[.gz] is missing")
    where = [str(found.place.files[file.name]) for file in files]
    content = [found.data[file.name] for file in files]
    if source is CIFAR10:
        read = [cifar.records(one, name, 10) for one, name in zip(content, where, strict=True)]
        return np.concatenate([images for images, _ in read]), np.concatenate([labels for _, labels in read])
    _, height, width = source.shape
    images, labels = idx.images(content[0], where[0], height, width), idx.labels(content[1], where[1], 10)
    if len(images) != len(labels):
        raise InvalidValueError(f"{where[0]} has {len(images):,} images and {where[1]} has {len(labels):,} labels")
    return images[:, None], labels
