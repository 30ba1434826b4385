"""The base class of input sets: a batch of sets, each contained in a box.

Invariant: every real point of the set lies in lower ≤ x ≤ upper, in exact arithmetic. A set has one box per input of a
batch, tensors (batch, *input shape) in float64. These are copies: later changes to the caller's arrays do not affect
the set.
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
    """A batch of input sets; lower ≤ x ≤ upper for every point x of a set. Both (batch, *input shape), float64."""

    lower: Tensor
    upper: Tensor

    @property
    def centre(self) -> Tensor:
        """One point of each set: its midpoint, or the point that a ball is around; (batch, *input shape)."""
        return (self.lower / 2 + self.upper / 2).clamp(self.lower, self.upper)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `lower` and `upper`, (batch, *input shape)."""
        return tuple(self.lower.shape)

    def __len__(self) -> int:
        return int(self.lower.shape[0])

    def __getitem__(self: T, index: Index) -> T:
        return self.at(index)

    def __iter__(self: T) -> Iterator[T]:
        return (self.at(i) for i in range(len(self)))

    def at(self: T, index: Index) -> T:
        """The sets of the selected inputs, again as a batch: an int i selects like i : i + 1.

        A list of ints or a mask with one entry per input selects several.
        """
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
        """The sets of the inputs with these indices; `index` is int64, (count)."""

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
        """Whether each x lies in its box: (batch, *input shape) → bool, (batch). No tolerance; NaN lies in no box."""
        if tuple(x.shape) != self.shape:
            raise InvalidValueError(f"x has shape {tuple(x.shape)}; the set has {self.shape}")
        return ((x >= self.lower) & (x <= self.upper)).flatten(1).all(1)

    def __repr__(self) -> str:
        inputs = f"{len(self)} input{'' if len(self) == 1 else 's'} of {'×'.join(map(str, self.shape[1:]))}"
        device = "" if self.lower.device.type == "cpu" else f", on {self.lower.device}"
        return f"{type(self).__name__}({inputs}, {self._summary()}{device})"

    def _summary(self) -> str:
        """The size of the sets in a few words, for `repr`."""
        return f"widths {range_text(self.upper - self.lower)}"

    def _set(self, **fields: object) -> None:
        """Assign fields of this frozen dataclass; only for `__init__`."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def range_text(x: Tensor) -> str:
    """The least and the greatest entry as 'least … greatest', or one number if they are equal."""
    if x.numel() == 0:
        return "–"
    least, most = f"{float(x.min()):g}", f"{float(x.max()):g}"
    return least if least == most else f"{least} … {most}"
