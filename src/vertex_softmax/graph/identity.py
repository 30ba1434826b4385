"""The identity of a network: one SHA-256 by which journals, caches and certificates refer to it.

Invariant: two graphs with the same identity have the same ops with the same settings and constants, bit for bit,
connected by the same edges in the same order, between the same input and output. Node names, the order in which
branches were built, the device, the process and its hash seed do not matter. A value without an exact encoding is an
error; it is never left out.

Nodes are numbered by `Graph.nodes()`, which follows the edges from the output, so that the numbers depend only on the
structure. Every value is encoded with its type and its length before it, so that different values have different
encodings.

    graph_identity(graph)  # 64 hexadecimal digits
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import hashlib
import inspect
import struct
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops.contract import Op

FORMAT = "vertex graph identity 1"
PACKAGE = __name__.partition(".")[0]
LIBRARIES = ("torch", "numpy", "dataclasses", "abc", "typing", "functools", "math", "collections")
"""Modules whose functions are identified by their names alone; `sources.fingerprint` includes torch's version."""


class Sink(Protocol):
    """An object that takes bytes, such as a hash."""

    def update(self, data: Any, /) -> None:
        """Take some more bytes."""


def graph_identity(graph: Graph) -> str:
    """The SHA-256, in hexadecimal digits, of everything that determines the function of the graph."""
    nodes = graph.nodes()
    number = {node: i for i, node in enumerate(nodes)}
    digest = hashlib.sha256()
    _head(digest, FORMAT, len(nodes))
    for node in nodes:
        try:
            _write(digest, node.op)
        except (_NotExactError, RecursionError) as error:
            why = "it contains itself, or nests too deeply" if isinstance(error, RecursionError) else error
            raise UnsupportedModelError(
                f"{node.name} ({type(node.op).__name__}): {why}, so the network has no identity and no answer about "
                "it can be kept or certified; give the op fields that are tensors, numbers, strings or tuples of them"
            ) from error
        _write(digest, tuple(number[i] for i in node.inputs))
        _write(digest, tuple(node.shape))
    _write(digest, (number[graph.input], number[graph.output]))
    return digest.hexdigest()


def tensor_digest(value: Tensor) -> str | None:
    """The SHA-256 of a tensor's dtype, shape and numbers; None if it is sparse, quantized or has no numbers."""
    digest = hashlib.sha256()
    try:
        _tensor(digest, value)
    except _NotExactError:
        return None
    return digest.hexdigest()


def value_digest(value: Any) -> str:
    """The SHA-256 of a value that consists of numbers, texts, arrays, fractions, dataclasses, tuples and mappings."""
    digest = hashlib.sha256()
    _head(digest, FORMAT, 0)
    try:
        _write(digest, value)
    except _NotExactError as error:
        raise UnsupportedModelError(f"{error}, so it has no identity") from error
    return digest.hexdigest()


class _NotExactError(Exception):
    """A value of an op has no exact encoding; the message names the value."""


def _head(sink: Sink, kind: str, length: int) -> None:
    """The head of a value: the name of its type, a zero byte, and the number of its bytes or parts."""
    sink.update(kind.encode() + b"\0" + struct.pack("<Q", length))


def _bytes(sink: Sink, kind: str, data: Any) -> None:
    view = memoryview(data)
    _head(sink, kind, view.nbytes)
    sink.update(view)


def _write(sink: Sink, value: Any) -> None:
    """The exact encoding of one value with its type; an error if it has none."""
    if value is None:
        _head(sink, "none", 0)
    elif isinstance(value, enum.Enum):
        _parts(sink, f"enum {_name(type(value))}", (value.name,))
    elif isinstance(value, bool):
        _head(sink, "bool", int(value))
    elif isinstance(value, int):
        _bytes(sink, "int", f"{int(value):x}".encode())  # of any length
    elif isinstance(value, float):
        _bytes(sink, "float", struct.pack("<d", value))
    elif isinstance(value, complex):
        _bytes(sink, "complex", struct.pack("<dd", value.real, value.imag))
    elif isinstance(value, str):
        _bytes(sink, "str", value.encode(errors="surrogatepass"))
    elif isinstance(value, bytes | bytearray):
        _bytes(sink, "bytes", bytes(value))
    elif isinstance(value, Tensor):
        _tensor(sink, value)
    elif isinstance(value, np.ndarray | np.generic):
        _array(sink, np.asarray(value))
    elif isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        _bytes(sink, "torch", str(value).encode())
    else:
        _compound(sink, value)


def _compound(sink: Sink, value: Any) -> None:
    """The encoding of a value that consists of other values."""
    if isinstance(value, Fraction):
        _parts(sink, "fraction", (value.numerator, value.denominator))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        _parts(sink, f"named {_name(type(value))}", (*value._fields, *value))
    elif isinstance(value, tuple):  # torch.Size among them
        _parts(sink, "tuple", value)
    elif isinstance(value, list):
        _parts(sink, "list", value)
    elif isinstance(value, range | slice):
        _parts(sink, type(value).__name__, (value.start, value.stop, value.step))
    elif isinstance(value, dict):
        _sorted(sink, "dict", value.items())
    elif isinstance(value, set | frozenset):
        _sorted(sink, "set", value)
    elif isinstance(value, Graph):
        _parts(sink, "graph", (graph_identity(value),))
    elif isinstance(value, Op) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        _object(sink, value)
    else:
        raise _NotExactError(f"a {_name(type(value))} cannot be written down exactly")


def _parts(sink: Sink, kind: str, values: Iterable[Any]) -> None:
    values = tuple(values)
    _head(sink, kind, len(values))
    for value in values:
        _write(sink, value)


