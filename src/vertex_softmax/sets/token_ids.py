"""Token ids that a caller gives: integers, from 0."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.sets.arguments import first_true, tensor_of


def token_ids(ids: object, name: str = "ids") -> Tensor:
    """A copy of token ids in int64; an error if one is negative or not an integer. `name`: what errors call them."""
    if isinstance(ids, Mapping):
        raise InvalidTypeError(
            f"{name} is a {type(ids).__name__}; give its 'input_ids', and other entries to "
            "vertex_softmax.sets.loading.read(model, kwargs=...)"
        )
    rows = tensor_of(name, ids)
    if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool:
        raise InvalidTypeError(f"{name} has dtype {str(rows.dtype).removeprefix('torch.')}; ids are integers")
    rows = rows.to(torch.long, copy=True)  # a uint64 beyond int64 becomes negative
    if (index := first_true(rows < 0)) is not None:
        raise InvalidValueError(
            f"{name} is {int(rows[index])} at index {index}; ids are rows of a table, counted from 0"
        )
    return rows
