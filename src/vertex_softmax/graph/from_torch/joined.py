"""A module of several inputs as a module of one: the numbers of all inputs, joined.

Invariant: `Joined(module, layout)` at joined numbers (n, size) is the module at the inputs (n, *shape) that these are.
`require_wired` compares the two at inputs that are all different, so that no two inputs can have changed places.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vertex_softmax.foundation.errors import InternalError, InvalidValueError, UnsupportedModelError
from vertex_softmax.graph.from_torch.module import OriginalModule, called_with, moved_to
from vertex_softmax.graph.input_layout import InputLayout

POINTS = 3
"""At so many random points the joined module is compared with the module itself."""
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""What two calls of a module with the same numbers may differ by, as a share of the largest; else HALF."""
HALF = 0.05


class Joined(nn.Module):
    """The module as a function of one tensor (n, size); what its inputs are is the layout's."""

    def __init__(self, module: nn.Module, layout: InputLayout) -> None:
        super().__init__()
        self.module, self.layout = module, layout
        self.training = False

    def forward(self, flat: Tensor, /, **constants: Any) -> Any:
        """What the module returns for the inputs."""
        positional, named = self.layout.arguments(self.layout.split(flat))
        return self.module(*positional, **named, **constants)


def require_fitting(module: nn.Module, layout: InputLayout, constants: Mapping[str, Any] | None) -> None:
    """Raise unless the module can be called with so many positional inputs and these named ones."""
    taken = sorted(set(layout.names) & set(constants or {}), key=str)
    if taken:
        raise InvalidValueError(f"input {taken[0]!r} has a set, and is among the constant arguments (kwargs) too")
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return  # its own error will have to do
    named = {name: None for name in layout.names if name is not None}
    taken_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())
    unknown = [name for name in named if name not in signature.parameters and not taken_any]
    if unknown:
        known = ", ".join(repr(name) for name in signature.parameters) or "none"
        raise InvalidValueError(
            f"{type(module).__name__}.forward has no input {unknown[0]!r}; its arguments are {known}"
        )
    try:
        signature.bind(*[None] * layout.positional, **named, **(constants or {}))
    except TypeError as error:
        raise InvalidValueError(
            f"the product has {len(layout.names)} sets, which do not fit the inputs of {type(module).__name__}"
            f".forward{signature}: {error}. Give one set for each input, by position or by name, and Box(x, x) for one "
            "that does not move"
        ) from error


def require_wired(module: nn.Module, joined: OriginalModule, layout: InputLayout) -> None:
    """Raise unless the module itself and the joined one agree at random inputs, given to the first one by one."""
    generator = torch.Generator().manual_seed(len(layout.shapes))
    for _ in range(POINTS):
        inputs = [torch.randn(1, *shape, generator=generator, dtype=torch.float64) for shape in layout.shapes]
        theirs, kind = _alone(module, joined, layout, inputs)
        flat = torch.cat([x.to(kind).double().flatten(1) for x in inputs], 1)
        ours = joined.own_at(flat)[0]
        size = float(theirs.nan_to_num(0.0, 0.0, 0.0).abs().max()) if theirs.numel() else 0.0
        close = CLOSE.get(kind, HALF) * size
        if theirs.shape != ours.shape or not torch.allclose(ours, theirs, rtol=0.0, atol=close, equal_nan=True):
            raise UnsupportedModelError(
                "the module gives something else when its inputs are taken from one joined tensor than when it is "
                "called with them: it has to be a function of its inputs, the same at every call"
            )


def _alone(
    module: nn.Module, joined: OriginalModule, layout: InputLayout, inputs: Sequence[Tensor]
) -> tuple[Tensor, torch.dtype]:
    """What the module itself gives for inputs (1, *shape) in its own precision, and the precision."""
    for kind in joined.kinds:
        constants = {name: moved_to(value, joined.device, kind) for name, value in joined.keywords.items()}
        positional, named = layout.arguments([x.to(joined.device, kind) for x in inputs])
        try:
            return called_with(module, positional, {**named, **constants}), kind
        except UnsupportedModelError as error:
            if kind is joined.kinds[-1]:
                shapes = ", ".join(str((1, *shape)) for shape in layout.shapes)
                raise InvalidValueError(
                    f"the sets of the product do not fit the module's inputs, of shapes {shapes}: {error}"
                ) from error
    raise InternalError("a module has no precision")
