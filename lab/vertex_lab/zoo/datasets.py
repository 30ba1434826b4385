"""Data: images as float64 in [0, 1], and a split that depends on nothing but the files.

data = dataset("digits")                        # always at hand
data.train_images, data.train_labels            # (1437, 1, 8, 8), (1437)
data.eval_images, data.eval_labels              # (360, 1, 8, 8), (360)
dataset("mnist", "data")                        # the files in data/mnist; zoo/places.py has the names
restricted(dataset("mnist", "data"), (0, 1))    # zeros and ones only
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vertex_lab.zoo import places
from vertex_lab.zoo.cifar import luma
from vertex_lab.zoo.records import Levels, records
from vertex_lab.zoo.sources import SOURCES, Source
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.demo.digits import Dataset, digits

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar10-gray")


def dataset(name: str, folder: str | Path | None = None) -> Dataset:
    """The data set of that name; all but the digits are read from files in `folder` (default: VERTEX_DATA or data).

    The training files are for training, the test file for evaluation. Where no training file is: the first four fifths
    of the test file are for training, the rest for evaluation. `note` says so, and says if a file is not the official
    one, which is decided by the SHA-256 of its uncompressed content.
    """
    if known(name) == "digits":
        return digits()
    source = source_of(name)
    where = places.default_folder() if folder is None else Path(folder)
    try:
        found = records(places.contents(places.found(source, where)))
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}; {places.remedy(source, where)}") from error
    train, evaluation = _numbers(name, found.train), _numbers(name, found.eval)
    return Dataset(name, 10, *train, *evaluation, found.note)


def known(name: str) -> str:
    """The name, if there is a data set of that name."""
    if name not in NAMES:
        raise InvalidValueError(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}")
    return name


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


def _numbers(name: str, levels: Levels) -> tuple[Tensor, Tensor]:
    images = luma(levels.images) if name == "cifar10-gray" else levels.images / 255.0
    return torch.from_numpy(images), torch.from_numpy(levels.labels.astype(np.int64))
