"""Our answers to the suite, by `vertex sweep`, as one JSON file that can be published with the checksums."""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vertex_lab.suite.family import Say
from vertex_lab.suite.maker import CHECKSUMS, FAMILIES, MOST_BYTES
from vertex_softmax import __version__
from vertex_softmax.foundation.files import read_whole, write_whole
from vertex_softmax.runs.sweep import sweep
from vertex_softmax.runs.sweep.instances import SweepInstance, read_instances
from vertex_softmax.runs.sweep.runner import Settings

FALSE = {"inside": "sat", "outside": "unsat"}
"""The answer that a level excludes: inside was proved when it was made, outside an attack had succeeded."""


@dataclass(frozen=True)
class Asked:
    """What to ask, and how."""

    seconds: float = 20.0
    """for each instance"""
    each: int | None = None
    """only the first so many instances of each network"""
    jobs: int = 1
    families: tuple[str, ...] = tuple(FAMILIES)


def verdicts(out: Path, file: Path, asked: Asked, say: Say) -> dict[str, Any]:
    """The families' answers, written to `file`; the journals of the sweeps are beside it.

    What the file has of the same suite is kept: other families' answers, and entries that others wrote, such as the
    answers of peers.
    """
    record = about(out, asked.seconds)
    before = _before(file, record["suite"])
    record["rows"] = {name: before[name] for name in FAMILIES if name in before}
    for name in asked.families:
        listed = out / name / "instances.csv"
        if not listed.exists():
            continue
        known = json.loads(read_whole(out / name / "facts.json", MOST_BYTES, "make the suite"))["instances"]
        chosen = _first(read_instances(listed, asked.seconds), asked.each)
        place = file.with_name(f"{file.stem}-{name}")
        say(f"{name}: {len(chosen)} instances, journal in {place}")
        state = sweep.run(chosen, place, Settings(method="bab", jobs=asked.jobs, threads=1), listed=listed)
        levels = {row["vnnlib"]: row for row in known}
        rows = {}
        for instance in chosen:
            key, row = row_of(levels[instance.spec], state.line(instance) or {})
            rows[key] = {**before.get(name, {}).get(key, {}), **row}
        record["rows"][name] = rows
        record["counts"] = counts(record["rows"])
        write_whole(file, (json.dumps(record, indent=1) + "\n").encode())
    return record


def about(out: Path, seconds: float) -> dict[str, Any]:
    """What a record says of its suite and of the program that answers; it has no rows yet."""
    return {
        "suite": hashlib.sha256(read_whole(out / CHECKSUMS, MOST_BYTES, "make the suite")).hexdigest(),
        "version": __version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "seconds": seconds,
        "threads": 1,
        "rows": {},
    }


def row_of(known: Mapping[str, Any], line: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(key, row) of an instance: what is known of it, and the answer."""
    return known["vnnlib"].removeprefix("vnnlib/").removesuffix(".vnnlib"), {
        "network": known["network"],
        "level": known["level"],
        "eps": known["eps"],
        "vertex": line.get("status", "error"),
        "stage": line.get("stage", ""),
        "seconds": round(float(line.get("run_time") or 0.0), 2),
    }


def _before(file: Path, suite: str) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of a file about the same suite."""
    if not file.exists():
        return {}
    found = json.loads(read_whole(file, MOST_BYTES, "remove it"))
    return dict(found["rows"]) if found.get("suite") == suite else {}


def _first(instances: list[SweepInstance], each: int | None) -> list[SweepInstance]:
    seen: Counter[str] = Counter()
    found = []
    for instance in instances:
        seen[instance.model] += 1
        if each is None or seen[instance.model] <= each:
            found.append(instance)
    return found


def counts(rows: Mapping[str, Mapping[str, Mapping[str, Any]]], who: str = "vertex") -> dict[str, dict[str, int]]:
    """Per family, how many answers there are of each kind; those that were not asked are not counted."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for family, some in rows.items():
        found[family].update(row[who] for row in some.values() if who in row)
    return {family: dict(sorted(some.items())) for family, some in found.items()}


def contradictions(record: Mapping[str, Any], who: str = "vertex") -> list[str]:
    """Answers that the instance's level excludes, in words."""
    return [
        f"{family}/{name}: {row[who]}, and its level is {row['level']}"
        for family, some in record["rows"].items()
        for name, row in some.items()
        if who in row and FALSE.get(row["level"]) == row[who]
    ]
