"""A box given by its two ends."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.sets.arguments import Array, batch_of, first_true
from vertex_softmax.sets.base import InputSet


class Box(InputSet):
    """The box lower ≤ x ≤ upper, elementwise, with exactly the ends that were given; both (batch, *input shape).

    `reference`: the points of the boxes that are meant as their centres, (batch, *input shape): where clean margins are
    computed, and where an attack begins. Without them it is the middle of the box.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("lower", "upper", "reference")

    _reference: Tensor | None

    def __init__(self, lower: Array, upper: Array, reference: Array | None = None) -> None:
        low, high = batch_of("lower", lower), batch_of("upper", upper)
        if low.shape != high.shape:
            raise InvalidValueError(f"lower has shape {tuple(low.shape)}, upper {tuple(high.shape)}; make them equal")
        if low.device != high.device:
            raise InvalidValueError(f"lower is on {low.device} and upper on {high.device}; move one with .to(device)")
        if (index := first_true(low > high)) is not None:
            raise InvalidValueError(
                f"lower > upper at index {index}: {low[index].item()!r} > {high[index].item()!r}; "
                "swap them, or widen the box to contain both"
            )
        point = None if reference is None else batch_of("reference", reference)
        if point is not None:
            if point.shape != low.shape:
                raise InvalidValueError(
                    f"reference has shape {tuple(point.shape)}, lower {tuple(low.shape)}; make them equal"
                )
            if point.device != low.device:
                raise InvalidValueError(
                    f"reference is on {point.device} and lower on {low.device}; move one with .to(device)"
                )
            if (index := first_true((point < low) | (point > high))) is not None:
                raise InvalidValueError(
                    f"reference is {point[index].item()!r} at index {index}, outside the box from "
                    f"{low[index].item()!r} to {high[index].item()!r}; give a point of the box"
                )
        self._set(lower=low, upper=high, reference=point)

    @property
    def reference(self) -> Tensor | None:
        """The points that are meant as centres, (batch, *input shape); None if none were given. A copy."""
        return None if self._reference is None else self._reference.clone()

    @property
    def centre(self) -> Tensor:
        """The reference points, or the middles of the boxes, (batch, *input shape); a copy."""
        return super().centre if self._reference is None else self._reference.clone()
