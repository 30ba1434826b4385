"""What a module consists of, in one digest, by which a change since it was read is noticed.

Invariant: two states of a module are equal only if it has the same submodules of the same classes under the same names,
with the same bytes in their parameters, buffers and other tensors, the same settings (numbers, strings, …), the same
other attributes and the same hooks in the same order. It does not matter how a tensor was changed: by an optimiser, in
place, through `.data`, or by numpy in the same memory.

Not noticed: what lies inside an attribute that is neither a tensor nor a container of plain values, and what functions
refer to (globals, closures). The comparison with the module itself (replay.py) is what stands between those and an
answer.

    before = state_of(module)
    module.weight.data.mul_(2)
    state_of(module) == before    # False
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from vertex_softmax.graph.identity import tensor_digest

TENSORS = ("_parameters", "_buffers", "_modules")
"""The attributes of a module that hold its named parts."""
PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, type(None))
DEPTH = 8
"""How deeply containers are looked into; what lies deeper counts by its object."""


@dataclasses.dataclass(frozen=True)
class ModuleState:
    """The digest of a module. `objects` are those that count by their id, kept so that no other object gets it."""

    digest: str
    objects: tuple[object, ...] = dataclasses.field(compare=False, repr=False)


def state_of(module: nn.Module) -> ModuleState:
    """The state of a module now: one pass over the bytes of its tensors."""
    return _State().of(module)


class _State:
    """The lines that describe one module, and the objects that they name by their ids."""

    def __init__(self) -> None:
        self.objects: list[object] = []
        self.digests: dict[int, str] = {}
        """By the id of a tensor, so that one with several names is read once."""

    def of(self, module: nn.Module) -> ModuleState:
        sha = hashlib.sha256()
        for line in self._lines(module):
            data = line.encode(errors="surrogatepass")
            sha.update(len(data).to_bytes(8, "little") + data)
        return ModuleState(sha.hexdigest(), tuple(self.objects))

    def _lines(self, module: nn.Module) -> Iterator[str]:
        for name, value in sorted(vars(torch_module).items()):
            if name.startswith("_global_") and name.endswith("hooks"):
                yield f"{name} {self._hooks(value)}"
        for path, part in module.named_modules(remove_duplicate=False):
            yield f"module {path!r} {self._object(type(part))} {self._object(type(part).forward)}"
            for name, value in vars(part).items():
                if name in TENSORS:
                    yield from (f"{name} {key!r} {self._value(of)}" for key, of in value.items())
                elif name.startswith("_") and "_hooks" in name:
                    yield f"{name} {self._hooks(value)}"
            settings = {name: of for name, of in vars(part).items() if name not in TENSORS and "_hooks" not in name}
            yield from (f"{name!r} {self._value(settings[name])}" for name in sorted(settings))

    def _hooks(self, hooks: Any) -> str:
        """Hooks in the order in which they are called."""
        if not isinstance(hooks, dict):
            return self._value(hooks)
        return ", ".join(self._value(hook) for hook in hooks.values())

    def _value(self, value: object, depth: int = 0) -> str:
        """A value in words: tensors by their content, plain values by themselves, any other by its object."""
        if isinstance(value, PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return f"array {self._tensor(torch.from_numpy(np.array(value)))}"
        if depth < DEPTH and isinstance(value, list | tuple):
            return f"{type(value).__name__} [{', '.join(self._value(each, depth + 1) for each in value)}]"
        if depth < DEPTH and isinstance(value, dict):
            pairs = (f"{self._value(k, depth + 1)}: {self._value(v, depth + 1)}" for k, v in value.items())
            return f"{type(value).__name__} {{{', '.join(pairs)}}}"
        if depth < DEPTH and isinstance(value, set | frozenset):
            return f"{type(value).__name__} {sorted(self._value(each, depth + 1) for each in value)}"
        return self._object(value)

    def _tensor(self, value: Tensor) -> str:
        if id(value) not in self.digests:
            digest = tensor_digest(value)
            content = digest if digest is not None else f"{self._object(value)} {value._version}"
            self.digests[id(value)] = f"{type(value).__qualname__} {value.device} {content}"
            self.objects.append(value)
        return self.digests[id(value)]

    def _object(self, value: object) -> str:
        self.objects.append(value)
        return f"{type(value).__qualname__} at {id(value)}"
