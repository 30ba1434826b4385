"""The arguments of the public functions: conversion to tensors, and all error messages about them.

`tensors` converts the arguments to torch tensors of one dtype and device without copying them; `diagnose` finds the
first invalid entry. Solvers do not search for invalid entries: they return NaN for a row they cannot handle, which
costs nothing, and `diagnose` is called only then.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError

Array: TypeAlias = "NDArray[np.floating] | Tensor"


def tensors(
    *, pieces: tuple[str, ...] = (), **arguments: object
) -> tuple[dict[str, Tensor], Callable[[Tensor], Array]]:
    """The arguments as tensors of a common dtype (not broadcast, not copied), and a function that converts a result.

    The function converts a result tensor to the caller's array type. `pieces` names the arguments whose last dimension
    is not the K keys but M pieces.
    """
    are_tensors = {name: isinstance(value, Tensor) for name, value in arguments.items()}
    if any(are_tensors.values()) and not all(are_tensors.values()):
        other = next(name for name, yes in are_tensors.items() if not yes)
        raise InvalidTypeError(
            f"{other} is not a torch tensor but another argument is; pass all of them as tensors, or all as arrays"
        )
    given = {
        name: value.resolve_conj().resolve_neg() if isinstance(value, Tensor) else _from_numpy(name, value)
        for name, value in arguments.items()
    }
    for name, value in given.items():
        if value.dtype not in (torch.float32, torch.float64):
            remedy = "convert with .double()" if are_tensors[name] else "convert with .astype(numpy.float64)"
            raise InvalidTypeError(
                f"{name} has dtype {_dtype_name(value)}; only float32 and float64 are supported: {remedy}"
            )
        if value.is_meta:
            raise InvalidTypeError(f"{name} is a meta tensor, which holds no numbers; pass a real one")
        if value.layout != torch.strided:
            raise InvalidTypeError(f"{name} is sparse; convert with .to_dense()")
        last, size = ("piece", "M") if name in pieces else ("key", "K")
        if value.ndim == 0:
            raise InvalidValueError(
                f"{name} is a scalar; its last dimension must be the {last}s: use {name}[None] for {size} = 1"
            )
        if value.shape[-1] == 0:
            needs = "softmax" if size == "K" else "the rule"
            raise InvalidValueError(
                f"{name} has shape {tuple(value.shape)}: there is no {last} ({size} = 0); {needs} needs {size} ≥ 1"
            )
    devices = {value.device for value in given.values()}
    if len(devices) > 1:
        where = ", ".join(f"{name} on {value.device}" for name, value in given.items())
        raise InvalidValueError(f"the arguments are on different devices ({where}); move them with .to(device)")
    _check_shapes(given, pieces)
    dtype = torch.float64 if any(v.dtype == torch.float64 for v in given.values()) else torch.float32
    converted = {name: value.to(dtype) for name, value in given.items()}  # float32 to float64 is exact
    return converted, (_same if any(are_tensors.values()) else _to_numpy)


def _same(result: Tensor) -> Array:
    return result


def _to_numpy(result: Tensor) -> Array:
    return result.detach().numpy()[()]


def _dtype_name(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _from_numpy(name: str, value: object) -> Tensor:
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTypeError(f"{name} is a numpy masked array, whose mask would be lost; mask keys with -inf instead")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidTypeError(f"{name} cannot be read as an array: {error}") from error
    if array.dtype.kind not in "fiub":
        raise InvalidTypeError(f"{name} has dtype {array.dtype}; pass float32 or float64")
    if array.dtype.itemsize > 8:
        raise InvalidTypeError(
            f"{name} has dtype {array.dtype}; only float32 and float64 are supported: "
            "convert with .astype(numpy.float64)"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array)  # torch has no negative strides
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing here writes to it
        return torch.from_numpy(array)


def _check_shapes(given: dict[str, Tensor], pieces: tuple[str, ...]) -> None:
    """Raise unless the leading dimensions broadcast and all arguments but `pieces` have the same number of keys."""
    keys = {value.shape[-1] for name, value in given.items() if name not in pieces}
    try:
        np.broadcast_shapes(*(value.shape[:-1] for value in given.values()))
    except ValueError:
        keys = set()
    if len(keys) != 1:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in given.items())
        raise InvalidValueError(
            f"the shapes do not broadcast: {shapes}; all need the same number of keys in the last dimension, "
            "and leading dimensions that are equal or 1"
        )


def all_valid(c: Tensor, lower: Tensor, upper: Tensor) -> bool:
    """Whether all rows are valid, that is, `diagnose` would not raise; each argument is (rows, K)."""
    ends = (lower <= upper) & (upper < torch.inf) & ((lower > -torch.inf) | (upper == -torch.inf)) & c.isfinite()
    return bool(ends.all() & (upper > -torch.inf).any(-1).all())


def first_index(bad: Tensor) -> tuple[int, ...]:
    """The index of the first true entry; there is one."""
    return tuple(int(i) for i in bad.nonzero()[0])


def diagnose(lower: Tensor, upper: Tensor, c: Tensor | None = None) -> None:
    """Raise an error that names the first invalid argument, the index and a remedy; return if every entry is valid."""
    for name, value in (("c", c), ("lower", lower), ("upper", upper)):
        if value is not None and bool((bad := value.isnan()).any()):
            raise InvalidValueError(
                f"{name} is NaN at index {first_index(bad)}; a bound computed from it would mean nothing"
            )
    if c is not None and bool((bad := c.isinf()).any()):
        raise InvalidValueError(
            f"c is {c[first_index(bad)].item()} at index {first_index(bad)}; coefficients must be finite: "
            "to leave a key out, mask it with lower = upper = -inf"
        )
    for name, value in (("lower", lower), ("upper", upper)):
        if bool((bad := value == float("inf")).any()):
            raise InvalidValueError(
                f"{name} is +inf at index {first_index(bad)}; scores must be bounded above: pass a finite bound"
            )
    lo, up = torch.broadcast_tensors(lower, upper)
    if bool((bad := lo > up).any()):
        index = first_index(bad)
        raise InvalidValueError(
            f"lower > upper at index {index}: {lo[index].item()!r} > {up[index].item()!r}; "
            "swap them, or widen the box to contain both"
        )
    if bool((bad := (lo == -float("inf")) & (up != -float("inf"))).any()):
        index = first_index(bad)
        raise InvalidValueError(
            f"lower is -inf but upper is {up[index].item()!r} at index {index}; "
            "a masked key needs both at -inf, any other a finite lower bound"
        )
    if bool((bad := (up == -float("inf")).all(-1)).any()):
        raise InvalidValueError(
            f"every key is masked (-inf) in row {first_index(bad)}; softmax of no key is undefined: "
            "unmask one, or leave the row out"
        )


def check_affine(  # the arguments of the public affine_minorant
    lower: Tensor, upper: Tensor, value_lower: Tensor, value_upper: Tensor, a: Tensor, m: Tensor, mu: Tensor
) -> None:
    """Raise an error that names the first invalid argument of `affine_minorant`, its index and a remedy."""
    parameters = {"value_lower": value_lower, "value_upper": value_upper, "a": a, "m": m, "mu": mu}
    ends = (lower <= upper) & (upper < torch.inf) & ((lower > -torch.inf) | (upper == -torch.inf))
    valid = ends.all() & (upper > -torch.inf).any(-1).all() & ((upper > -torch.inf) | (a == 0)).all()
    for value in parameters.values():
        valid &= value.isfinite().all()
    if bool(valid & (value_lower <= value_upper).all()):
        return
    for name, value in parameters.items():
        if bool((bad := value.isnan()).any()):
            raise InvalidValueError(
                f"{name} is NaN at index {first_index(bad)}; a bound computed from it would mean nothing"
            )
    diagnose(lower, upper)
    for name, value in parameters.items():
        if bool((bad := value.isinf()).any()):
            raise InvalidValueError(
                f"{name} is {value[first_index(bad)].item()} at index {first_index(bad)}; it must be finite"
            )
    lo, up = torch.broadcast_tensors(value_lower, value_upper)
    if bool((bad := lo > up).any()):
        index = first_index(bad)
        raise InvalidValueError(
            f"value_lower > value_upper at index {index}: {lo[index].item()!r} > {up[index].item()!r}; "
            "swap them, or widen the box to contain both"
        )
    slope, up = torch.broadcast_tensors(a, upper)
    index = first_index((up == -torch.inf) & (slope != 0))
    raise InvalidValueError(
        f"a is {slope[index].item()!r} at index {index}, where the key is masked (-inf); "
        "the slope of a masked key must be 0"
    )
