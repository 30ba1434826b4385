"""The user's module as the original that its graph is held against: checked, copied to float64, run eagerly.

Invariant: `OriginalModule` never changes the module. `own` is the user's object itself, in its own precision and on its
own device; `twin` is a copy of it in float64 on the CPU. Any exception of a called module becomes a VertexError.

A module that takes token ids is run at given embeddings by answering its look-ups of the ids with them (`Cut`); so the
point reaches the code behind the table, a scale of the embeddings included.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, UnsupportedModelError, VertexError

Mode: TypeAlias = Callable[[], contextlib.AbstractContextManager[Any]]
"""How torch treats gradients while a module is called."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where the graph begins in a module that takes ids: `table` is the name of the parameter they are looked up in."""

    table: str
    ids: Tensor
    """(1, tokens)"""


class OriginalModule:
    """A module with everything it is called with, but for the tensor that is perturbed."""

    def __init__(self, module: nn.Module, example: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        arguments, self.keywords = arguments_of(example, kwargs)
        self.first = None if arguments else next(iter(self.keywords), None)
        """The name of the perturbed argument, where it is given by name."""
        self.rest = tuple(arguments[1:])
        self.example = arguments[0] if arguments else self.keywords.get(str(self.first))
        self.own = module
        self.dtype = check_module(module, self.example)
        """What norms compute in."""
        self.twin = _double(module, self.dtype)
        rest = tuple(constant(a) for a in self.rest)
        named = {name: constant(value) for name, value in self.keywords.items() if name != self.first}
        self.wrapped = _Logits(self.twin, rest, named, self.first)
        """The twin as a function of one tensor to one tensor; everything else is a constant."""
        self.kinds = _kinds(module)
        """The precisions that `own` may take its input in, the likeliest first."""
        self.place = next((value.device for value in (*module.parameters(), *module.buffers())), torch.device("cpu"))
        """Where the user's object is."""
        self._wrapped: tuple[torch.dtype, nn.Module] | None = None

    def call(self, x: Tensor) -> Tensor:
        """The twin's value for an argument: the input itself, or ids."""
        with traceable():
            return _called("the module's copy in float64", self.wrapped, x)

    @contextlib.contextmanager
    def without_chance(self) -> Iterator[None]:
        """Refuse a module that draws random numbers in calls made while this is open."""
        before = _random_states(self.place)
        yield
        drawn = [name for name, state in _random_states(self.place).items() if state != before[name]]
        if drawn:
            raise UnsupportedModelError(
                f"the module draws random numbers from {' and '.join(drawn)} when it is called: it has to be a "
                "function of its input"
            )

    def twin_at(self, point: Tensor, cut: Cut | None = None) -> Tensor:
        """The twin's value, on the CPU, where the graph's input is `point`."""
        with _given(self.twin, cut, point):
            return self.call(point if cut is None else cut.ids)

    def first_part(self, point: Tensor, cut: Cut | None, recorded: Mapping[str, Tensor]) -> str | None:
        """The first part of the twin whose value, run eagerly, is not the one recorded by its name; None: none."""
        names = {part: name for name, part in self.twin.named_modules()}
        seen: dict[str, list[bool]] = {}

        def compare(part: nn.Module, _: Any, out: Any) -> None:
            there = recorded.get(names[part])
            known = isinstance(out, Tensor) and there is not None and there.shape == out.shape
            seen.setdefault(names[part], []).append(known and not _close(out, there))

        handles = [part.register_forward_hook(compare) for part in names]
        try:
            self.twin_at(point, cut)
        except UnsupportedModelError:
            return None
        finally:
            for handle in handles:
                handle.remove()
        return next((name for name, differs in seen.items() if name and differs == [True]), None)  # called once

    def table(self) -> Tensor | None:
        """The twin's table of input embeddings, if the module says which it is (`get_input_embeddings`)."""
        ask = getattr(self.twin, "get_input_embeddings", None)
        try:
            found = getattr(ask(), "weight", None) if callable(ask) else None
        except NotImplementedError:  # as transformers' base class answers
            return None
        return found.detach() if isinstance(found, Tensor) else None

    def own_at(
        self, point: Tensor, cut: Cut | None = None, *, moved: bool = True, mode: Mode = torch.no_grad
    ) -> tuple[Tensor, Tensor, torch.dtype]:
        """What the user's object gives at a point, the point as it was given to it (both float64), and its precision.

        moved=False: the ids alone, whose embeddings are `point`. mode: torch.no_grad, enable_grad or inference_mode.
        """
        place = self.place
        for kind in self.kinds:
            given = point.to(kind)
            x = given.to(place) if cut is None else cut.ids.to(place)
            try:
                with _given(self.own, cut if moved else None, given.to(place)):
                    found = _called("the module", self._own(kind), x, mode)
            except UnsupportedModelError:
                if kind is self.kinds[-1]:
                    raise
                continue
            self.kinds = (kind,)
            break
        return found.cpu().double(), given.double(), kind

    def _own(self, kind: torch.dtype) -> nn.Module:
        """The user's object as a function of one tensor, further arguments in its place and of this precision."""
        if self._wrapped is None or self._wrapped[0] != kind:
            rest = tuple(_to(a, self.place, kind) for a in self.rest)
            named = {name: _to(value, self.place, kind) for name, value in self.keywords.items() if name != self.first}
            self._wrapped = kind, _Logits(self.own, rest, named, self.first)
        return self._wrapped[1]

    def batch_at(self, points: Tensor) -> Tensor | None:
        """What the user's object gives for several points (n, …) in one batch; None if it takes no such batch."""
        place = self.place
        if self.rest or len(self.keywords) > (self.first is not None):
            return None  # further arguments are for a batch of 1
        x = points.to(place) if not points.is_floating_point() else points.to(place, self.kinds[0])
        try:
            found = _called("the module", self._own(self.kinds[0]), x)
        except VertexError:
            return None  # a module of batches of 1 says so in whatever way it likes
        return found.cpu().double() if found.dim() > 0 and len(found) == len(points) else None


class _Logits(nn.Module):
    """A module as a function of one tensor to one tensor; everything else is a constant."""

    def __init__(self, module: nn.Module, rest: tuple[Any, ...], keywords: dict[str, Any], first: str | None) -> None:
        super().__init__()
        self.module = module
        self.rest = (rest, keywords, first)
        self.training = False

    def forward(self, x: Tensor) -> Any:
        """logits, or the first tensor."""
        rest, keywords, first = self.rest
        if first is None:
            return _first(self.module(x, *rest, **keywords))
        return _first(self.module(*rest, **{**keywords, first: x}))


def _close(a: Any, b: Any) -> bool:
    """Equal but for float32's rounding, which is below any difference that matters to a search for one."""
    size = float(b.abs().nan_to_num().max()) if b.numel() else 0.0
    return float((a - b).abs().nan_to_num().max()) <= 1e-5 * size if a.numel() else True


def _first(out: Any) -> Any:
    if isinstance(out, Mapping):
        return out["logits"] if "logits" in out else _first(list(out.values()))
    if isinstance(out, list | tuple):
        return out.logits if hasattr(out, "logits") else next((o for o in out if isinstance(o, Tensor)), None)
    return out.logits if not isinstance(out, Tensor) and hasattr(out, "logits") else out


# Arguments -----------------------------------------------------------------------------------------------------------


def constant(value: Any) -> Any:
    """A copy on the CPU; floating-point tensors in float64."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().clone()
        return value.double() if value.is_floating_point() else value
    return value


def _to(value: Any, place: torch.device, kind: torch.dtype) -> Any:
    """A further argument in the place and precision of the module: it may have been given in float64."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(place, kind) if value.is_floating_point() else value.detach().to(place)


def arguments_of(example: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a call."""
    keywords = dict(kwargs or {})
    if isinstance(example, Mapping):
        return (), {**example, **keywords}
    return example if isinstance(example, tuple) else (example,), keywords


def check_example(x: Any, perturb: Any, batch_dim: int | None) -> Tensor:
    """The perturbed argument, if it is one."""
    if not isinstance(perturb, str):
        raise UnsupportedModelError(
            f"perturb is {perturb!r}: one input is perturbed, the others are constants; perturb='input' or 'embedding'"
        )
    if perturb not in ("input", "embedding"):
        raise InvalidValueError(f"perturb is {perturb!r}; choose 'input' or 'embedding'")
    if not isinstance(x, Tensor):
        raise InvalidTypeError(
            f"example is {type(x).__name__}; give a tensor with a batch of 1, such as torch.zeros(1, ...)"
        )
    if x.is_meta or x.layout != torch.strided:
        raise InvalidTypeError("example is a sparse or meta tensor; give a dense one that holds numbers")
    if batch_dim is not None and (not -x.dim() <= batch_dim < x.dim() or x.shape[batch_dim] != 1):
        raise InvalidValueError(
            f"example has shape {tuple(x.shape)}; dimension {batch_dim} has to be a batch of 1 "
            f"(batch_dim=1 for batch_first=False, batch_dim=None without a batch)"
        )
    if perturb == "input" and not x.is_floating_point():
        raise InvalidTypeError(
            f"example is {x.dtype}; perturbed inputs are floating point. For token ids: perturb='embedding'"
        )
    if perturb == "embedding" and (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool):
        raise InvalidTypeError(f"example is {x.dtype}; perturb='embedding' takes integer token ids")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise InvalidValueError("example holds NaN or infinity")
    return x


# The module ----------------------------------------------------------------------------------------------------------


def check_module(module: object, x: object) -> torch.dtype:
    """The dtype the module computes norms in (half precision: float32), once it is in eval mode with finite weights."""
    if not isinstance(module, nn.Module):
        raise InvalidTypeError(f"module is {type(module).__name__}; give a torch.nn.Module")
    _check_kind(module)
    for name, part in module.named_modules():
        if part.training:
            raise UnsupportedModelError(f"{name or 'the module'} is in train mode: call module.eval() first")
    dtype = x.dtype if isinstance(x, Tensor) else torch.float32
    for kind, named in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, value in named:
            _check_weight(f"{kind} {name}", value)
            if not value.is_floating_point():
                continue
            dtype = value.dtype if kind == "parameter" else dtype
            # −inf in a buffer is a mask
            bad = ~value.isfinite() if kind == "parameter" else value.isnan() | value.isposinf()
            if bool(bad.any()):
                raise InvalidValueError(f"{kind} {name} holds NaN or infinity; load finite weights")
    return torch.float64 if dtype == torch.float64 else torch.float32


def _check_kind(module: nn.Module) -> None:
    """Refuse wrappers whose code torch.export does not see."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"{name or 'the module'} is scripted or traced (torch.jit): give the nn.Module it was made from"
            )
    if hasattr(module, "_orig_mod"):
        raise UnsupportedModelError("the module was made by torch.compile: give the module itself, `model._orig_mod`")


def _check_weight(what: str, value: Tensor) -> None:
    if is_lazy(value):
        raise UnsupportedModelError(f"{what} has no value yet (a lazy module): call the module once before")
    if value.is_meta:
        raise UnsupportedModelError(f"{what} is on the meta device, it has a shape and no numbers: load its weights")
    if is_traceable_wrapper_subclass(value) or type(value).__name__ == "FakeTensor":
        raise UnsupportedModelError(f"{what} is a {type(value).__name__}: give a module with plain tensors as weights")
    if value.is_quantized:
        raise UnsupportedModelError(
            f"{what} is quantised ({value.dtype}): dequantise it, or give the module before it was"
        )
    if value.layout != torch.strided:
        raise UnsupportedModelError(f"{what} is sparse ({value.layout}): make it dense with .to_dense()")
    if value.is_complex():
        raise UnsupportedModelError(f"{what} is complex")
    if value.is_floating_point() and value.dtype.itemsize < 2:
        raise UnsupportedModelError(
            f"{what} is {value.dtype}, which needs scales that are no part of it: dequantise it"
        )


def _kinds(module: nn.Module) -> tuple[torch.dtype, ...]:
    held = [value.dtype for value in (*module.parameters(), *module.buffers()) if value.is_floating_point()]
    return tuple(dict.fromkeys([*held, torch.float64, torch.float32])) if held else (torch.float64, torch.float32)


def _double(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in float64 on the CPU, which computes the same but for rounding."""
    try:
        twin = copy.deepcopy(module).cpu().double()
    except Exception as error:
        raise UnsupportedModelError(
            f"the module cannot be copied to float64 on the CPU ({type(error).__name__}: {error}): everything it holds "
            "has to be copied by copy.deepcopy, tensors without a graph of gradients"
        ) from error
    if not isinstance(twin, nn.Module):
        raise UnsupportedModelError(f"a copy of the module is a {type(twin).__name__}, not an nn.Module")
    for part in twin.modules():
        if isinstance(part, nn.RMSNorm) and part.eps is None:
            part.eps = torch.finfo(dtype).eps  # what it was in the model's own precision
        if isinstance(part, nn.TransformerEncoder):
            part.register_forward_pre_hook(_trust_mask("is_causal"), with_kwargs=True)
        if isinstance(part, nn.TransformerDecoder):
            part.register_forward_pre_hook(_trust_mask("tgt_is_causal"), with_kwargs=True)
    return twin


def _trust_mask(hint: str) -> Callable[..., Any]:
    """is_causal=None makes torch look into the mask for a faster kernel; False takes the mask as it is: the same."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        position = 3 if hint == "is_causal" else 6
        given = args[position] if len(args) > position else kwargs.get(hint)
        return (args, kwargs) if given is not None else (args[:position], {**kwargs, hint: False})

    return hook


# Calls ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def traceable() -> Iterator[None]:
    """Without the fused kernels of nn.TransformerEncoder, which hide what is computed; as it was, afterwards."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _called(who: str, module: nn.Module, x: Tensor, mode: Mode = torch.no_grad) -> Tensor:
    with mode(), warnings.catch_warnings(), torch.autocast(x.device.type, enabled=False):
        warnings.simplefilter("ignore")
        try:
            found = module(x)
        except Exception as error:
            raise UnsupportedModelError(
                f"{who} cannot be called with {x.dtype} of shape {tuple(x.shape)}: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(found, Tensor):
        raise InvalidTypeError(f"the module returned {type(found).__name__}, not a tensor or logits")
    return found.detach()


def _random_states(place: torch.device) -> dict[str, object]:
    """The states of the generators that a module may draw from without being given one."""
    _, keys, position, *_ = np.random.get_state()  # noqa: NPY002 - the global one is the point
    found: dict[str, object] = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": random.getstate(),
        "numpy": (np.asarray(keys).tobytes(), position),
    }
    if place.type == "cuda":
        found["torch.cuda"] = torch.cuda.get_rng_state(place).numpy().tobytes()
    return found


@contextlib.contextmanager
def _given(module: nn.Module, cut: Cut | None, point: Tensor) -> Iterator[None]:
    """While it is open, the module's look-ups of the cut's ids give the point."""
    if cut is None:
        yield
        return
    mode = _LookUps(_held(module, cut.table), cut.ids, point)
    with mode:
        yield
    if not mode.answered:
        raise UnsupportedModelError(
            f"the module does not look the ids up in {cut.table} when it is called, though torch.export recorded that; "
            "it has to do the same every time"
        )


def _held(module: nn.Module, name: str) -> Tensor:
    """The parameter or buffer of this name."""
    owner, _, last = name.rpartition(".")
    try:
        found = getattr(module.get_submodule(owner), last)
    except AttributeError:
        found = None
    if not isinstance(found, Tensor):
        raise UnsupportedModelError(f"a copy of the module has the table {name}, but the module itself has not")
    return found


class _LookUps(TorchDispatchMode):
    """Answers every look-up of the ids in one table with the given embeddings."""

    def __init__(self, table: Tensor, ids: Tensor, point: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table, self.ids, self.point, self.answered = table, ids.reshape(-1).cpu().long(), point, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.embedding.default and self._asked(args[0], args[1]):
            self.answered += 1
            return self.point.reshape(*args[1].shape, args[0].shape[-1]).to(args[0].dtype)
        return func(*args, **(kwargs or {}))

    def _asked(self, table: Tensor, index: Tensor) -> bool:
        same = table.data_ptr() == self.table.data_ptr() and table.shape == self.table.shape
        return same and torch.equal(index.reshape(-1).cpu().long(), self.ids)
