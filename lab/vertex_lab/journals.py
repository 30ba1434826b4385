"""Journals of experiments: an answer counts for the sources of the product and of the experiment that gave it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from vertex_softmax.runs import sources
from vertex_softmax.runs.journal import Journal

FOLDER = Path(__file__).parent


def fingerprint(*files: str) -> str:
    """Of everything in the product that computes, and of these files and folders of the laboratory."""
    found = hashlib.sha256(sources.fingerprint().encode())
    for name in files:
        place = FOLDER / name
        paths = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        for path in paths:
            for data in (path.relative_to(FOLDER).as_posix().encode(), path.read_bytes()):
                found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def journal_of(name: str, out: Path, *files: str) -> Journal:
    """OUT/journals/NAME.jsonl, for answers of these sources."""
    return Journal(out / "journals" / f"{name}.jsonl", fingerprint(*files))
