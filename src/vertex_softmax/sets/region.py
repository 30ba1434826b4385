"""Input sets as the bounds see them: one precision, one device, and the answer to "how small can Σ A·x become?".

Invariant of every region: each point of the set lies in `box`, and `support(A)` is at most Σ A·x for every point x of
the set, to rounding.

A new kind of set is one class here with these methods; no bound needs to know which set it is over.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.ops.choice_rows import ChoiceForm
from vertex_softmax.ops.contract import AffineForm
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.unit_sets import CUBE, UnitSet


class Region(ABC):
    """A batch of sets of inputs, (batch, *shape)."""

    @property
    @abstractmethod
    def box(self) -> Interval:
        """The smallest box around each set, (batch, *shape)."""

    @abstractmethod
    def support(self, A: Tensor, constant: Tensor | float = 0.0) -> Tensor:
        """The least values (batch, S) of constant + Σ A·x over the sets: A (batch, S, *shape), constant (batch, S)."""

    @abstractmethod
    def minimise(self, A: Tensor, constant: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        """The least values (batch, S) of constant + Σ A·x, and points (batch, S, *shape) of the sets that attain them.

        Where a coefficient is 0 the point has the centre's number.
        """

    @property
    def middle(self) -> Tensor:
        """The point that unknowns are about, (batch, *shape): the box's centre, unless a kind of set knows better."""
        return self.box.centre

    @property
    def spread(self) -> Tensor:
        """How far each number goes from the middle, (batch, *shape): the set is part of middle + spread·`unit`."""
        return self.box.radius

    @property
    def unit(self) -> UnitSet:
        """The unit set of (x − middle)/spread: the cube, unless a kind of set knows better."""
        return CUBE

    def columns(self) -> Tensor:
        """The set as part of middle + Σ columns·ξ, |ξ| ≤ 1 in each ball: (batch, balls, dimension, *shape).

        Unless a kind of set knows better: an interval for each number of its box that varies.
        """
        box = self.box
        radius = box.radius.flatten(1)
        live = radius.amax(0).nonzero().flatten()
        found = radius.new_zeros(radius.shape[0], len(live), radius.shape[1])
        found[:, torch.arange(len(live), device=radius.device), live] = radius[:, live]
        return found.reshape(*found.shape[:2], 1, *box.lower.shape[1:])

    def blocks(self) -> tuple[Tensor, ...]:
        """`columns` by the dimension of their balls; at least one tensor (batch, balls, dimension, *shape)."""
        return (self.columns(),)

    def form(self, matrix: Tensor, constant: Tensor, shape: tuple[int, ...]) -> AffineForm | ChoiceForm | None:
        """matrix·x + constant over the sets, of a node of this shape, as ops use it; None: not in such a form.

        matrix: (numbers of the node, numbers of the input), constant: (numbers of the node). Unless a kind of set knows
        better: in the unknowns of `middle`, `spread` and `unit`.
        """
        centre = (self.middle.flatten(1) @ matrix.mT + constant).reshape(-1, *shape)
        return AffineForm(centre, matrix.reshape(*shape, matrix.shape[1]), self.spread.flatten(1), self.unit)

    @abstractmethod
    def at(self, which: slice | Tensor) -> Region:
        """The sets of some inputs of the batch."""

    @abstractmethod
    def rearranged(self, numbers: Tensor) -> Region:
        """The sets with their numbers in another order and shape: entry i of the result is number numbers[i]."""


@dataclasses.dataclass(frozen=True, eq=False)
class BoxRegion(Region):
    """lower ≤ x ≤ upper, elementwise; (batch, *shape) each."""

    lower: Tensor
    upper: Tensor

    @property
    def box(self) -> Interval:
        """The set itself."""
        return Interval(self.lower, self.upper)

    def support(self, A: Tensor, constant: Tensor | float = 0.0) -> Tensor:
        """A·centre − |A|·radius."""
        box, flat = self.box, A.flatten(2)
        centre, radius = box.centre.flatten(1).unsqueeze(-1), box.radius.flatten(1).unsqueeze(-1)
        return constant + (flat @ centre).squeeze(-1) - (flat.abs() @ radius).squeeze(-1)

    def minimise(self, A: Tensor, constant: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        """A corner: its numbers are the ends of the box exactly, and the centre's where a coefficient is 0."""
        centre, radius = self.box.centre.unsqueeze(1), self.box.radius.unsqueeze(1)
        value = constant + (A * centre).flatten(2).sum(-1) - (A.abs() * radius).flatten(2).sum(-1)
        lower, upper = (end.unsqueeze(1) for end in self.box)
        corner = torch.where(A > 0, lower, torch.where(A < 0, upper, centre))
        return value, corner.expand(*value.shape, *centre.shape[2:])

    def at(self, which: slice | Tensor) -> BoxRegion:
        """The boxes of some inputs."""
        return BoxRegion(self.lower[which], self.upper[which])

    def rearranged(self, numbers: Tensor) -> BoxRegion:
        """Both ends rearranged."""
        lower, upper = (end.flatten(1)[:, numbers.flatten()].reshape(-1, *numbers.shape) for end in self.box)
        return BoxRegion(lower, upper)


def placed(x: Tensor, shape: Sequence[int]) -> Tensor:
    """One end of a set, (batch, *input shape), as (batch, *shape) for the graph's input `shape`.

    The graph's input may have an extra leading dimension of 1, or be the whole batch.
    """
    shape = tuple(shape)
    if tuple(x.shape[1:]) == shape:
        return x
    if shape and shape[0] == 1 and tuple(x.shape[1:]) == shape[1:]:
        return x.unsqueeze(1)
    if tuple(x.shape) == shape:
        return x.unsqueeze(0)
    takes = f"{shape[1:]}, as its own batch is one input" if len(shape) > 1 and shape[0] == 1 else f"{shape}"
    raise InvalidValueError(f"each input of the set has shape {tuple(x.shape[1:])}, but the network takes {takes}")
