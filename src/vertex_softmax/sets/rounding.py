"""Ends of sets that contain the real set in spite of rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.sets.arguments import first_true


def outward(x: Tensor, dtype: torch.dtype, way: float) -> Tensor:
    """Of one end of a set, in float64: the nearest number of another precision that is not inside; x if it has x.

    way: where outward is, −inf of a lower end and inf of an upper one.
    """
    moved = x.to(dtype)
    inside = moved.double() > x if way < 0 else moved.double() < x
    return torch.where(inside, torch.nextafter(moved, torch.full_like(moved, way)), moved)


def around(name: str, x: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Floats with lower ≤ x − eps and x + eps ≤ upper in exact arithmetic, equal to them where they are floats."""
    upper, lower = _add_up(x, eps), -_add_up(-x, eps)
    if (at := first_true(~(lower.isfinite() & upper.isfinite()))) is not None:
        raise InvalidValueError(
            f"{name} ± eps overflows at index {at}: {x[at].item()!r} ± {eps[at].item()!r}; choose a smaller eps"
        )
    return lower, upper


def _add_up(a: Tensor, b: Tensor) -> Tensor:
    """A float that is at least a + b: the sum if it is exact or was rounded up, else the next float above it.

    Knuth's two-sum: a + b = s + error exactly, with s the rounded sum.
    """
    s = a + b
    part = s - a
    error = (a - (s - part)) + (b - part)
    return torch.where(error > 0, torch.nextafter(s, torch.full_like(s, torch.inf)), s)
