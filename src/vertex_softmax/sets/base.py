"""What every input set has in common: a batch of sets, each inside a box.

Invariant: every real point of the set lies in lower ≤ x ≤ upper, in exact arithmetic. Sets hold a batch of inputs,
(batch, *input shape), in float64, and are copies: later changes to the caller's arrays do not reach them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.sets.region import BoxRegion, Region, placed
from vertex_softmax.sets.rounding import outward

Index: TypeAlias = "int | slice | Sequence[int] | Tensor"
T = TypeVar("T", bound="InputSet")


@dataclass(frozen=True, eq=False, init=False, repr=False)
class InputSet(ABC):
    """lower ≤ x ≤ upper for every point x of the set; (batch, *input shape) each, float64."""

    lower: Tensor
    upper: Tensor

    @property
    def centre(self) -> Tensor:
        """A point of the set: the middle, or what the set was made around; (batch, *input shape)."""
        return (self.lower / 2 + self.upper / 2).clamp(self.lower, self.upper)

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, *input shape)."""
        return tuple(self.lower.shape)

    def __len__(self) -> int:
        return int(self.lower.shape[0])

    def __getitem__(self: T, index: Index) -> T:
        return self.at(index)

    def __iter__(self: T) -> Iterator[T]:
        return (self.at(i) for i in range(len(self)))

    def at(self: T, index: Index) -> T:
        """The sets of some inputs, as a set with a batch: an int i is i : i + 1; a mask or a list of ints picks."""
        try:
            picked = np.arange(len(self))[index.cpu().numpy() if isinstance(index, Tensor) else index]
        except IndexError:
            raise InvalidValueError(
                f"index {index!r} does not fit: the set holds {len(self)} inputs; "
                "pass an int, a slice, a list of ints or a mask with one entry per input"
            ) from None
        return self._pick(torch.from_numpy(np.atleast_1d(picked).copy()))

    @abstractmethod
    def _pick(self: T, index: Tensor) -> T:
        """The sets of the inputs numbered `index`, (count) of int64."""

    def region(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Region:
        """The sets as bounds see them, (batch, *shape of a network's input), rounded outward to a precision."""
        return BoxRegion(
            placed(outward(self.lower, dtype, -torch.inf).to(device), shape),
            placed(outward(self.upper, dtype, torch.inf).to(device), shape),
        )

    def support(self, A: Tensor) -> Tensor:
        """The least values of Σ A·x over the sets: A (batch, S, *input shape) → (batch, S), in A's precision."""
        return self.region(self.shape[1:], A.dtype, A.device).support(A)

    def contains(self, x: Tensor) -> Tensor:
        """Is x in the box? (batch, *input shape) → (batch) of bool, without tolerance; NaN is not."""
        if tuple(x.shape) != self.shape:
            raise InvalidValueError(f"x has shape {tuple(x.shape)}; the set has {self.shape}")
        return ((x >= self.lower) & (x <= self.upper)).flatten(1).all(1)

    def __repr__(self) -> str:
        inputs = f"{len(self)} input{'' if len(self) == 1 else 's'} of {'×'.join(map(str, self.shape[1:]))}"
        place = "" if self.lower.device.type == "cpu" else f", on {self.lower.device}"
        return f"{type(self).__name__}({inputs}, {self._said()}{place})"

    def _said(self) -> str:
        """What is special about the set, in some words."""
        return f"widths {range_text(self.upper - self.lower)}"

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def range_text(x: Tensor) -> str:
    """The least and the greatest entry, or the one that all are."""
    if x.numel() == 0:
        return "–"
    least, most = f"{float(x.min()):g}", f"{float(x.max()):g}"
    return least if least == most else f"{least} … {most}"
