"""The page of a sweep: one HTML file made from the folder that `vertex sweep` wrote.

Invariant: an instance is shown with its line of the journal: the last one with the model, property, answer and time in
results.csv, and with the method and seed in summary.json. The page loads nothing. The folder is not trusted: whatever
does not fit is an error that names it. Needs the extra `report` (jinja2 alone).
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import read_whole
from vertex_softmax.runs.report.assembled import assembled, written
from vertex_softmax.runs.report.numbers import short

NAME = "report.html"
JOURNAL, RESULTS, SUMMARY = "journal.jsonl", "results.csv", "summary.json"
SCRIPTS = ("sweep.js",)
WORDS = {"unsat": "verified", "sat": "falsified", "unknown": "unknown", "timeout": "timeout", "error": "error"}
MOST_BYTES = 1 << 30
SHOWN = ("benchmark", "method", "seed", "device", "runner", "jobs", "threads", "memory", "retried", "version")


def write(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a sweep's folder to `out`, by default FOLDER/report.html; return its path."""
    inputs = [folder / name for name in (JOURNAL, RESULTS, SUMMARY)]
    return written(page(folder), folder / NAME if out is None else out, inputs)


def page(folder: Path) -> bytes:
    """The page of a sweep's folder."""
    summary = _summary(folder / SUMMARY)
    rows = _instances(folder, summary)
    models = list(dict.fromkeys(row["model"] for row in rows))
    counts: dict[str, Counter[str]] = {model: Counter() for model in models}
    for row in rows:
        counts[row["model"]][row["status"]] += 1
    total = Counter(row["status"] for row in rows)
    instances = summary.get("instances", len(rows))
    return assembled(
        "sweep.html.j2",
        SCRIPTS,
        {"statuses": list(WORDS.values()), "models": models, "instances": _columns(rows, models)},
        title=str(summary.get("benchmark") or folder.resolve().name),
        version=summary.get("version", ""),
        words=list(WORDS.values()),
        counts=counts,
        total=total,
        finished=len(rows),
        instances=instances,
        interrupted=summary.get("interrupted", True),
        facts=[(name, str(summary[name])) for name in SHOWN if summary.get(name) is not None],
        seconds=f"{math.fsum(row['seconds'] for row in rows):,.1f}",
    )


def _text(path: Path) -> str:
    return read_whole(path, MOST_BYTES, "give the folder that `vertex sweep` wrote").decode(errors="replace")


def _summary(path: Path) -> dict[str, Any]:
    """The content of summary.json, which a sweep writes when it ends; empty if the file does not exist."""
    if not path.exists():
        return {}
    try:
        found = json.loads(_text(path), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{path} is not a summary of `vertex sweep`: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("instances"), int):
        raise InvalidValueError(f"{path} is not a summary of `vertex sweep`: it has no number of instances")
    return found


def _refuse(text: str) -> float:
    raise ValueError(f"it has the number {text}")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of the journal; a last line that is not complete is ignored."""
    trials = []
    *complete, _rest = _text(path).split("\n")
    for number, line in enumerate(complete, 1):
        try:
            trial = json.loads(line, parse_constant=_refuse)
            _check(trial)
        except (ValueError, RecursionError) as error:
            raise InvalidValueError(f"{path}, line {number} is not an answer of `vertex sweep`: {error}") from error
        trials.append(trial)
    return trials


def _check(trial: Any) -> None:
    """Raise unless a line of the journal has the fields that the page needs."""
    if not isinstance(trial, dict):
        raise InvalidValueError("it is not an object")
    for key in ("model", "spec", "status"):
        if not isinstance(trial.get(key), str):
            raise InvalidValueError(f"{key!r} is not a text")
    if trial["status"] not in WORDS:
        raise InvalidValueError(f"the status {trial['status']!r} is unknown")
    if not _number(trial.get("run_time")):
        raise InvalidValueError("'run_time' is not a number of seconds")


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x <= 1e12


def _instances(folder: Path, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per finished instance, in the order of results.csv."""
    journal = {}
    for line in _lines(folder / JOURNAL):
        if not line.get("retrying") and all(
            line.get(key) == summary.get(key, line.get(key)) for key in ("method", "seed")
        ):
            journal[_key(line["model"], line["spec"], line["status"], f"{line['run_time']:.3f}")] = line
    rows = []
    results = folder / RESULTS
    try:
        for number, fields in enumerate(csv.reader(io.StringIO(_text(results), newline=""), strict=True), 1):
            answer = journal.get(_key(*(fields[k] for k in (1, 2, 4, 5)))) if len(fields) == 6 else None
            if answer is None:
                raise InvalidValueError(
                    f"{results}, line {number} is not in {folder / JOURNAL}; run the same `vertex sweep` again"
                )
            rows.append(_row(answer))
    except csv.Error as error:
        raise InvalidValueError(f"{results} is not a list of results: {error}") from error
    return rows


def _key(*parts: str) -> tuple[str, ...]:
    """Texts for comparison: bytes that are not UTF-8 are escaped in the journal, and replaced in results.csv."""
    return tuple(part.encode(errors="surrogateescape").decode(errors="replace") for part in parts)


def _row(line: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": line["model"],
        "spec": line["spec"],
        "status": WORDS[line["status"]],
        "seconds": float(line["run_time"]),
        "timeout": float(line["timeout"]) if _number(line.get("timeout")) else None,
        "stage": str(line.get("stage") or ""),
        "bound": worst(line.get("bounds")),
        "reason": _reason(line),
    }


def _reason(line: dict[str, Any]) -> str:
    first = f" (at the second try; the first: {line['retried']})" if line.get("retried") else ""
    return str(line.get("reason") or "") + first


def worst(bounds: Any) -> float | None:
    """The lowest of an answer's bounds (above 0, it is a proof); None if it has none, or one is not finite."""
    if not isinstance(bounds, list) or not all(isinstance(case, list) for case in bounds):
        return None
    found = [x for case in bounds for x in case]
    plain = all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= 1e300 for x in found)
    return min(map(float, found)) if found and plain else None


def _columns(rows: list[dict[str, Any]], models: list[str]) -> dict[str, list[Any]]:
    """The instances as columns; models and statuses become indices."""
    words, index = list(WORDS.values()), {model: i for i, model in enumerate(models)}
    return {
        "model": [index[row["model"]] for row in rows],
        "spec": [row["spec"] for row in rows],
        "status": [words.index(row["status"]) for row in rows],
        "seconds": [short(row["seconds"]) for row in rows],
        "timeout": [short(row["timeout"]) for row in rows],
        "bound": [short(row["bound"]) for row in rows],
        "stage": [row["stage"] for row in rows],
        "reason": [row["reason"] for row in rows],
    }
