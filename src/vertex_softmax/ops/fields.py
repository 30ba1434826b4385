"""The fields of an op: its arguments, and its constants on another device or in another precision."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops.contract import Op


def settings(op: Op) -> dict[str, object]:
    """The arguments of an op that are not tensors, for printing."""
    names = [field.name for field in dataclasses.fields(op)]  # type: ignore[arg-type]
    return {name: getattr(op, name) for name in names if not isinstance(getattr(op, name), Tensor)}


def moved(op: Op, dtype: torch.dtype, device: torch.device) -> Op:
    """The same op with its floating-point constants in another precision or on another device; itself if they are."""
    changes: dict[str, Tensor] = {}
    for field in dataclasses.fields(op):  # type: ignore[arg-type]
        value = getattr(op, field.name)
        if isinstance(value, Tensor):
            there = value.to(device, dtype if value.is_floating_point() else value.dtype)
            if there is not value:
                changes[field.name] = there
    return dataclasses.replace(op, **changes) if changes else op  # type: ignore[type-var]


def loses_small_constants(op: Op, dtype: torch.dtype) -> bool:
    """Whether a constant of the op would come to be another number in this precision because it is too small for it.

    What it is off by is at most the precision's least normal number, and not a share of it as in rounding.
    """
    constants = [value for value in vars(op).values() if isinstance(value, Tensor) and value.is_floating_point()]
    small = ((value, value.abs() < torch.finfo(dtype).tiny) for value in constants if value.dtype != dtype)
    return any(bool((where & (value.to(dtype).to(value.dtype) != value)).any()) for value, where in small)
