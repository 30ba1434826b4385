"""What an experiment leaves behind: a table with the published figures beside ours, as JSON, Markdown, CSV and LaTeX.

Invariant: ours and the published figures are stored apart (`rows` and `published`) and every column that shows both is
written twice, so no published number can pass for ours. Files appear whole or not at all: they are written beside their
place and renamed.
"""

from __future__ import annotations

import csv
import importlib
import importlib.metadata
import io
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch

from vertex_softmax.foundation.errors import InternalError, MissingDependencyError
from vertex_softmax.foundation.files import write_whole

Cell: TypeAlias = str | int | float | bool | None
Row: TypeAlias = Mapping[str, Cell]

PACKAGES = ("vertex-softmax", "numpy", "torch", "python-flint", "matplotlib")


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, which is also its key in a row, and the format of its numbers."""

    name: str
    spec: str = ""

    def text(self, cell: Cell) -> str:
        """The cell as people read it; "–" for a cell without a value."""
        if cell is None:
            return "–"
        if isinstance(cell, bool):
            return "yes" if cell else "no"
        return cell if isinstance(cell, str) else format(cell, self.spec)


class Timer:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """So far."""
        return time.perf_counter() - self._start


def versions() -> dict[str, str]:
    """The versions and the machine a result was made with; packages that are not installed are left out."""
    found = {"python": platform.python_version(), "machine": machine()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@cache
def machine(device: str = "cpu") -> str:
    """System, processor, cores, and the GPU if that is the device, in words."""
    processor = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux, or a processor without a name
    cuda = f", {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else ""
    return f"{platform.system()}, {processor}, {os.cpu_count()} cores{cuda}"


@dataclass(frozen=True)
class ExperimentResult:
    """The table of one experiment: `rows` are ours, `published[i]` what the paper has for row i (empty if nothing)."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    published: tuple[Row, ...]
    notes: tuple[str, ...]
    settings: Mapping[str, object]
    seconds: float
    versions: Mapping[str, str] = field(default_factory=versions)
    failures: tuple[str, ...] = ()
    """checks that must hold and do not"""

    def __post_init__(self) -> None:
        known = {column.name for column in self.columns}
        unknown = {key for row in (*self.rows, *self.published) for key in row} - known
        if unknown:
            raise InternalError(f"experiment {self.name}: cells without a column: {', '.join(sorted(unknown))}")
        if len(self.published) != len(self.rows):
            raise InternalError(f"experiment {self.name}: {len(self.rows)} rows, {len(self.published)} published rows")

    def save(self, out: Path) -> tuple[Path, ...]:
        """Write NAME.json, .md, .csv and .tex into the folder `out`, and return their paths."""
        texts = {"json": self.json(), "md": self.markdown(), "csv": self.csv(), "tex": self.latex()}
        return tuple(write_whole(out / f"{self.name}.{ending}", text.encode()) for ending, text in texts.items())

    def json(self) -> str:
        """Everything, for machines: full precision, ours under "rows", the paper's under "published"."""
        names, formats = [column.name for column in self.columns], [column.spec for column in self.columns]
        fields = asdict(self) | {"columns": names, "formats": formats}
        return json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def markdown(self) -> str:
        """The table for people, with the notes, the settings and the versions under it."""
        head, *body = self._cells(lambda column, cell: column.text(cell).replace("|", "\\|"))
        lines = [f"# {self.title}", "", _line(head), _line(["---"] * len(head)), *map(_line, body), ""]
        lines += [f"- DOES NOT HOLD: {failure}" for failure in self.failures]
        lines += [f"- {note}" for note in self.notes]
        facts = [f"{key} {value}" for key, value in (*self.settings.items(), *self.versions.items())]
        lines += ["", f"{self.seconds:.1f} s. " + "; ".join(facts) + "."]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The table for spreadsheets: full precision, an empty field for a cell without a value."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self._cells(lambda _, cell: "" if cell is None else str(cell)))
        return text.getvalue()

    def latex(self) -> str:
        """The table for papers: a tabular with the rules of booktabs, the notes as comments above it."""
        head, *body = self._cells(lambda column, cell: column.text(cell))
        lines = [f"% {' '.join(line.split())}" for line in (self.title, *self.failures, *self.notes)]
        lines += [f"\\begin{{tabular}}{{{self._sides()}}}", "\\toprule", _latex_line(head), "\\midrule"]
        lines += [*map(_latex_line, body), "\\bottomrule", "\\end{tabular}"]
        return "\n".join(lines) + "\n"

    def _sides(self) -> str:
        """l or r for every column that is written: text to the left, numbers to the right."""
        both, sides = self._both(), ""
        for column in self.columns:
            cells = [row.get(column.name) for row in (*self.rows, *self.published)]
            side = "l" if any(isinstance(cell, str) for cell in cells) else "r"
            sides += 2 * side if column.name in both else side
        return sides

    def _both(self) -> set[str]:
        """The columns that are written twice."""
        return {column.name for column in self.columns if any(column.name in row for row in self.published)}

    def _cells(self, render: Callable[[Column, Cell], str]) -> list[list[str]]:
        both = self._both()
        head: list[str] = []
        for column in self.columns:
            head += [f"{column.name}, ours", f"{column.name}, published"] if column.name in both else [column.name]
        table = [head]
        for ours, theirs in zip(self.rows, self.published, strict=True):
            line: list[str] = []
            for column in self.columns:
                line.append(render(column, ours.get(column.name)))
                if column.name in both:
                    line.append(render(column, theirs.get(column.name)))
            table.append(line)
        return table


def required(module: str, package: str, extra: str) -> Any:
    """The optional module, or an error that says which extra brings its package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"this experiment needs {package}, which is not installed: pip install 'vertex-softmax[{extra}]'"
        ) from error


def new_figure(width: float = 6.4, height: float = 4.0) -> Any:
    """An empty matplotlib figure (inches). Call it before the long work, so that a missing matplotlib shows at once."""
    return required("matplotlib.figure", "matplotlib", "report").Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, out: Path, name: str) -> tuple[Path, ...]:
    """Write NAME.svg and NAME.png into the folder `out`; the SVG is the same, byte for byte, for the same figure."""
    matplotlib = required("matplotlib", "matplotlib", "report")
    paths = []
    for ending, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        buffer = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": name}):
            figure.savefig(buffer, format=ending, dpi=160, metadata=metadata)
        paths.append(write_whole(out / f"{name}.{ending}", buffer.getvalue()))
    return tuple(paths)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


LATEX = {
    "\\": r"\textbackslash{}",
    "–": "--",
    "ε": r"$\varepsilon$",
    "α": r"$\alpha$",
    "Δ": r"$\Delta$",
    "×": r"$\times$",
}
LATEX |= {"≤": r"$\le$", "≥": r"$\ge$", "−": "$-$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"±": r"$\pm$", **{character: f"${character}$" for character in "<>|"}}  # other glyphs in LaTeX's first fonts
LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def _latex_line(cells: list[str]) -> str:
    return " & ".join("".join(LATEX.get(character, character) for character in cell) for cell in cells) + r" \\"
