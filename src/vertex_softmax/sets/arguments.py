"""The arrays and numbers that sets are made from, as the caller gave them: checked, copied, in float64."""

from __future__ import annotations

import numbers
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError

Array: TypeAlias = "NDArray[np.floating] | Tensor"


def tensor_of(name: str, value: object) -> Tensor:
    """The caller's array as a tensor of its own dtype, apart from any graph of gradients; not yet copied."""
    if isinstance(value, Tensor):
        if value.is_meta or value.layout != torch.strided:
            raise InvalidTypeError(f"{name} is a sparse or meta tensor; pass a dense one that holds numbers")
        return value.detach()
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTypeError(f"{name} is a numpy masked array, whose mask would be lost; pass a plain array")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidTypeError(f"{name} cannot be read as an array: {error}") from error
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InvalidTypeError(f"{name} has dtype {array.dtype}; pass float32 or float64")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def floats_of(name: str, value: object) -> Tensor:
    """A float64 copy of finite floats, or an error that says what is wrong with them."""
    found = tensor_of(name, value)
    if found.dtype not in (torch.float32, torch.float64):
        kind = str(found.dtype).removeprefix("torch.")
        scale = "convert with .double(), or .astype(numpy.float64), and scale bytes to [0, 1] with / 255"
        raise InvalidTypeError(f"{name} has dtype {kind}; only float32 and float64 are supported: {scale}")
    if (at := first_true(~found.isfinite())) is not None:
        raise InvalidValueError(f"{name} is {found[at].item()} at index {at}; an input set needs finite numbers")
    return found.to(torch.float64, copy=True)


def batch_of(name: str, value: object) -> Tensor:
    """A batch of inputs, (batch, *input shape), as a float64 copy."""
    found = floats_of(name, value)
    if found.dim() < 2:
        raise InvalidValueError(
            f"{name} has shape {tuple(found.shape)}; it must be (batch, *input shape): use {name}[None] for one input"
        )
    if 0 in found.shape[1:]:
        raise InvalidValueError(f"{name} has shape {tuple(found.shape)}: an input without entries")
    return found


def radius_of(eps: object, x: Tensor) -> Tensor:
    """eps as a tensor of x's shape, nowhere negative."""
    if isinstance(eps, numbers.Real) and not isinstance(eps, (bool, np.generic)):
        eps = float(eps)
    found = floats_of("eps", eps).to(x.device)
    given = tuple(found.shape)
    if found.dim() == 1 and len(found) == len(x):
        found = found.reshape(-1, *[1] * (x.dim() - 1))
    try:
        found = found.broadcast_to(x.shape)
    except RuntimeError:
        raise InvalidValueError(
            f"eps has shape {given}, which is neither one number, one per input ({len(x)}), "
            f"nor broadcast to {tuple(x.shape)}"
        ) from None
    if (at := first_true(found < 0)) is not None:
        raise InvalidValueError(f"eps is {found[at].item()!r} at index {at}; a radius is at least 0")
    return found


def clip_of(clip: tuple[float, float]) -> tuple[float, float]:
    """The two ends that every entry of an input keeps to."""
    try:
        low, high = (float(end) for end in clip)
    except (TypeError, ValueError):
        raise InvalidTypeError(f"clip is {clip!r}; pass two numbers, such as (0, 1), or None") from None
    if not low <= high:
        raise InvalidValueError(f"clip is {clip!r}; its lower end comes first and neither is NaN")
    return low, high


def first_true(bad: Tensor) -> tuple[int, ...] | None:
    """The index of the first true entry, or None."""
    return tuple(int(i) for i in bad.nonzero()[0]) if bool(bad.any()) else None