def _sorted(sink: Sink, kind: str, values: Iterable[Any]) -> None:
    """Parts in the order of their own digests, so that the insertion order of a set or dict does not matter."""
    digests = []
    for value in values:
        digest = hashlib.sha256()
        _write(digest, value)
        digests.append(digest.digest())
    _parts(sink, kind, sorted(digests))


def _object(sink: Sink, value: Any) -> None:
    """An op or a dataclass: its class and all its attributes, by name."""
    cls = type(value)
    fields = _attributes(value)
    _head(sink, f"object {_name(cls)}", len(fields))
    for base in cls.__mro__:
        if base is not object and base.__module__.partition(".")[0] != PACKAGE:
            _class(sink, base)
    for name in sorted(fields):
        _write(sink, name)
        try:
            _write(sink, fields[name])
        except _NotExactError as error:
            raise _NotExactError(f"its attribute {name!r}: {error}") from error


def _attributes(value: Any) -> dict[str, Any]:
    """All attributes of an object, whether in its __dict__, dataclass fields or slots."""
    names = set(vars(value)) if hasattr(value, "__dict__") else set()
    if dataclasses.is_dataclass(value):
        names.update(field.name for field in dataclasses.fields(value))
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        names.update((slots,) if isinstance(slots, str) else slots)
    return {name: getattr(value, name) for name in names - {"__dict__", "__weakref__"} if hasattr(value, name)}


def _class(sink: Sink, cls: type) -> None:
    """A class from outside this package: the digest of its source file, and its own members.

    The sources of this package are identified elsewhere, in `sources.fingerprint`.
    """
    try:
        file = inspect.getsourcefile(cls)
        data = Path(file).read_bytes() if file is not None else b""
    except (OSError, TypeError):  # defined in a notebook or in the interpreter
        data = b""
    _bytes(sink, f"class {_name(cls)}", hashlib.sha256(data).digest())
    members = [(name, part) for name, part in sorted(vars(cls).items()) if _counts(name, part)]
    _head(sink, "members", len(members))
    seen: set[CodeType] = set()
    for name, part in members:
        _write(sink, name)
        try:
            _used(sink, part, seen)
        except _NotExactError as error:
            raise _NotExactError(f"its class has {name!r}: {error}") from error


def _counts(name: str, part: Any) -> bool:
    """Whether an entry of a class belongs to its behaviour; entries that Python itself creates do not."""
    if isinstance(part, FunctionType):
        return True
    return not (name.startswith("__") or name == "_abc_impl" or inspect.ismemberdescriptor(part))


def _used(sink: Sink, value: Any, seen: set[CodeType]) -> None:
    """A value that the code of an op refers to: a function with everything it refers to, a class or module by name."""
    functions = list(_functions(value))
    if functions:
        for function in functions:
            _function(sink, function, seen)
    elif isinstance(value, ModuleType):
        _bytes(sink, "module", value.__name__.encode())
    elif isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):  # such as torch.relu
        _bytes(sink, "named", f"{value.__module__}.{value.__qualname__}".encode())
    else:
        _write(sink, value)


def _functions(part: Any) -> Iterator[FunctionType]:
    """The functions of a class member: itself, or those inside a classmethod, property, partial or wrapper."""
    for value in (part, *(getattr(part, name, None) for name in ("__func__", "fget", "func", "__wrapped__"))):
        if isinstance(value, FunctionType):
            yield value


def _function(sink: Sink, function: FunctionType, seen: set[CodeType]) -> None:
    """A function's code, its defaults, its closure and the globals it reads; a function of LIBRARIES by its name."""
    code = function.__code__
    _bytes(sink, "function", f"{function.__module__}.{function.__qualname__}".encode())
    if code in seen or (function.__module__ or "").partition(".")[0] in (PACKAGE, *LIBRARIES):
        return
    seen.add(code)
    _code(sink, code)
    cells = {name: _content(cell) for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)}
    names = sorted({name for name in _globals(code) if name in function.__globals__})
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    _parts(sink, "uses", (*cells, *names, len(defaults)))
    for value in (*cells.values(), *(function.__globals__[name] for name in names), *defaults):
        _used(sink, value, seen)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _globals(code: CodeType) -> Iterator[str]:
    """The global names that some code reads, including the functions defined in it."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _globals(value)


def _code(sink: Sink, code: CodeType) -> None:
    """Instructions, constants and names of some code, without its file name and line numbers."""
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    _parts(sink, "code", (code.co_code, *names, code.co_exceptiontable, len(code.co_consts)))
    for value in code.co_consts:
        if isinstance(value, CodeType):
            _code(sink, value)
        elif value is Ellipsis:
            _head(sink, "ellipsis", 0)
        else:
            _write(sink, value)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _tensor(sink: Sink, value: Tensor) -> None:
    """A tensor's dtype, its shape and its numbers as contiguous little-endian bytes."""
    if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
        raise _NotExactError(f"a tensor that is sparse, quantized or without numbers ({value.dtype}, {value.device})")
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    plain = plain.as_strided((plain.numel(),), (1,))  # a single number counts as contiguous with any stride, even 0
    data = plain.view(torch.uint8).numpy() if plain.numel() else np.empty(0, np.uint8)
    size = value.element_size() // (2 if value.is_complex() else 1)
    if sys.byteorder == "big" and size > 1:
        data = np.ascontiguousarray(data.reshape(-1, size)[:, ::-1]).reshape(-1)
    _parts(sink, "tensor", (str(value.dtype), tuple(value.shape)))
    _bytes(sink, "numbers", data)


def _array(sink: Sink, value: np.ndarray[Any, Any]) -> None:
    if value.dtype.kind not in "biufc":
        raise _NotExactError(f"an array of {value.dtype}")
    little = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<"), copy=False))
    _parts(sink, "array", (little.dtype.str, value.shape))
    _bytes(sink, "numbers", little.tobytes())
