"""The base class of input sets: a batch of sets, each contained in a box, with the moves of an attack in it.

Invariant: every real point of the set lies in lower ≤ x ≤ upper, in exact arithmetic. A set has one box per input of a
batch, tensors (batch, *input shape) in float64. These are copies: later changes to the caller's arrays do not affect
the set, and neither do changes to what its attributes return. Selecting inputs keeps the type and the ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.sets.region import BoxRegion, Region, placed
from vertex_softmax.sets.rounding import outward

Index: TypeAlias = "int | slice | Sequence[int] | Tensor"
T = TypeVar("T", bound="InputSet")


class InputSet:
    """A batch of input sets; lower ≤ x ≤ upper for every point x of a set. Both (batch, *input shape), float64."""

    FIELDS: ClassVar[tuple[str, ...]] = ("lower", "upper")
    """What `_set` was given in `__init__`: tensors with one row per input, and settings of all inputs (no tensors)."""

    COMPOSED: ClassVar[bool] = False
    """Whether it is made of other sets: a product or a union."""

    _lower: Tensor
    _upper: Tensor

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be assigned: a set never changes; make a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} cannot be deleted: a set never changes; make a new one")

    @property
    def lower(self) -> Tensor:
        """The lower ends, (batch, *input shape); a copy."""
        return self._lower.clone()

    @property
    def upper(self) -> Tensor:
        """The upper ends, (batch, *input shape); a copy."""
        return self._upper.clone()

    @property
    def centre(self) -> Tensor:
        """One point of each set: its midpoint, or the point that a ball is around; (batch, *input shape)."""
        return (self.lower / 2 + self.upper / 2).clamp(self.lower, self.upper)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `lower` and `upper`, (batch, *input shape)."""
        return tuple(self._lower.shape)

    def __len__(self) -> int:
        return int(self._lower.shape[0])

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

    def _pick(self: T, index: Tensor) -> T:
        """The sets of the inputs with these indices, of the same type, with the same ends; `index` is int64, (count).

        A subclass with attributes of its own needs a `_pick` of its own.
        """
        unknown = sorted(vars(self).keys() - {f"_{name}" for name in self.FIELDS})
        if unknown:
            raise InvalidTypeError(
                f"{type(self).__name__} has the attribute {unknown[0]!r} of its own, and it is not known which part of "
                "it belongs to which input: give the class a method _pick(index), which returns the selected sets"
            )
        picked = type(self).__new__(type(self))
        for name, value in vars(self).items():
            object.__setattr__(picked, name, value[index] if isinstance(value, Tensor) else value)
        return picked

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

    def project(self, x: Tensor) -> Tensor:
        """Points of the sets near any points x, (batch, k, *input shape) both, float64; `contains` is True of each.

        Points of the sets stay where they are. The nearest points, for a box; NaN becomes the centre's number.
        """
        given = x.detach().to(self._lower.device, torch.float64)
        given = torch.where(given.isnan(), self.centre.unsqueeze(1), given)
        return torch.minimum(torch.maximum(given, self._lower.unsqueeze(1)), self._upper.unsqueeze(1))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Random points of the sets, (batch, count, *input shape) in float64; `contains` is True of each.

        At odd places they are on the rim: for a box random corners, else uniform points. All inputs share the random
        numbers, so that the points of an input do not depend on the others in the batch. `generator` is on the CPU.
        """
        shape = (count, *self._lower.shape[1:])
        draws = torch.rand(shape, generator=generator, dtype=torch.float64).to(self._lower.device)
        lower, upper = self._lower.unsqueeze(1), self._upper.unsqueeze(1)
        odd = (torch.arange(count, device=draws.device) % 2 == 1).reshape(-1, *[1] * (len(shape) - 1))
        return self.project(torch.where(odd, torch.where(draws < 0.5, lower, upper), lower + draws * (upper - lower)))

    def step(self, x: Tensor, gradient: Tensor, share: float) -> Tensor:
        """One step of an attack: points of the sets, from points x (batch, k, *input shape) of them against a gradient.

        `share`: how far, as a share of the set's size. A box: every number moves by so much of its radius, against the
        sign of its gradient, (batch, k, *input shape); where that is 0 it stays.
        """
        radius = (self._upper / 2 - self._lower / 2).unsqueeze(1)
        slope = gradient.detach().to(radius).nan_to_num(nan=0.0)
        return self.project(x.detach().to(radius) - share * radius * slope.sign())

    def __repr__(self) -> str:
        inputs = f"{len(self)} input{'' if len(self) == 1 else 's'} of {'×'.join(map(str, self.shape[1:]))}"
        device = "" if self.lower.device.type == "cpu" else f", on {self.lower.device}"
        return f"{type(self).__name__}({inputs}, {self._summary()}{device})"

    def _summary(self) -> str:
        """The size of the sets in a few words, for `repr`."""
        return f"widths {range_text(self.upper - self.lower)}"

    def _set(self, **fields: object) -> None:
        """Assign attributes; only for `__init__`. Those in FIELDS are stored as `_name`, for a property to copy."""
        for name, value in fields.items():
            object.__setattr__(self, f"_{name}" if name in self.FIELDS else name, value)


def range_text(x: Tensor) -> str:
    """The least and the greatest entry as 'least … greatest', or one number if they are equal."""
    if x.numel() == 0:
        return "–"
    least, most = f"{float(x.min()):g}", f"{float(x.max()):g}"
    return least if least == most else f"{least} … {most}"
