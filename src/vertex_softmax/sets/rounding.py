"""Ends of sets, rounded outwards so that the set they describe contains the real one."""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.two_sum import two_sum
from vertex_softmax.sets.arguments import first_true


def outward(x: Tensor, dtype: torch.dtype, direction: float) -> Tensor:
    """One end of a set, x in float64, rounded outwards to another precision; unchanged where it is representable.

    direction: −inf for a lower end (the result is ≤ x), inf for an upper end (the result is ≥ x).
    """
    rounded = x.to(dtype)
    inside = rounded.double() > x if direction < 0 else rounded.double() < x
    return torch.where(inside, torch.nextafter(rounded, torch.full_like(rounded, direction)), rounded)


def around(name: str, x: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """(lower, upper) with lower ≤ x − eps and x + eps ≤ upper in exact arithmetic, equal where those are floats.

    `name` is the caller's name for x, used in errors.
    """
    upper, lower = _sum_rounded_up(x, eps), -_sum_rounded_up(-x, eps)
    if (index := first_true(~(lower.isfinite() & upper.isfinite()))) is not None:
        raise InvalidValueError(
            f"{name} ± eps overflows at index {index}: {x[index].item()!r} ± {eps[index].item()!r}; "
            "choose a smaller eps"
        )
    return lower, upper


def _sum_rounded_up(a: Tensor, b: Tensor) -> Tensor:
    """A float that is at least a + b: the sum if it is exact or was rounded up, else the next float above it."""
    s, error = two_sum(a, b)
    return torch.where(error > 0, torch.nextafter(s, torch.full_like(s, torch.inf)), s)
