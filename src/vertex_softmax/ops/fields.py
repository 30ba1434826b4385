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
