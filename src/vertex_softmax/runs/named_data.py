"""Data sets by name: the digits are built in, others are registered by packages.

A package registers data sets with an entry point of the group `vertex_softmax.data`: the entry point's name is that of
the data set, its value a function (name, folder) -> Dataset. The laboratory (folder `lab` of a clone) has MNIST,
Fashion-MNIST and CIFAR-10.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.demo.digits import Dataset, digits

GROUP = "vertex_softmax.data"
BUILT_IN = "digits"
LABORATORY = ("mnist", "fashion-mnist", "cifar10", "cifar10-gray")
"""The names that the laboratory registers; where it is not installed, the error says how to get it."""


def is_name(text: str) -> bool:
    """Whether a text is the name of a data set, installed or not; anything else is the path of a file."""
    return text in (BUILT_IN, *LABORATORY) or text in entry_points(group=GROUP).names


def names() -> list[str]:
    """The names of the data sets that are installed."""
    return [BUILT_IN, *sorted(entry_points(group=GROUP).names)]


def named_data(name: str, folder: Path | None = None) -> Dataset:
    """The data set of that name; `folder` has its files, or None for the data set's default folder."""
    if name == BUILT_IN:
        return digits()
    found = entry_points(group=GROUP, name=name)
    if not found:
        raise InvalidValueError(
            f"the data set {name!r} is not installed: it comes with the laboratory of a clone of the project "
            "(pip install ./lab); or give a file .npz or .safetensors with the arrays `inputs` and `labels`"
        )
    data: Dataset = next(iter(found)).load()(name, folder)
    return data
