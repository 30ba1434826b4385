"""The user's module as the original that its graph is compared with: checked, copied to float64, run eagerly.

Invariant: `OriginalModule` never changes the module. `own` is the user's object itself, in its own precision and on its
own device; `twin` is a copy of it in float64 on the CPU. Any exception of a called module becomes a VertexError.

A module that takes token ids is run at given embeddings by returning them from its look-ups of the ids (`TokenLookUp`);
so all code after the table runs on the given point, including a scaling of the embeddings.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
import threading
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
"""The gradient mode in which a module is called: torch.no_grad, torch.enable_grad or torch.inference_mode."""


_LOCK = threading.RLock()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """A context, or with `@` a function, that one thread at a time is in: it copies, exports or runs a module.

    torch.export replaces parts of torch for the whole process, and other settings used here (fused kernels, warnings,
    random generators) belong to the process too.
    """
    with _LOCK:
        yield


@dataclasses.dataclass(frozen=True)
class TokenLookUp:
    """Where the graph begins in a module that takes token ids: at their look-up in the embedding table."""

    table: str
    """The name of the table, a parameter or buffer of the module."""
    ids: Tensor
    """The token ids, (1, tokens)."""


class OriginalModule:
    """A module with all arguments of its call except the perturbed tensor, and its copy in float64."""

    def __init__(self, module: nn.Module, example: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        arguments, self.keywords = arguments_of(example, kwargs)
        self.first = None if arguments else next(iter(self.keywords), None)
        """The name of the perturbed argument if it is passed by keyword, else None."""
        self.rest = tuple(arguments[1:])
        self.example = arguments[0] if arguments else self.keywords.get(str(self.first))
        self.own = module
        self.dtype = check_module(module, self.example)
        """The precision that the module computes norms in."""
        self.twin = _double(module, self.dtype)
        rest = tuple(constant(a) for a in self.rest)
        named = {name: constant(value) for name, value in self.keywords.items() if name != self.first}
        self.wrapped = _Logits(self.twin, rest, named, self.first)
        """The twin as a function from one tensor to one tensor; all other arguments are constants."""
        self.kinds = _kinds(module)
        """The precisions in which `own` may take its input, the most likely first."""
        self.half = frozenset(p.dtype for p in module.parameters() if p.is_floating_point() and p.dtype.itemsize < 4)
        """The precisions below float32 among its parameters: in these it may round, as a whole."""
        self.device = next((value.device for value in (*module.parameters(), *module.buffers())), torch.device("cpu"))
        """The device of the user's object."""
        self._wrapped: tuple[torch.dtype, nn.Module] | None = None

    def call(self, x: Tensor) -> Tensor:
        """The twin's value for its perturbed argument: an input, or token ids."""
        with traceable():
            return _called("the module's copy in float64", self.wrapped, x)

    @contextlib.contextmanager
    def without_random_numbers(self) -> Iterator[None]:
        """A context that raises at its end if the module drew random numbers in a call within it."""
        before = _random_states(self.device)
        yield
        drawn = [name for name, state in _random_states(self.device).items() if state != before[name]]
        if drawn:
            raise UnsupportedModelError(
                f"the module draws random numbers from {' and '.join(drawn)} when it is called: it has to be a "
                "function of its input"
            )

    def twin_at(self, point: Tensor, look_up: TokenLookUp | None = None) -> Tensor:
        """The twin's value, on the CPU, for the graph's input `point`."""
        with _embeddings_replaced(self.twin, look_up, point):
            return self.call(point if look_up is None else look_up.ids)

    def first_part(self, point: Tensor, look_up: TokenLookUp | None, recorded: Mapping[str, Tensor]) -> str | None:
        """The name of the first submodule of the twin whose eager value differs from the recorded one; None if none.

        `recorded` maps names of submodules to their values in the exported program.
        """
        names = {part: name for name, part in self.twin.named_modules()}
        seen: dict[str, list[bool]] = {}

        def compare(part: nn.Module, _: Any, out: Any) -> None:
            expected = recorded.get(names[part])
            comparable = isinstance(out, Tensor) and expected is not None and expected.shape == out.shape
            seen.setdefault(names[part], []).append(comparable and not _close(out, expected))

        handles = [part.register_forward_hook(compare) for part in names]
        try:
            self.twin_at(point, look_up)
        except UnsupportedModelError:
            return None
        finally:
            for handle in handles:
                handle.remove()
        return next((name for name, differs in seen.items() if name and differs == [True]), None)  # called once

    def table(self) -> Tensor | None:
        """The twin's table of input embeddings, if the module has a method `get_input_embeddings`; else None."""
        getter = getattr(self.twin, "get_input_embeddings", None)
        try:
            weight = getattr(getter(), "weight", None) if callable(getter) else None
        except NotImplementedError:  # raised by the base class of transformers
            return None
        return weight.detach() if isinstance(weight, Tensor) else None

    def own_at(
        self, point: Tensor, look_up: TokenLookUp | None = None, *, moved: bool = True, mode: Mode = torch.no_grad
    ) -> tuple[Tensor, Tensor, torch.dtype]:
        """(value, point, precision): the value of the user's object at a point, and the point rounded to its precision.

        Value and point are float64. moved=False: the module looks its ids up itself; their embeddings are `point`.
        """
        device = self.device
        for kind in self.kinds:
            rounded = point.to(kind)
            x = rounded.to(device) if look_up is None else look_up.ids.to(device)
            try:
                with _embeddings_replaced(self.own, look_up if moved else None, rounded.to(device)):
                    value = _called("the module", self._own(kind), x, mode)
            except UnsupportedModelError:
                if kind is self.kinds[-1]:
                    raise
                continue
            self.kinds = (kind,)
            break
        return value.cpu().double(), rounded.double(), kind

    def _own(self, kind: torch.dtype) -> nn.Module:
        """The user's object as a function of one tensor; further arguments are on its device and in this precision."""
        if self._wrapped is None or self._wrapped[0] != kind:
            rest = tuple(moved_to(a, self.device, kind) for a in self.rest)
            named = {
                name: moved_to(value, self.device, kind) for name, value in self.keywords.items() if name != self.first
            }
            self._wrapped = kind, _Logits(self.own, rest, named, self.first)
        return self._wrapped[1]

    def batch_at(self, points: Tensor) -> Tensor | None:
        """The values (n, …) of the user's object at points (n, …) in one batch; None if it takes no such batch."""
        if self.rest or len(self.keywords) > (self.first is not None):
            return None  # further arguments are for a batch of 1
        x = points.to(self.device) if not points.is_floating_point() else points.to(self.device, self.kinds[0])
        try:
            values = _called("the module", self._own(self.kinds[0]), x)
        except VertexError:
            return None  # a module that takes only batches of 1 may raise anything
        return values.cpu().double() if values.dim() > 0 and len(values) == len(points) else None


