"""Radii of single words and patches (`vertex radius --each` and `--patches`), for the terminal and as plain JSON."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from vertex_softmax.runs.parts import PartRadius
    from vertex_softmax.runs.run import Run


def part_summary(run: Run) -> dict[str, Any]:
    """Every radius of every part, as plain JSON."""
    return {
        "inputs": len(run.inputs),
        "correct": sum(x.clean > 0 for x in run.inputs),
        "parts": [] if run.parts is None else list(run.parts.places),
        "radii": [
            {
                "input": run.inputs[r.input].index,
                "part": 0 if run.parts is None else run.parts.places[r.part],
                "method": r.method,
                "certified": r.certified,
                "refused": r.refused,
                "attacked": r.attacked,
                "seconds": r.seconds,
            }
            for r in run.part_radii
        ],
    }


def part_table(run: Run) -> Table:
    """A row for each input and method: the part of the least radius, the median and the largest, and the attack's."""
    shown = Table(title=Text(run.title), caption=Text("one part moves at a time; fooled: by the attack"))
    for name in ("input", "method", "least ε", "of", "median", "largest", "fooled", "of"):
        shown.add_column(name, justify="left" if name in ("method", "of") else "right")
    for i, x in enumerate(run.inputs):
        for method in run.methods:
            mine = [r for r in run.part_radii if r.input == i and r.method == method]
            if not mine:
                continue
            weak = min(mine, key=lambda r: r.certified)
            fooled = min((r for r in mine if r.attacked is not None), key=lambda r: r.attacked or 0.0, default=None)
            middle = statistics.median(r.certified for r in mine)
            most = max(r.certified for r in mine)
            row = [f"{weak.certified:.4g}", _name(run, weak), f"{middle:.4g}", f"{most:.4g}"]
            row += ["–", ""] if fooled is None else [f"{fooled.attacked:.4g}", _name(run, fooled)]
            shown.add_row(str(x.index), method, *map(Text, row))
    return shown


def _name(run: Run, radius: PartRadius) -> str:
    """A part in words: the word itself if its text is known."""
    from vertex_softmax.runs.report.words import TokenReading, sentence

    if run.parts is None:
        return ""
    ids = run.inputs[radius.input].ids
    if ids is None:
        return run.parts.name(radius.part)
    place = run.parts.places[radius.part]
    known = str(ids[place]) in run.words
    text = TokenReading(run.words.values()).alone(sentence(ids, run.words)[place])
    return f"{text} ({place})" if known else f"token {place}"
