"""The summary page of reproduced tables: OUT/index.html, made from the JSON files and plots in OUT alone.

Invariant: what a JSON file has under "published" stands only in columns headed "published", and the same files give the
same page, byte for byte. Needs the extra `report`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertex_lab.experiments import EXPERIMENTS, Column, Experiment, ExperimentResult
from vertex_lab.experiments.tables import NOT_RUN
from vertex_softmax.foundation.errors import InternalError, InvalidValueError
from vertex_softmax.foundation.files import read_whole, write_whole
from vertex_softmax.runs.report import svg, templates

LONG = 15
"""rows from which on a table has a filter"""
BESIDE = ("md", "csv", "tex", "json", "svg", "png")
KINDS: dict[str, type | tuple[type, ...]] = {
    "title": str,
    "columns": list,
    "rows": list,
    "published": list,
    "notes": list,
    "settings": dict,
    "seconds": (int, float),
    "versions": dict,
    "failures": list,
}
PLAIN = (str, int, float, bool, type(None))
MOST_BYTES = 1 << 26
"""Of a table or a picture."""
FORMAT = re.compile(r"[+ -]?,?(\.\d{1,2})?[defg%]?")


@dataclass(frozen=True)
class Heading:
    """A column's heading over the cells of all rows; `both`: over two columns, ours and the published one."""

    name: str
    both: bool
    number: bool
    """to the right, as numbers are"""


@dataclass(frozen=True)
class Shown:
    """A cell as it is written."""

    text: str
    published: bool
    number: bool


@dataclass(frozen=True)
class Line:
    """A row as it is written."""

    cells: tuple[Shown, ...]
    run: bool
    """False: the row says that it was not run"""
    opens: bool
    """its first cell differs from the one above, in a table whose first cells repeat"""


@dataclass(frozen=True)
class Section:
    """What the page says of one experiment; `result` is None where OUT has none."""

    experiment: Experiment
    result: ExperimentResult | None = None
    headings: tuple[Heading, ...] = ()
    lines: tuple[Line, ...] = ()
    settings: Mapping[str, str] | None = None
    picture: str = ""
    """an <svg> element, or nothing"""
    files: tuple[str, ...] = ()
    """names of the files beside the page"""

    @property
    def idle(self) -> int:
        """How many rows were not run."""
        return sum(not line.run for line in self.lines)

    @property
    def extent(self) -> str:
        """Whether this was a reduced run; "–" if the settings do not say."""
        quick = self.result.settings.get("quick") if self.result else None
        return ("quick" if quick else "full") if isinstance(quick, bool) else "–"


def write(out: Path) -> Path:
    """Write OUT/index.html over every table of EXPERIMENTS in OUT; return its path.

    Other files are not looked at. A NAME.json or NAME.svg that `vertex reproduce` cannot have written is an error that
    names it, and the page that was there stays.
    """
    template = templates.named("summary.html.j2", "vertex_lab.experiments")
    sections = [_section(out, experiment) for experiment in EXPERIMENTS.values()]
    page = template.render(sections=sections, not_run=NOT_RUN, long=LONG)
    return write_whole(out / "index.html", page.encode())


def _section(out: Path, experiment: Experiment) -> Section:
    name = experiment.name
    path, plot = out / f"{name}.json", out / f"{name}.svg"
    if not path.exists():
        return Section(experiment)
    remedy = f"move it away, or make it again: vertex reproduce {name}"
    text = read_whole(path, MOST_BYTES, remedy)
    drawn = read_whole(plot, MOST_BYTES, remedy) if plot.exists() else b""
    try:
        result = _result(name, json.loads(text, parse_constant=_refuse))
        headings, lines = _table(result)
        picture = svg.inlined(drawn, f"{name}-svg-", str(plot)) if plot.exists() else ""
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}; {remedy}") from error
    except (ValueError, OverflowError, RecursionError, InternalError) as error:
        raise InvalidValueError(f"{path} is not a table of `vertex reproduce`: {error}; {remedy}") from error
    return Section(
        experiment,
        result,
        headings,
        lines,
        {key: _setting(value) for key, value in result.settings.items()},
        picture,
        tuple(f"{name}.{ending}" for ending in BESIDE if (out / f"{name}.{ending}").exists()),
    )


def _refuse(constant: str) -> None:
    raise ValueError(f"it has the number {constant}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _result(name: str, data: Any) -> ExperimentResult:
    """The result whose `json` the data is; a ValueError, or the result's own error, says what is wrong with it."""
    _require(isinstance(data, dict), "it is not a JSON object")
    json.dumps(data, ensure_ascii=False).encode()  # half of a surrogate pair is a ValueError
    _require(data.get("name") == name, f"its name is {data.get('name')!r}")
    for key, kind in KINDS.items():
        _require(isinstance(data.get(key), kind), f"{key!r} is missing or of the wrong kind")
    formats = data.get("formats", [""] * len(data["columns"]))
    _require(isinstance(formats, list), "'formats' is of the wrong kind")
    texts = {key: data[key] for key in ("columns", "notes", "failures")} | {"formats": formats}
    for key, values in (*texts.items(), ("versions", data["versions"].values())):
        _require(all(isinstance(value, str) for value in values), f"{key!r} has something other than texts")
    _require(len(formats) == len(data["columns"]), f"{len(data['columns'])} columns, {len(formats)} formats")
    for spec in formats:
        _require(FORMAT.fullmatch(spec) is not None, f"the format {spec!r} is unknown")
    for key in ("rows", "published"):
        for number, row in enumerate(data[key]):
            plain = isinstance(row, dict) and all(isinstance(cell, PLAIN) for cell in row.values())
            _require(plain, f"{key!r}, row {number}, is not an object of plain cells")
    return ExperimentResult(
        name=name,
        title=data["title"],
        columns=tuple(Column(*pair) for pair in zip(data["columns"], formats, strict=True)),
        rows=tuple(data["rows"]),
        published=tuple(data["published"]),
        notes=tuple(data["notes"]),
        settings=data["settings"],
        seconds=float(data["seconds"]),
        versions=data["versions"],
        failures=tuple(data["failures"]),
    )


def _table(result: ExperimentResult) -> tuple[tuple[Heading, ...], tuple[Line, ...]]:
    """The headings and the rows: of a column with published figures two cells each, ours and then theirs."""
    headings = []
    for column in result.columns:
        ours, theirs = ([row.get(column.name) for row in rows] for rows in (result.rows, result.published))
        both = any(column.name in row for row in result.published)
        headings.append(Heading(column.name, both, not any(isinstance(cell, str) for cell in (*ours, *theirs))))
    first = result.columns[0].name if result.columns else ""
    opening = [row.get(first) for row in result.rows]
    repeats = len(set(opening)) < len(opening)
    lines = []
    for number, (row, beside) in enumerate(zip(result.rows, result.published, strict=True)):
        cells: list[Shown] = []
        for column, heading in zip(result.columns, headings, strict=True):
            cells.append(Shown(column.text(row.get(column.name)), published=False, number=heading.number))
            if heading.both:
                cells.append(Shown(column.text(beside.get(column.name)), published=True, number=heading.number))
        opens = repeats and number > 0 and opening[number] != opening[number - 1]
        lines.append(Line(tuple(cells), row.get("Status") != NOT_RUN, opens))
    return tuple(headings), tuple(lines)


def _setting(value: object) -> str:
    """A setting in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
