"""A list of instances, as the competition writes it: lines `model,spec,timeout`.

Invariant: what `read_instances` returns can be run: both files are there, the time is a number, nothing is there twice.
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
"""Bad lines that are named; the rest is counted."""


@dataclasses.dataclass(frozen=True, slots=True)
class SweepInstance:
    """A model, a property and the seconds for them: as the file writes them, and where they are."""

    model: str
    spec: str
    timeout: float
    model_path: Path
    spec_path: Path
    benchmark: str = ""


def read_instances(path: Path, timeout: float | None = None) -> list[SweepInstance]:
    """The lines `model,spec,timeout` of a file; every bad line is named before anything is run.

    Paths are relative to the file's folder; if the file is a link and they are not there, to the folder it leads to. A
    file that is not there is looked for with .gz added. timeout: instead of those in the file.
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
        paths = [_there(folder, name) for name in (model, spec)]
        for name, what, place in zip((model, spec), ("model", "property"), paths, strict=True):
            if place is None:
                bad.append(f"line {number}: there is no {what} {str(folder / name)!r}, nor with .gz")
        if seconds is None:
            bad.append(f"line {number}: the timeout is {text!r}, not a number of seconds above 0")
        if seconds is None or paths[0] is None or paths[1] is None:
            continue
        seconds = seconds if timeout is None else float(timeout)
        before = seen.setdefault((os.path.normpath(paths[0]), os.path.normpath(paths[1]), seconds), number)
        if before != number:
            bad.append(f"line {number} is the same instance as line {before}")
        found.append(SweepInstance(model, spec, seconds, paths[0], paths[1], benchmark))
    if bad:
        more = [f"and {len(bad) - MOST_MESSAGES} more"] if len(bad) > MOST_MESSAGES else []
        raise InvalidValueError("\n  ".join([f"{path} cannot be run; correct:", *bad[:MOST_MESSAGES], *more]))
    return found


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """The numbered lines without blank ones and without a header, which has a word like `timeout` in the last place."""
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
    """Where the instances' paths start: beside the file, or beside what it is a link to."""
    beside = path.absolute().parent
    first = next((fields[:2] for _, fields in rows if len(fields) == 3), [])
    if first and all(_there(beside, name) is None for name in first):
        real = path.resolve().parent
        if any(_there(real, name) is not None for name in first):
            return real
    return beside


def _there(folder: Path, name: str) -> Path | None:
    """The file, or the compressed one."""
    with contextlib.suppress(OSError, ValueError):  # a name that no file can have
        for place in (folder / name, folder / f"{name}.gz"):
            if name and place.is_file():
                return place
    return None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= MOST_SECONDS else None
