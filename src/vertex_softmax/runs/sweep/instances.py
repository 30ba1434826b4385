"""A list of instances in the format of VNN-COMP: lines `model,spec,timeout`.

Invariant: the instances that `read_instances` returns can be run: both files exist, the time is a number above 0, and
no instance occurs twice.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import os
import re
from pathlib import Path

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import read_whole

MOST_SECONDS = 1e7
MOST_BYTES = 1 << 28
MOST_MESSAGES = 20
"""The most bad lines that an error names; the rest is counted."""
_QUOTED = r"""(?:'([^'"]*)'|"([^'"]*)")"""
_NETWORK = re.compile(rf"\[ *\( *{_QUOTED} *, *{_QUOTED} *\) *,? *\]")
"""[('f', 'model.onnx')], as VNN-COMP 2026 writes the model of a property that names its network"""


@dataclasses.dataclass(frozen=True, slots=True)
class SweepInstance:
    """One verification problem of a sweep: a model, a property, and a time limit."""

    model: str
    """the path of the model as the list writes it"""
    spec: str
    """the path of the property as the list writes it"""
    timeout: float
    """seconds"""
    model_path: Path
    """where the model is"""
    spec_path: Path
    """where the property is"""
    benchmark: str = ""
    """the name of the benchmark: that of the list's folder"""


def read_instances(path: Path, timeout: float | None = None) -> list[SweepInstance]:
    """The lines `model,spec,timeout` of a file; raises an error that names every bad line.

    Paths are relative to the file's folder; if the file is a link and they do not exist there, to the folder of its
    target. If a file does not exist, its name with .gz added is tried. A model may be written as the competition of
    2026 does, [('f', 'model.onnx')]. timeout: replaces those in the file.
    """
    if timeout is not None and _seconds(str(timeout)) is None:
        raise InvalidValueError(f"the timeout is {timeout}; it must be a number of seconds above 0")
    rows = _rows(path)
    if not rows:
        raise InvalidValueError(f"{path} has no instances; write lines as model.onnx,property.vnnlib,100")
    folder = _folder(path, rows)
    names = [name for name in (folder.name, folder.parent.name) if not re.fullmatch(r"\d+(\.\d+)*", name)]
    benchmark = next((name for name in names if name), "instances")  # the competition has folders NAME/1.0, NAME/2.0
    found: list[SweepInstance] = []
    seen: dict[tuple[str, str, float], int] = {}
    bad: list[str] = []
    for number, fields in rows:
        if len(fields) != 3:
            bad.append(f"line {number} has {len(fields)} fields, not three: model,spec,timeout")
            continue
        model, spec, text = fields
        seconds = _seconds(text)
        files = (_network(model), spec)
        paths = [_existing(folder, name) for name in files]
        for name, what, path_of_file in zip(files, ("model", "property"), paths, strict=True):
            if what == "model" and path_of_file is None and name.startswith("[("):
                bad.append(f"line {number}: {name[:60]!r} are several networks; properties of one are supported")
            elif path_of_file is None:
                bad.append(f"line {number}: there is no {what} {str(folder / name)!r}, nor with .gz")
        if seconds is None:
            bad.append(f"line {number}: the timeout is {text!r}, not a number of seconds above 0")
        if seconds is None or paths[0] is None or paths[1] is None:
            continue
        seconds = seconds if timeout is None else float(timeout)
        before = seen.setdefault((os.path.normpath(paths[0]), os.path.normpath(paths[1]), seconds), number)
        if before != number:
            bad.append(f"line {number} is the same instance as line {before}")
        found.append(
            SweepInstance(
                model=model,
                spec=spec,
                timeout=seconds,
                model_path=paths[0],
                spec_path=paths[1],
                benchmark=benchmark,
            )
        )
    if bad:
        more = [f"and {len(bad) - MOST_MESSAGES} more"] if len(bad) > MOST_MESSAGES else []
        raise InvalidValueError("\n  ".join([f"{path} cannot be run; correct:", *bad[:MOST_MESSAGES], *more]))
    return found


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """The lines with their numbers, without blank lines and a header: a header's last field begins with `time`."""
    try:
        text = read_whole(path, MOST_BYTES, "give a file of instances").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    rows: list[tuple[int, list[str]]] = []
    try:
        for fields in reader:
            stripped = [field.strip() for field in fields]
            if any(stripped):
                rows.append((reader.line_num, stripped))
    except csv.Error as error:
        raise InvalidValueError(f"{path}, line {reader.line_num} is not CSV: {error}") from error
    return rows[1:] if rows and rows[0][1][-1].lower().startswith("time") else rows


def _folder(path: Path, rows: list[tuple[int, list[str]]]) -> Path:
    """The folder that the instances' paths are relative to: that of the file, or of the file it is a link to."""
    own = path.absolute().parent
    first = next(([_network(fields[0]), fields[1]] for _, fields in rows if len(fields) == 3), [])
    if first and all(_existing(own, name) is None for name in first):
        linked = path.resolve().parent
        if any(_existing(linked, name) is not None for name in first):
            return linked
    return own


def _network(field: str) -> str:
    """The path of the model in the list's first field; the field itself if it is a path, or names several networks."""
    found = _NETWORK.fullmatch(field)
    return field if found is None else found[3] or found[4] or ""


def _existing(folder: Path, name: str) -> Path | None:
    """The file of this name, or its compressed form; None if neither exists."""
    with contextlib.suppress(OSError, ValueError):  # a name that no file can have
        for path in (folder / name, folder / f"{name}.gz"):
            if name and path.is_file():
                return path
    return None


def _seconds(text: str) -> float | None:
    """A time limit in seconds; None if the text is not a valid one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= MOST_SECONDS else None
