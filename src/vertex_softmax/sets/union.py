"""Unions of sets: an input may come from any of several sets of the same model input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.sets.base import InputSet
from vertex_softmax.sets.product import Product


class Union(InputSet):
    """All points that are in at least one of the sets. All have the same batch size and input shape.

    Input i of the batch is about the union of the members' sets i. `certify`, `bound` and `attack` go through the
    members one by one, each with its own geometry: verified if all are, falsified if one is. `lower` and `upper` are
    the ends of the box around all members; the centre is that of the first.

        either = Union(LpBall(images, 0.5, p=2), LinfBall(images, 0.01))
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("lower", "upper", "members")
    COMPOSED: ClassVar[bool] = True

    _members: tuple[InputSet, ...]

    def __init__(self, *members: InputSet) -> None:
        if not members:
            raise InvalidValueError("a union needs at least one set; none was given")
        for i, each in enumerate(members):
            if not isinstance(each, InputSet):
                raise InvalidTypeError(f"set {i} is a {type(each).__name__}; give sets, as Box or LpBall")
            if isinstance(each, Union):
                raise InvalidTypeError(f"set {i} is a Union; give its members themselves")
            if each.shape != members[0].shape:
                raise InvalidValueError(
                    f"set 0 has shape {members[0].shape} and set {i} {each.shape}; the members of a union have the "
                    "same batch size and input shape"
                )
            if each.lower.device != members[0].lower.device:
                raise InvalidValueError(
                    f"set 0 is on {members[0].lower.device} and set {i} on {each.lower.device}; make them on one"
                )
            if _layout(each) != _layout(members[0]):
                raise InvalidValueError(
                    f"set {i} has other inputs of the model, in another order or by other names, than set 0; give all "
                    "products of a union their sets in the same way"
                )
        self._fill(members)

    def _fill(self, members: tuple[InputSet, ...]) -> None:
        lower = torch.stack([each.lower for each in members]).amin(0)
        upper = torch.stack([each.upper for each in members]).amax(0)
        self._set(lower=lower, upper=upper, members=members)

    @property
    def members(self) -> tuple[InputSet, ...]:
        """The sets."""
        return self._members

    @property
    def centre(self) -> Tensor:
        """The centres of the first member, (batch, *input shape); a copy."""
        return self._members[0].centre

    def _pick(self, index: Tensor) -> Union:
        picked = type(self).__new__(type(self))
        picked._fill(tuple(each.at(index) for each in self._members))
        return picked

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Joined numbers (..., numbers) as the inputs of the model, if the members are products (`Product.split`)."""
        first = self._members[0]
        if not isinstance(first, Product):
            raise InvalidTypeError(f"the members are no products: points have the input's shape, {self.shape[1:]}")
        return first.split(x)

    def region(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> NoReturn:  # noqa: ARG002
        """A union is not bounded as a whole: that would be the box around it."""
        raise InvalidTypeError("a Union is bounded member by member: use certify, bound or attack, or its `members`")

    def support(self, A: Tensor) -> Tensor:
        """The least of the members' least values, (batch, S)."""
        return torch.stack([each.support(A) for each in self._members]).amin(0)

    def contains(self, x: Tensor) -> Tensor:
        """Whether each x lies in at least one of its sets: (batch, *input shape) → bool, (batch)."""
        return torch.stack([each.contains(x) for each in self._members]).any(0)

    def project(self, x: Tensor) -> Tensor:
        """The nearest of the members' projections, (batch, k, *input shape); points of the union stay."""
        given = x.detach().to(self._lower.device, torch.float64)
        found = torch.stack([each.project(given) for each in self._members])
        away = (found - given.nan_to_num(nan=0.0)).flatten(3)
        far = torch.linalg.vector_norm(away, dim=-1)
        same = (found == given).flatten(3).all(-1)  # a distance may underflow
        best = torch.where(same, -1.0, far).argmin(0)  # (batch, k)
        index = best.reshape(1, *best.shape, *[1] * (given.dim() - 2)).expand(1, *given.shape)
        return found.gather(0, index).squeeze(0)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Random points, (batch, count, *input shape): of the members in turn, two points of each."""
        found = torch.stack([each.sample(count, generator) for each in self._members])
        turn = torch.arange(count, device=found.device) // 2 % len(self._members)
        return found[turn, :, torch.arange(count, device=found.device)].transpose(0, 1)

    def step(self, x: Tensor, gradient: Tensor, share: float) -> Tensor:
        """One step of an attack: the step of the first member that a point is in."""
        found = self._members[0].step(x, gradient, share)
        taken = torch.zeros(x.shape[:2], dtype=torch.bool, device=found.device)
        for each in self._members:
            inside = torch.stack([each.contains(point) for point in x.detach().double().unbind(1)], 1)
            new = (inside.to(found.device) & ~taken).reshape(*taken.shape, *[1] * (x.dim() - 2))
            found = torch.where(new, each.step(x, gradient, share), found)
            taken |= inside.to(found.device)
        return found

    def _summary(self) -> str:
        return " ∪ ".join(repr(each) for each in self._members)


def _layout(given: InputSet) -> object:
    return given.layout if isinstance(given, Product) else None
