"""The arrays and numbers that a caller makes sets from: checked, copied and converted to float64."""

from __future__ import annotations

import math
import numbers
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError

Array: TypeAlias = "NDArray[np.floating] | Tensor"


def tensor_of(name: str, value: object) -> Tensor:
    """The caller's array as a tensor of its own dtype, detached from autograd; a tensor is not copied."""
    if isinstance(value, Tensor):
        if value.is_meta or value.layout != torch.strided:
            raise InvalidTypeError(f"{name} is a sparse or meta tensor; pass a dense one that holds numbers")
        return value.detach()
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTypeError(f"{name} is a numpy masked array, whose mask would be lost; pass a plain array")
    if hasattr(value, "centre") and hasattr(value, "lower"):
        raise InvalidTypeError(f"{name} is a {type(value).__name__}, a set of inputs; give the inputs themselves")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidTypeError(f"{name} cannot be read as an array: {error}") from error
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        text = " (text)" if array.dtype.kind in "US" else ""
        raise InvalidTypeError(f"{name} has dtype {array.dtype}{text}; pass real numbers of at most 64 bits")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def floats_of(name: str, value: object) -> Tensor:
    """A float64 copy of an array of finite floats; anything else is an error that names the first bad entry."""
    tensor = tensor_of(name, value)
    if tensor.dtype not in (torch.float32, torch.float64):
        kind = str(tensor.dtype).removeprefix("torch.")
        remedy = "convert with .double(), or .astype(numpy.float64)"
        if not tensor.is_floating_point():
            remedy += ", and scale bytes to [0, 1] with / 255; around token ids make a TokenBall or TokenChoices"
        raise InvalidTypeError(f"{name} has dtype {kind}; only float32 and float64 are supported: {remedy}")
    if (index := first_true(~tensor.isfinite())) is not None:
        where = f" at index {index}" if index else ""
        raise InvalidValueError(f"{name} is {tensor[index].item()}{where}; an input set needs finite numbers")
    return tensor.to(torch.float64, copy=True)


def batch_of(name: str, value: object) -> Tensor:
    """A batch of inputs, (batch, *input shape), as a float64 copy."""
    batch = floats_of(name, value)
    if batch.dim() < 2:
        raise InvalidValueError(
            f"{name} has shape {tuple(batch.shape)}; it must be (batch, *input shape): use {name}[None] for one input"
        )
    if 0 in batch.shape[1:]:
        raise InvalidValueError(f"{name} has shape {tuple(batch.shape)}: an input without entries")
    return batch


def radius_of(eps: object, x: Tensor) -> Tensor:
    """eps as a non-negative tensor of x's shape (batch, *input shape).

    eps is one number, one number per input (batch), or anything that broadcasts to x. A number that is no float64 is
    rounded up.
    """
    if isinstance(eps, numbers.Real) and not isinstance(eps, (bool, np.generic)):
        eps = _not_below("eps", eps)
    radius = floats_of("eps", eps).to(x.device)
    given = tuple(radius.shape)
    if radius.dim() == 1 and len(radius) == len(x):
        radius = radius.reshape(-1, *[1] * (x.dim() - 1))
    try:
        radius = radius.broadcast_to(x.shape)
    except RuntimeError:
        raise InvalidValueError(
            f"eps has shape {given}, which is neither one number, one per input ({len(x)}), "
            f"nor broadcast to {tuple(x.shape)}"
        ) from None
    if (index := first_true(radius < 0)) is not None:
        where = f" at index {index}" if given else ""
        raise InvalidValueError(f"eps is {radius[index].item()!r}{where}; a radius is at least 0")
    return radius


def _not_below(name: str, number: numbers.Real) -> float:
    """The least float64 that is not below a number."""
    try:
        near = float(number)
    except OverflowError:
        raise InvalidValueError(f"{name} is beyond the largest float64; choose a smaller one") from None
    return near if number <= near else math.nextafter(near, math.inf)


def clip_of(clip: tuple[float, float]) -> tuple[float, float]:
    """The range (low, high) that every entry of an input is restricted to, with low ≤ high."""
    try:
        low, high = (float(end) for end in clip)
    except (TypeError, ValueError):
        raise InvalidTypeError(f"clip is {clip!r}; pass two numbers, such as (0, 1), or None") from None
    except OverflowError:
        raise InvalidValueError("an end of clip is beyond the largest float64; pass ±inf for no end") from None
    if not low <= high:
        raise InvalidValueError(f"clip is {clip!r}; its lower end comes first and neither is NaN")
    return low, high


def first_true(mask: Tensor) -> tuple[int, ...] | None:
    """The index of the first true entry of a bool tensor, or None if there is none."""
    return tuple(int(i) for i in mask.nonzero()[0]) if bool(mask.any()) else None
