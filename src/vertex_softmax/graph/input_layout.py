"""Several inputs of a model as one flat input: all their numbers, one input after the other.

Invariant: `split` takes the numbers apart in the order in which `join` puts them together: those of the first input
come first, each input's in the order of its own tensor (the last dimension fastest).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError


@dataclasses.dataclass(frozen=True)
class InputLayout:
    """The inputs of a model in the order in which their numbers are joined; positional ones come before named ones."""

    shapes: tuple[tuple[int, ...], ...]
    """of each input, without the batch"""
    names: tuple[str | None, ...]
    """of each input; None: it is given by its position"""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each input has."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """How many numbers all inputs have."""
        return sum(self.sizes)

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """Where the numbers of each input begin and end among all."""
        return tuple(itertools.pairwise(itertools.accumulate(self.sizes, initial=0)))

    @property
    def positional(self) -> int:
        """How many inputs are given by their position."""
        return self.names.count(None)

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Joined numbers (..., size) as the inputs (..., *shape)."""
        if not flat.dim() or flat.shape[-1] != self.size:
            raise InvalidValueError(
                f"the joined inputs have shape {tuple(flat.shape)}; the last dimension holds the {self.size} numbers "
                f"of the {len(self.shapes)} inputs"
            )
        pairs = zip(self.ends, self.shapes, strict=True)
        return tuple(flat[..., a:b].reshape(*flat.shape[:-1], *shape) for (a, b), shape in pairs)

    def join(self, inputs: Sequence[Tensor]) -> Tensor:
        """Inputs (..., *shape) as one tensor (..., size)."""
        if len(inputs) != len(self.shapes):
            raise InvalidValueError(f"{len(inputs)} tensors were given for {len(self.shapes)} inputs")
        for i, (x, shape) in enumerate(zip(inputs, self.shapes, strict=True)):
            if tuple(x.shape[x.dim() - len(shape) :]) != shape:
                raise InvalidValueError(f"input {i} has shape {tuple(x.shape)}; it must be (..., {shape})")
        flat = [x.reshape(*x.shape[: x.dim() - len(s)], -1) for x, s in zip(inputs, self.shapes, strict=True)]
        return torch.cat(flat, -1)

    def arguments(self, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Inputs as the positional and the named arguments of a call."""
        named = {name: x for name, x in zip(self.names, inputs, strict=True) if name is not None}
        return tuple(inputs[: self.positional]), named

    def matched(self, model_inputs: Sequence[str]) -> tuple[str, ...]:
        """The model's names of the inputs, in this order; an error if they are not all of the model's, each once."""
        known = ", ".join(repr(name) for name in model_inputs) or "none"
        taken = list(model_inputs[: self.positional])
        for name in self.names[self.positional :]:
            if name not in model_inputs:
                raise InvalidValueError(f"the model has no input {name!r}; its inputs are {known}")
            if name in taken:
                raise InvalidValueError(
                    f"input {name!r} has two sets, one by its position and one by its name; its inputs are {known}"
                )
            taken.append(str(name))
        if len(self.names) != len(model_inputs):
            raise InvalidValueError(
                f"the product has {len(self.names)} sets, and the model {len(model_inputs)} inputs ({known}): give one "
                "set for each, Box(x, x) for an input that does not move"
            )
        return tuple(taken)
