"""Models that a Python function makes: `package.module:function` or `FILE.py:function`, with weights from a file.

Invariant: `python_model` returns a module in eval mode whose parameters and buffers are exactly those of the weights
file, if one is given: no name is missing or left over, no shape differs, and no number was rounded. Two models with
the same `weights_identity` have the same parameters and buffers, bit for bit.

Importing runs the code of the file or package, and calling the function too: it is the user's own.

    module = python_model("models.py:classifier", Path("classifier.safetensors"))
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors
import torch
from safetensors import torch as safetensors_torch
from torch import Tensor, nn

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.foundation.reading import content_of
from vertex_softmax.graph.identity import tensor_digest
from vertex_softmax.runs.code_names import source_file

MOST_BYTES = 1 << 36
"""The largest file of weights in bytes."""
SHOWN = 8
"""At most how many names an error lists."""


def python_model(text: str, weights: Path | None = None) -> nn.Module:
    """The module that a function without required arguments returns, in eval mode, with the weights of the file."""
    place, _, name = text.rpartition(":")
    path = source_file(text)
    if path is not None and not path.is_file():
        raise InvalidValueError(f"there is no file {str(path)!r}; give FILE.py:function, or package.module:function")
    with _importable(Path.cwd() if path is None else path.resolve().parent):
        code = _package(place) if path is None else _file(path)
        module = _called(_function(code, place, name), text)
    if weights is not None:
        load_weights(module, weights)
    return module.eval()


def weights_identity(module: nn.Module) -> str:
    """The SHA-256 of the names, types, shapes and numbers of a module's parameters and buffers, hidden ones too."""
    digest = hashlib.sha256()
    for kind, values in (("parameter", module.named_parameters), ("buffer", module.named_buffers)):
        for name, value in values(remove_duplicate=False):
            content = tensor_digest(value)
            if content is None:
                raise InvalidTypeError(f"{kind} {name} is sparse, quantised or without numbers; make it a dense tensor")
            digest.update(f"{kind} {name!r} {content}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()


def load_weights(module: nn.Module, path: Path) -> None:
    """Copy the tensors of a safetensors file into a module; every name and shape has to fit.

    A tensor that the module has under several names may be in the file under one of them, as safetensors saves it.
    """
    if path.suffix != ".safetensors":
        raise InvalidValueError(f"--weights is {path}; give a file .safetensors (nothing is unpickled)")
    try:
        content = content_of(path.resolve(), MOST_BYTES)  # a link, as in the caches of downloads, is followed
        given: dict[str, Tensor] = safetensors_torch.load(content)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidValueError):
            raise
        raise InvalidValueError(f"{path} is not a safetensors file: {error}") from error
    own = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    there = {_memory(own[name]) for name in given if name in own}
    missing = [name for name, value in own.items() if name not in given and _memory(value) not in there]
    unexpected = [name for name in given if name not in own]
    wrong = [
        f"{name} {tuple(given[name].shape)} for {tuple(value.shape)}"
        for name, value in own.items()
        if name in given and given[name].shape != value.shape
    ]
    faults = (("it lacks", missing), ("the module has no", unexpected), ("shapes differ:", wrong))
    if said := [f"{text} {_listed(names)}" for text, names in faults if names]:
        raise InvalidValueError(f"{path} does not fit the module: {'; '.join(said)}")
    with torch.no_grad():
        for name, value in given.items():
            _copy(own[name], value, f"{path}, {name}")
    for name, value in given.items():  # two names of one tensor, with different numbers
        if not _same(own[name], value):
            raise InvalidValueError(f"{path}: {name} shares its memory with another tensor that has other numbers")


def _copy(own: Tensor, value: Tensor, where: str) -> None:
    """Copy numbers into a tensor of the module; an error if its type does not hold them exactly."""
    if own.is_meta:
        raise InvalidValueError(f"{where}: the function made this tensor on the meta device; make it on the CPU")
    if own.is_floating_point() != value.is_floating_point() or own.is_complex() != value.is_complex():
        raise InvalidValueError(f"{where} is {value.dtype}, and the module's is {own.dtype}")
    own.copy_(value)
    if not _same(own, value):
        raise InvalidValueError(
            f"{where} is {value.dtype}, and the module's {own.dtype} does not hold its numbers exactly: make the "
            "module in the precision of its weights, module.to(dtype), or save the weights in the module's"
        )


def _same(own: Tensor, value: Tensor) -> bool:
    """Whether two tensors have the same numbers; NaN is NaN."""
    wide = torch.promote_types(own.dtype, value.dtype)
    a, b = own.cpu().to(wide), value.to(wide)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _memory(value: Tensor) -> tuple[object, ...]:
    """Where the numbers of a tensor are, by which two names of one tensor are told."""
    if value.is_meta or not value.numel():
        return (id(value),)
    return (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """A context in which modules of this folder can be imported, as Python does for a script in it.

    What is printed on stdout, which is for answers, goes to stderr.
    """
    place = str(folder)
    sys.path.insert(0, place)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        with contextlib.suppress(ValueError):  # the code may have changed the path itself
            sys.path.remove(place)


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidValueError(
                f"there is no module {error.name!r} here or among the installed packages; give package.module:function "
                "or FILE.py:function"
            ) from error
        raise InvalidValueError(f"importing {name} failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise InvalidValueError(f"importing {name} failed with {_said(error)}; --debug shows where") from error


def _file(path: Path) -> ModuleType:
    name = f"vertex_model_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidValueError(f"{path} cannot be imported as Python code")
    code = importlib.util.module_from_spec(spec)
    sys.modules[name] = code  # dataclasses and torch look a class's module up by its name
    try:
        spec.loader.exec_module(code)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InvalidValueError(f"importing {path} failed with {_said(error)}; --debug shows where") from error
    return code


def _function(code: ModuleType, place: str, name: str) -> Any:
    found = getattr(code, name, None)
    if found is None:
        own = [key for key, value in vars(code).items() if callable(value) and _defined(value, code)]
        raise InvalidValueError(f"{place} has no {name!r}; it has {_listed(own) or 'no functions of its own'}")
    if isinstance(found, nn.Module):
        raise InvalidTypeError(f"{place}:{name} is a module itself; give a function without arguments that returns it")
    if not callable(found):
        raise InvalidTypeError(f"{place}:{name} is a {type(found).__name__}; give a function that returns a module")
    return found


def _called(function: Any, text: str) -> nn.Module:
    try:
        parameters: Sequence[inspect.Parameter] = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # builtins may have no signature
        parameters = []
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if needed := [each.name for each in parameters if each.default is each.empty and each.kind not in free]:
        raise InvalidTypeError(
            f"{text} needs the arguments {_listed(needed)}; give a function that can be called without any"
        )
    try:
        module = function()
    except (Exception, SystemExit) as error:
        raise InvalidValueError(f"{text} failed with {_said(error)}; --debug shows where") from error
    if not isinstance(module, nn.Module):
        raise InvalidTypeError(f"{text} returned a {type(module).__name__}; it has to return a torch.nn.Module")
    return module


def _defined(value: Any, code: ModuleType) -> bool:
    return bool(getattr(value, "__module__", None) == code.__name__)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
