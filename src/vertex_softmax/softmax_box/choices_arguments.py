"""The arguments of the functions on choices: conversion to tensors, and all error messages about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.softmax_box.arguments import Array, first_index, tensors

Allowed: TypeAlias = "NDArray[np.bool_] | Tensor"
LARGEST = 2.0**500
"""The largest size of a value: products with weights stay finite."""


class ScoredChoices(NamedTuple):
    """A batch of rows: float64 values and scores and bool `allowed`, all of the shape (..., K, C)."""

    values: Tensor
    scores: Tensor
    allowed: Tensor


def choice_rows(
    values: Array, scores: Array, allowed: Allowed | None, names: tuple[str, str] = ("values", "scores")
) -> tuple[ScoredChoices, Callable[[Tensor], Array]]:
    """The checked arguments, broadcast, and the function that converts a result to the caller's array type.

    `names` is what the caller calls the first two.
    """
    pairs = list(zip(names, (values, scores), strict=True))
    shapes = {name: shape_of(name, value) for name, value in pairs}
    there = mask_of(allowed, isinstance(values, Tensor))
    shapes |= {} if allowed is None else {"allowed": tuple(there.shape)}
    try:
        shape = np.broadcast_shapes(*shapes.values())
    except ValueError:
        shape = ()
    if len({one[-2:] for one in shapes.values()}) != 1 or not shape:
        listed = ", ".join(f"{name} {one}" for name, one in shapes.items())
        raise InvalidValueError(
            f"the shapes do not broadcast: {listed}; all need the same numbers of keys and choices in the last two "
            "dimensions, and leading dimensions that are equal or 1"
        )
    given, back = tensors(pieces=(), **dict(pairs))
    v, s = (given[name].detach().double() for name in names)
    for name, value in zip(names, (v, s), strict=True):
        if bool((bad := ~value.isfinite()).any()):
            index = first_index(bad)
            raise InvalidValueError(
                f"{name} is {value[index].item()} at index {index}; it must be finite: "
                "to leave a choice out, set `allowed` to False there"
            )
    check_size(names[0], v)
    there = there.to(v.device).expand(shape)
    if bool((bad := ~there.any(-1)).any()):
        raise InvalidValueError(
            f"no choice is allowed for the key at index {first_index(bad)}; allow one, or leave the key or the row out"
        )
    return ScoredChoices(v.expand(shape), s.expand(shape), there), back


def shape_of(name: str, value: object) -> tuple[int, ...]:
    """The shape (..., K, C) of an argument; an error if there is no key or no choice."""
    try:
        shape = tuple(value.shape) if isinstance(value, Tensor) else np.asarray(value).shape
    except ValueError as error:
        raise InvalidTypeError(f"{name} cannot be read as an array: {error}") from error
    if len(shape) < 2 or 0 in shape[-2:]:
        raise InvalidValueError(f"{name} has shape {shape}; it needs (..., K, C) with K ≥ 1 keys and C ≥ 1 choices")
    return shape


def mask_of(allowed: Allowed | None, tensor: bool) -> Tensor:
    """`allowed` as a tensor of bools; (1, 1) and true if it is None."""
    if allowed is None:
        return torch.ones(1, 1, dtype=torch.bool)
    if isinstance(allowed, Tensor) != tensor:
        raise InvalidTypeError("allowed and values must both be torch tensors, or neither")
    shape_of("allowed", allowed)
    given = allowed.dtype if isinstance(allowed, Tensor) else np.asarray(allowed).dtype
    if given not in (torch.bool, np.dtype(bool)):
        raise InvalidTypeError(f"allowed has dtype {str(given).removeprefix('torch.')}; pass bools")
    return allowed if isinstance(allowed, Tensor) else torch.from_numpy(np.array(allowed))


def check_size(name: str, value: Tensor) -> None:
    """Raise if a number is larger than LARGEST."""
    if bool((bad := value.abs() > LARGEST).any()):
        index = first_index(bad)
        raise InvalidValueError(
            f"{name} is {value[index].item()} at index {index}; sizes up to 2^500 are supported: divide all by a number"
        )
