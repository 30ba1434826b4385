"""Records from JSON that is not trusted: dataclasses whose fields have their types, and arrays as text.

Invariant: every number of a record that `made` returns is finite and at most 1e300 in size, every whole number is below
2^53, and no field is unknown, missing or of another type. Whatever does not fit is an error that names it.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import math
from collections.abc import Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.foundation.errors import InvalidValueError

Floats = NDArray[np.float64]
T = TypeVar("T")


def fields_of(text: bytes, name: str) -> dict[str, Any]:
    """The object in a JSON text whose field `format` is `name`, without that field; a ValueError says what is wrong."""
    data = json.loads(text, parse_constant=_refuse)
    if not isinstance(data, dict) or data.pop("format", None) != name:
        raise InvalidValueError(f"its format is not {name!r}")
    return data


def _refuse(text: str) -> float:
    raise InvalidValueError(f"it has the number {text}")


def _converted(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as the type `kind`: dataclasses from objects, tuples and lists from arrays, finite numbers."""
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return made(kind, value, where)  # type: ignore[arg-type]
    if origin in (UnionType, Union):
        if value is None and NoneType in arguments:
            return None
        rest = [option for option in arguments if option is not NoneType]
        if len(rest) == 1:
            return _converted(rest[0], value, where)
        if isinstance(value, bool | str) or (isinstance(value, int | float) and abs(value) <= 1e300):
            return value
    elif origin in (tuple, list) and isinstance(value, list | tuple):
        fixed = origin is tuple and Ellipsis not in arguments
        if fixed and len(value) != len(arguments):
            raise InvalidValueError(f"{where} has {len(value)} entries, not {len(arguments)}")
        return origin(_converted(arguments[i if fixed else 0], x, f"{where}[{i}]") for i, x in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        return {key: _converted(arguments[1], x, f"{where}.{key}") for key, x in value.items()}
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= 1e300:
            return float(value)
    elif kind is int and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < 1 << 53:
            return value
    elif kind is str and isinstance(value, str):
        return value
    raise InvalidValueError(f"{where} does not have the type it must have")


@cache
def _field_types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def made(kind: type[T], value: Any, where: str) -> T:
    """A dataclass from plain JSON; a value that does not fit is an error that names it by `where`."""
    if not isinstance(value, dict):
        raise InvalidValueError(f"{where} is not an object")
    types = _field_types(cast(type, kind))
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := [name for name in value if name not in fields]:
        raise InvalidValueError(f"{where} has the unknown field {unknown[0]!r}")
    for name, f in fields.items():
        needed = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if needed and name not in value:
            raise InvalidValueError(f"{where} lacks {name!r}")
    return kind(**{name: _converted(types[name], x, f"{where}.{name}") for name, x in value.items()})


def packed(x: Any) -> str:
    """Numbers as text: base64 of little-endian float64. x: an array or a tensor on the CPU."""
    return base64.b64encode(np.ascontiguousarray(x, dtype="<f8").tobytes()).decode()


def unpacked(text: str, shape: Sequence[int]) -> Floats:
    """The array of this shape that was packed."""
    try:
        numbers = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8")
    except (binascii.Error, ValueError) as error:
        raise InvalidValueError(f"a picture is not base64 of float64 numbers: {error}") from error
    if numbers.size != math.prod(shape) or not bool(np.isfinite(numbers).all()):
        raise InvalidValueError(
            f"a picture has {numbers.size} numbers, or one that is not finite; its shape is {shape}"
        )
    return numbers.reshape(tuple(shape)).astype(np.float64)
