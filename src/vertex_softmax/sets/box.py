"""A box given by its two ends."""

from __future__ import annotations

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.sets.arguments import Array, batch_of, first_true
from vertex_softmax.sets.base import InputSet


class Box(InputSet):
    """The box lower ≤ x ≤ upper, elementwise, with exactly the ends that were given; both (batch, *input shape)."""

    def __init__(self, lower: Array, upper: Array) -> None:
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
        self._set(lower=low, upper=high)