class _Logits(nn.Module):
    """A module as a function from one tensor to one tensor; all other arguments are constants.

    `first` is the name of the perturbed argument, None if it is the first positional one.
    """

    def __init__(self, module: nn.Module, rest: tuple[Any, ...], keywords: dict[str, Any], first: str | None) -> None:
        super().__init__()
        self.module = module
        self.rest = (rest, keywords, first)
        self.training = False

    def forward(self, x: Tensor) -> Any:
        """The module's logits, or else the first tensor of its output."""
        rest, keywords, first = self.rest
        if first is None:
            return _first(self.module(x, *rest, **keywords))
        return _first(self.module(*rest, **{**keywords, first: x}))


def _close(a: Any, b: Any) -> bool:
    """Whether two tensors agree to 1e-5 of their size, more than float32 rounds: enough to locate a difference."""
    size = float(b.abs().nan_to_num().max()) if b.numel() else 0.0
    return float((a - b).abs().nan_to_num().max()) <= 1e-5 * size if a.numel() else True


def _first(out: Any) -> Any:
    """The logits of a model's output if it has them, else its first tensor."""
    if isinstance(out, Mapping):
        return out["logits"] if "logits" in out else _first(list(out.values()))
    if isinstance(out, list | tuple):
        return out.logits if hasattr(out, "logits") else next((o for o in out if isinstance(o, Tensor)), None)
    return out.logits if not isinstance(out, Tensor) and hasattr(out, "logits") else out


# Arguments -----------------------------------------------------------------------------------------------------------


def constant(value: Any) -> Any:
    """A copy of a tensor on the CPU, in float64 if it is floating point; anything else unchanged."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().clone()
        return value.double() if value.is_floating_point() else value
    return value


def moved_to(value: Any, device: torch.device, kind: torch.dtype) -> Any:
    """A further argument on the device of the module and, if it is floating point, in its precision."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(device, kind) if value.is_floating_point() else value.detach().to(device)


