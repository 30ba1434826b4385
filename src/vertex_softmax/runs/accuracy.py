"""A proof about all inputs of a network as one JSON file, FOLDER/accuracy.json: how many are right, and where.

Invariant: a record that `read_accuracy` returns is consistent: of every group of inputs no more are proved than the
network gets right, and no more are right than there are; the groups add up to the whole, and so do the parts of the
proof by their sizes. The file is not trusted: its size is limited, and whatever does not fit is an error that names it.
The record shows what a proof says; the proof itself is the certificate, which a checker reads.

    record = read_accuracy(Path("out/max_of_4"))
    record.proved / record.inputs      # a lower bound of the accuracy over all inputs
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import read_whole, write_whole
from vertex_softmax.runs.records import fields_of, made
from vertex_softmax.runs.run import Plain

FORMAT = "vertex-accuracy/1"
NAME = "accuracy.json"
"""The name of the file in its folder."""
MOST_BYTES = 1 << 26
"""The largest accuracy.json that is read."""
MOST_ROWS = 1024
"""The most rows and columns of groups."""
MOST_EXAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Groups:
    """The inputs in groups, rows × columns; a group may be empty."""

    row: str
    """what the rows are, in words"""
    column: str
    inputs: tuple[tuple[int, ...], ...]
    """how many inputs each group has"""
    proved: tuple[tuple[int, ...], ...]
    """how many of them are proved to be right"""
    right: tuple[tuple[int, ...], ...] | None = None
    """how many of them are right, if all were evaluated"""


@dataclasses.dataclass(frozen=True)
class PartSizes:
    """The parts of a proof that have from `least` to `most` inputs each."""

    least: int
    most: int
    parts: int
    inputs: int
    """how many inputs they have together"""


@dataclasses.dataclass(frozen=True)
class WorkStage:
    """A step of the work: the search, the check, or the evaluation of all inputs."""

    name: str
    evaluations: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How many of all inputs a network is proved to classify right."""

    title: str
    version: str
    """the version of Vertex that made the record"""
    created: str
    """the time (UTC) in ISO 8601"""
    task: str
    """what is right, in a sentence"""
    claim: str
    """what is proved and by what, in a sentence"""
    inputs: int
    """how many inputs there are"""
    proved: int
    right: int | None
    """how many are right, by evaluation of all of them; None: that was not done"""
    parts: int
    """into how many parts the proved inputs are divided"""
    groups: Groups
    sizes: tuple[PartSizes, ...]
    stages: tuple[WorkStage, ...]
    wrong: tuple[tuple[int, ...], ...] = ()
    """some inputs that the network gets wrong, as token ids"""
    open: tuple[tuple[int, ...], ...] = ()
    """some inputs that are right, or were not evaluated, and are not proved"""
    facts: dict[str, Plain] = dataclasses.field(default_factory=dict)
    """further facts that the page lists: the network, hashes, files"""

    def json(self) -> dict[str, Any]:
        """The record as plain JSON: the content of accuracy.json."""
        return {"format": FORMAT, **dataclasses.asdict(self)}


def write_accuracy(record: Accuracy, folder: Path) -> Path:
    """Write FOLDER/accuracy.json atomically; return its path."""
    require_accuracy(record)
    try:
        return write_whole(folder / NAME, json.dumps(record.json(), allow_nan=False).encode())
    except OSError as error:
        raise InvalidValueError(f"{folder / NAME} cannot be written ({error.strerror})") from error


def read_accuracy(path: Path) -> Accuracy:
    """Read the record in a folder, or the file itself, and check that it is consistent."""
    file = path / NAME if path.is_dir() else path
    text = read_whole(file, MOST_BYTES, "give the folder that `python -m examples.max_of_k --out` wrote")
    try:
        record = made(Accuracy, fields_of(text, FORMAT), "accuracy")
        require_accuracy(record)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{file} is not a record of an accuracy: {error}") from error
    return record


def require_accuracy(record: Accuracy) -> None:
    """Raise unless the numbers of a record fit each other."""
    _require_order("all inputs", record.inputs, record.proved, record.right)
    if not record.inputs or min(record.parts, *(x.evaluations for x in record.stages), 0) < 0:
        raise InvalidValueError("it has no inputs, or a number below 0")
    if min((stage.seconds for stage in record.stages), default=0.0) < 0:
        raise InvalidValueError("a stage took less than no time")
    _require_groups(record)
    for size in record.sizes:
        if not 0 < size.least <= size.most or not size.parts * size.least <= size.inputs <= size.parts * size.most:
            raise InvalidValueError(f"parts of {size.least} to {size.most} inputs have {size.inputs} together")
    if (sum(s.parts for s in record.sizes), sum(s.inputs for s in record.sizes)) != (record.parts, record.proved):
        raise InvalidValueError("the parts by their sizes do not add up to all parts and all that is proved")
    if len(record.wrong) > MOST_EXAMPLES or len(record.open) > MOST_EXAMPLES:
        raise InvalidValueError(f"it has more than {MOST_EXAMPLES} examples of one kind")


def _require_groups(record: Accuracy) -> None:
    groups = record.groups
    tables = [groups.inputs, groups.proved, *([] if groups.right is None else [groups.right])]
    widths = {len(row) for table in tables for row in table}
    heights = {len(table) for table in tables}
    if len(widths) != 1 or len(heights) != 1 or not 0 < max(widths | heights) <= MOST_ROWS or 0 in widths:
        raise InvalidValueError(f"the groups are not tables of the same rows and columns, at most {MOST_ROWS} of each")
    if (groups.right is None) != (record.right is None):
        raise InvalidValueError("it says how many are right of the whole and not of the groups, or the reverse")
    totals = [record.inputs, record.proved, *([] if record.right is None else [record.right])]
    for table, total in zip(tables, totals, strict=True):
        if sum(map(sum, table)) != total:
            raise InvalidValueError(f"the groups add up to {sum(map(sum, table))}, and the whole is {total}")
    for i, row in enumerate(groups.inputs):
        for j, count in enumerate(row):
            right = None if groups.right is None else groups.right[i][j]
            _require_order(f"group ({i}, {j})", count, groups.proved[i][j], right)


def _require_order(where: str, inputs: int, proved: int, right: int | None) -> None:
    if not 0 <= proved <= (inputs if right is None else right) <= inputs:
        raise InvalidValueError(f"of {inputs} in {where}, {right} are right and {proved} are proved, which cannot be")
