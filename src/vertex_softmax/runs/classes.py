"""The classes of a network's output, the labels of inputs, and the classes that count against them.

Invariant: a `Classes` is consistent: every label and every target is a class, and no target is its input's label.

The output of a network is one row of class scores; or, for a language model, one row for each position, of which
`position` names the one that is meant. Class k is number `first` + k of the output, counted flat.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError

MOST_CLASSES = 1 << 31


@dataclasses.dataclass(frozen=True, eq=False)
class Classes:
    """The labels of some inputs, and the classes that count."""

    labels: Tensor
    """(batch,)"""
    targets: Tensor
    """(batch, T): the classes that the label has to exceed"""
    count: int
    """how many classes there are"""
    first: int
    """the place of class 0 in the flat output"""

    def at(self, which: slice | Tensor) -> Classes:
        """The classes of some of the inputs."""
        return dataclasses.replace(self, labels=self.labels[which], targets=self.targets[which])

    def logits(self, output: Tensor) -> Tensor:
        """The scores of the classes, (n, count), of outputs (n, *output shape)."""
        return output.flatten(1)[:, self.first : self.first + self.count]

    def objectives(self, size: int, like: Tensor) -> Tensor:
        """The margins to the targets as combinations of the `size` numbers of the flat output, (batch, T, size)."""
        batch, T = self.targets.shape
        C = torch.zeros(batch, T, size, dtype=like.dtype, device=like.device)
        C.scatter_(2, (self.first + self.labels)[:, None, None].expand(-1, T, 1), 1.0)
        return C.scatter_add_(2, (self.first + self.targets)[..., None], torch.full_like(C[..., :1], -1.0))

    def spread(self, values: Tensor) -> Tensor:
        """Values at the targets, (batch, T) → (batch, count); inf at the label and where a class does not count."""
        whole = torch.full((values.shape[0], self.count), torch.inf, dtype=values.dtype, device=values.device)
        return whole.scatter(1, self.targets, values)

    def leads(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The target that has most, (n,), and by how much it has more than the label, (n,), of logits (n, count).

        NaN where a number is NaN.
        """
        best, place = logits.gather(1, self.targets).max(1)
        return self.targets.gather(1, place[:, None])[:, 0], best - logits.gather(1, self.labels[:, None])[:, 0]


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """What was asked: labels, targets and position as the caller gave them, read but not yet held against a network."""

    labels: Tensor
    """(batch,) of int64 on the CPU"""
    targets: Tensor | None
    """(1, T) for all inputs or (batch, T), of int64 on the CPU; None: all classes but the label"""
    position: int | None

    @staticmethod
    def of(label: object, targets: object, position: object, batch: int) -> Asked:
        """Read the arguments; raises if they are not of the right kind."""
        return Asked(_labels(label, batch), _targets(targets, batch), _position(position))

    def at(self, which: list[int]) -> Asked:
        """What was asked about some of the inputs."""
        targets = self.targets
        if targets is not None and len(targets) > 1:
            targets = targets[which]
        return dataclasses.replace(self, labels=self.labels[which], targets=targets)

    def targets_given(self) -> Tensor | None:
        """The targets as an argument: (T) for all inputs, or (batch, T)."""
        return self.targets[0] if self.targets is not None and len(self.targets) == 1 else self.targets

    def classes(self, shape: tuple[int, ...], batch: int, device: torch.device) -> Classes:
        """The classes of a network whose output has this shape, for a batch that may be one input of many rows."""
        count, first = self._row(shape)
        labels = _classed(self.labels, batch, count)
        if self.targets is None:
            others = torch.arange(count).expand(batch, count)
            targets = others[others != labels[:, None]].reshape(batch, count - 1)
        else:
            targets = _rows_for(self.targets, batch).expand(batch, -1)
            _refuse_targets(targets, labels, count)
        return Classes(labels.to(device), targets.to(device), count, first)

    def _row(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """How many classes an output of this shape has, and the place of the first one."""
        size = math.prod(shape)
        rows = size // shape[-1] if shape and shape[-1] else 1
        if rows > 1 and shape[-1] > 1 and self.position is None:
            raise InvalidValueError(
                f"the network's output has shape {shape}: a row of {shape[-1]} scores for each of {rows} positions. "
                "Say which one holds the classes: position=-1 for the last; or let the model return one row, such as "
                "logits[:, -1]. Use `bound` for other outputs"
            )
        if size < 2 or (shape and shape[-1] < 2) or (rows > 1 and shape[-2] != rows):
            raise InvalidValueError(
                f"the network's output has shape {shape}; margins need one row of at least two class scores. "
                "Use `bound` for other outputs"
            )
        position = self.position or 0
        if not -rows <= position < rows:
            raise InvalidValueError(
                f"position is {position}, and the network's output has {rows} position{'s' if rows > 1 else ''}: "
                f"choose {-rows} to {rows - 1}, or leave it out if there is one row of class scores"
            )
        return (shape[-1] if shape else size), position % rows * (shape[-1] if shape else size)


def _labels(label: object, batch: int) -> Tensor:
    """One class number per input, (batch) of int64 on the CPU."""
    array = _integers("label", label)
    if array.ndim > 1:
        raise InvalidValueError(
            f"label has shape {array.shape}; give one class number for each of {batch} inputs, or one for all"
        )
    numbers = [int(n) for n in array.reshape(-1)]
    if len(numbers) == 1:
        numbers *= batch
    if len(numbers) != batch:
        raise InvalidValueError(f"there are {len(numbers)} labels for {batch} inputs; give one each, or one for all")
    for i, number in enumerate(numbers):
        if not 0 <= number < MOST_CLASSES:
            raise InvalidValueError(f"label {number} at index {i} is not a class; classes are counted from 0")
    return torch.tensor(numbers, dtype=torch.long)


def _targets(targets: object, batch: int) -> Tensor | None:
    """The classes that count, (1, T) or (batch, T), each once; None stays None."""
    if targets is None:
        return None
    array = _integers("targets", targets)
    if array.ndim > 2 or array.size == 0 or (array.ndim == 2 and len(array) != batch):
        raise InvalidValueError(
            f"targets has shape {array.shape}; give one class, a list of classes for all inputs, or a row for each of "
            f"{batch} inputs, with at least one class"
        )
    rows = [[int(n) for n in row] for row in array.reshape(1 if array.ndim < 2 else batch, -1)]
    for row in rows:
        for number in row:
            if not 0 <= number < MOST_CLASSES:
                raise InvalidValueError(f"targets has {number}, which is not a class; classes are counted from 0")
    if len(rows) == 1:
        rows = [list(dict.fromkeys(rows[0]))]
    return torch.tensor(rows, dtype=torch.long)


def _position(position: object) -> int | None:
    if position is None:
        return None
    try:
        if isinstance(position, bool | np.bool_):
            raise TypeError
        return operator.index(position)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidTypeError(f"position is {position!r}; give an integer, such as -1 for the last") from None


def _integers(name: str, given: object) -> NDArray[Any]:
    """An array of integers of any size, however they were given."""
    wrong = "give class numbers as integers"
    if isinstance(given, Tensor):
        if given.is_meta or given.layout != torch.strided or given.is_quantized:
            raise InvalidTypeError(f"{name} is a meta, sparse or quantised tensor; {wrong}")
        if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
            raise InvalidTypeError(f"{name} has dtype {given.dtype}; {wrong}")
        return given.detach().cpu().numpy()
    if isinstance(given, np.ma.MaskedArray):
        raise InvalidTypeError(f"{name} is a masked array; {wrong}")
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise InvalidTypeError(f"{name} cannot be read as class numbers: {error}") from error
    big = array.dtype.kind == "O" and all(type(n) is int for n in array.reshape(-1))
    if array.dtype.kind not in "iu" and not big and array.size:
        raise InvalidTypeError(f"{name} has dtype {array.dtype}; {wrong}")
    return array


def _classed(labels: Tensor, batch: int, classes: int) -> Tensor:
    """The labels, if each is a class; a set that is one input of the network's whole shape has one."""
    if len(labels) != batch and bool((labels == labels[0]).all()):
        labels = labels[:1].expand(batch)
    if len(labels) != batch:
        raise InvalidValueError(f"there are {len(labels)} labels for {batch} inputs; give one each, or one for all")
    wrong = labels >= classes
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise InvalidValueError(f"label {int(labels[at])} at index {at} is not a class; there are {classes}, from 0")
    return labels


def _rows_for(targets: Tensor, batch: int) -> Tensor:
    """One row of targets, or one for each input; a set that is one input of the network's whole shape has one."""
    if len(targets) in (1, batch):
        return targets
    if bool((targets != targets[0]).any()):
        raise InvalidValueError(
            f"targets has {len(targets)} different rows, and the network takes the whole set as {batch} input"
            f"{'s' if batch > 1 else ''}; give one list of classes"
        )
    return targets[:1]


def _refuse_targets(targets: Tensor, labels: Tensor, classes: int) -> None:
    """Raise if a target (batch, T) is no class, or the label of its input."""
    if bool((wrong := targets >= classes).any()):
        i, j = wrong.nonzero()[0].tolist()
        raise InvalidValueError(f"targets has {int(targets[i, j])}, which is not a class; there are {classes}, from 0")
    if bool((own := targets == labels[:, None]).any()):
        i, j = own.nonzero()[0].tolist()
        raise InvalidValueError(
            f"targets has {int(targets[i, j])}, which is the label of input {i}: a class is not compared with itself; "
            "leave it out, or give a row of targets for each input"
        )