def arguments_of(example: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments of the call that an example and kwargs describe."""
    keywords = dict(kwargs or {})
    if isinstance(example, Mapping):
        return (), {**example, **keywords}
    return example if isinstance(example, tuple) else (example,), keywords


def check_example(x: Any, perturb: Any, batch_dim: int | None) -> Tensor:
    """The perturbed argument x; an error if it does not fit `perturb` and `batch_dim`."""
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
    """The dtype in which the module computes norms (for half precision float32).

    An error if the module is not in eval mode or has weights that are not finite, dense and real.
    """
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
    if module.training and "eval" in vars(module):  # torch.export puts a function there that refuses
        raise UnsupportedModelError("the module was made by torch.export: give the nn.Module it was made from")
    if hasattr(module, "_orig_mod"):
        raise UnsupportedModelError("the module was made by torch.compile: give the module itself, `model._orig_mod`")


def _check_weight(what: str, value: Tensor) -> None:
    """Raise if a parameter or buffer is not a plain dense tensor of real numbers."""
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
    """The precisions in which a module may take its input, the most likely first."""
    own = [value.dtype for value in (*module.parameters(), *module.buffers()) if value.is_floating_point()]
    return tuple(dict.fromkeys([*own, torch.float64, torch.float32])) if own else (torch.float64, torch.float32)


def _double(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in float64 on the CPU, which computes the same function up to rounding."""
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
            part.eps = torch.finfo(dtype).eps  # the default in the model's own precision
        if isinstance(part, nn.TransformerEncoder):
            part.register_forward_pre_hook(_trust_mask("is_causal"), with_kwargs=True)
        if isinstance(part, nn.TransformerDecoder):
            part.register_forward_pre_hook(_trust_mask("tgt_is_causal"), with_kwargs=True)
    return twin


def _trust_mask(hint: str) -> Callable[..., Any]:
    """A hook that replaces is_causal=None by False.

    With None torch examines the mask, to choose a faster kernel, which cannot be exported; the result is the same.
    """

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        position = 3 if hint == "is_causal" else 6
        given = args[position] if len(args) > position else kwargs.get(hint)
        return (args, kwargs) if given is not None else (args[:position], {**kwargs, hint: False})

    return hook


# Calls ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def traceable() -> Iterator[None]:
    """A context without the fused kernels of nn.TransformerEncoder, which cannot be exported, and without warnings."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


ABOUT_IDS = "; if the model takes token ids, make a TokenBall or TokenChoices around them"
"""What is added to the error of a module with an embedding that was given floats."""


def _looks_up(module: nn.Module, error: Exception) -> bool:
    """Whether the module may take token ids: the error names an embedding, or the module has one."""
    return "embedding" in str(error) or any(isinstance(part, nn.Embedding) for part in module.modules())


def _called(who: str, module: nn.Module, x: Tensor, mode: Mode = torch.no_grad) -> Tensor:
    """module(x), detached; any exception of the module becomes an UnsupportedModelError that calls it `who`."""
    with mode(), warnings.catch_warnings(), torch.autocast(x.device.type, enabled=False):
        warnings.simplefilter("ignore")
        try:
            value = module(x)
        except Exception as error:
            raise UnsupportedModelError(
                f"{who} cannot be called with {x.dtype} of shape {tuple(x.shape)}, of which the first number counts "
                f"inputs (give x[None] for a single x): {type(error).__name__}: {error}"
                + (ABOUT_IDS if x.is_floating_point() and _looks_up(module, error) else "")
            ) from error
    if not isinstance(value, Tensor):
        raise InvalidTypeError(f"the module returned {type(value).__name__}, not a tensor or logits")
    return value.detach()


def called_with(module: nn.Module, positional: Sequence[Tensor], named: Mapping[str, Any]) -> Tensor:
    """What a module returns for these arguments, in float64 on the CPU: its logits, or else its first tensor."""
    first = None if positional else next(name for name, value in named.items() if isinstance(value, Tensor))
    rest = {name: value for name, value in named.items() if name != first}
    x = positional[0] if first is None else named[first]
    return _called("the module", _Logits(module, tuple(positional[1:]), rest, first), x).cpu().double()


def _random_states(device: torch.device) -> dict[str, object]:
    """The states of the global random generators, by the name of their library."""
    _, keys, position, *_ = np.random.get_state()  # noqa: NPY002 - the state of the global generator is needed
    states: dict[str, object] = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": random.getstate(),
        "numpy": (np.asarray(keys).tobytes(), position),
    }
    if device.type == "cuda":
        states["torch.cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return states


@contextlib.contextmanager
def _embeddings_replaced(module: nn.Module, look_up: TokenLookUp | None, point: Tensor) -> Iterator[None]:
    """A context in which the module's look-ups of the ids return the point; nothing changes if `look_up` is None."""
    if look_up is None:
        yield
        return
    mode = _LookUps(_tensor_named(module, look_up.table), look_up.ids, point)
    with mode:
        yield
    if not mode.count:
        raise UnsupportedModelError(
            f"the module does not look the ids up in {look_up.table} when it is called, though torch.export recorded "
            "that; it has to do the same every time"
        )


def _tensor_named(module: nn.Module, name: str) -> Tensor:
    """The parameter or buffer of this (dotted) name."""
    owner, _, last = name.rpartition(".")
    try:
        value = getattr(module.get_submodule(owner), last)
    except AttributeError:
        value = None
    if not isinstance(value, Tensor):
        raise UnsupportedModelError(f"a copy of the module has the table {name}, but the module itself has not")
    return value


class _LookUps(TorchDispatchMode):
    """Replaces the result of every look-up of `ids` in `table` by the embeddings `point`; `count` counts them."""

    def __init__(self, table: Tensor, ids: Tensor, point: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table, self.ids, self.point, self.count = table, ids.reshape(-1).cpu().long(), point, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.embedding.default and self._matches(args[0], args[1]):
            self.count += 1
            return self.point.reshape(*args[1].shape, args[0].shape[-1]).to(args[0].dtype)
        return func(*args, **(kwargs or {}))

    def _matches(self, table: Tensor, index: Tensor) -> bool:
        same = table.data_ptr() == self.table.data_ptr() and table.shape == self.table.shape
        return same and torch.equal(index.reshape(-1).cpu().long(), self.ids)
