"""The page of a proof about all inputs: one HTML file made from FOLDER/accuracy.json.

Invariant: the page loads nothing and proves nothing; it shows the numbers of the record, and names the files with which
the proof can be checked. Needs the extra `report` (jinja2 alone).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vertex_softmax.runs.accuracy import NAME as RECORD
from vertex_softmax.runs.accuracy import Accuracy, read_accuracy
from vertex_softmax.runs.report.assembled import assembled, written
from vertex_softmax.runs.report.numbers import short

NAME = "report.html"
SCRIPTS = ("heat.js", "accuracy.js")
SHOWN = 40
"""At most how many examples of a kind are listed."""


def write(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a record (its folder, or accuracy.json) to `out`, by default FOLDER/report.html."""
    record = read_accuracy(folder)
    home = folder if folder.is_dir() else folder.parent
    inputs = (home / RECORD if folder.is_dir() else folder,)
    return written(page(record), home / NAME if out is None else out, inputs)


def page(record: Accuracy) -> bytes:
    """The page of a record."""
    return assembled(
        "accuracy.html.j2",
        SCRIPTS,
        {
            "row": record.groups.row,
            "column": record.groups.column,
            "rows": len(record.groups.inputs),
            "columns": len(record.groups.inputs[0]),
            "inputs": [x for row in record.groups.inputs for x in row],
            "proved": [x for row in record.groups.proved for x in row],
            "right": None if record.groups.right is None else [x for row in record.groups.right for x in row],
        },
        record=record,
        lede=lede(record),
        shares=_shares(record),
        stages=[_stage(stage.name, stage.evaluations, stage.seconds, record.inputs) for stage in record.stages],
        sizes=_sizes(record),
        columns=_columns(record),
        facts=[(key, _plain(value)) for key, value in record.facts.items()],
        wrong=[_listed(x) for x in record.wrong[:SHOWN]],
        open=[_listed(x) for x in record.open[:SHOWN]],
    )


def lede(record: Accuracy) -> list[str]:
    """The main result, in sentences."""
    said = [
        f"{record.proved:,} of all {record.inputs:,} inputs are proved to be classified right: an accuracy of at least "
        f"{_share(record.proved, record.inputs, down=True)}."
    ]
    if record.right is not None:
        left = record.right - record.proved
        also = "which is all that the proof could say" if not left else f"so the proof misses {left:,}"
        said.append(
            f"Evaluation of every input finds {record.right:,} right "
            f"({_share(record.right, record.inputs, down=True)}), {also}."
        )
    return said


def _share(count: int, whole: int, *, down: bool = False) -> str:
    """A share in per cent; `down`: with four digits, rounded down, so that it is a bound too. 100 % is said of all."""
    if count == whole:
        return "100 %"
    if down:
        hundredths = 1_000_000 * count // whole  # of 0.0001 per cent
        return f"{hundredths // 10_000}.{hundredths % 10_000:04d} %"
    return f"{min(99.99, 100 * count / whole):.2f} %"


def _shares(record: Accuracy) -> list[dict[str, Any]]:
    """The bar of all inputs: proved, right but not proved, wrong; if nothing was evaluated, proved and open."""
    right = record.inputs if record.right is None else record.right
    parts = [
        (0, "proved right", record.proved),
        (1, "not proved" if record.right is None else "right, not proved", right - record.proved),
        (2, "wrong", record.inputs - right),
    ]
    return [
        {"kind": kind, "name": name, "count": f"{count:,}", "share": f"{100 * count / record.inputs:.4f}"}
        for kind, name, count in parts
        if count
    ]


def _stage(name: str, evaluations: int, seconds: float, inputs: int) -> dict[str, str]:
    return {
        "name": name,
        "evaluations": f"{evaluations:,}",
        "share": _share(evaluations, inputs) if evaluations < inputs else "as many as inputs",
        "seconds": f"{seconds:,.1f}" if seconds >= 1 else f"{seconds:.2g}",
    }


def _sizes(record: Accuracy) -> list[dict[str, Any]]:
    """The parts by size, with bars: what share of the proved inputs they have."""
    return [
        {
            "name": f"{s.least:,}" if s.least == s.most else f"{s.least:,} to {s.most:,}",
            "parts": f"{s.parts:,}",
            "inputs": f"{s.inputs:,}",
            "share": short(100 * s.inputs / record.proved) if record.proved else 0,
            "text": _share(s.inputs, record.proved) if record.proved else "–",
        }
        for s in record.sizes
    ]


def _columns(record: Accuracy) -> list[dict[str, str]]:
    """The groups, added up by column."""
    groups = record.groups
    rows = []
    for j in range(len(groups.inputs[0])):
        inputs, proved = (sum(row[j] for row in table) for table in (groups.inputs, groups.proved))
        wrong = "" if groups.right is None else f"{inputs - sum(row[j] for row in groups.right):,}"
        share = _share(proved, inputs) if inputs else "–"
        rows.append({"inputs": f"{inputs:,}", "proved": f"{proved:,}", "share": share, "wrong": wrong})
    return rows


def _listed(tokens: tuple[int, ...]) -> str:
    return " ".join(map(str, tokens))


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
