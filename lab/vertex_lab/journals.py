"""Journals of experiments: an answer counts for the sources of the product and of the experiment that gave it.

Invariant: two answers with the same fingerprint came from the same sources of everything in the product that computes,
and of everything in the laboratory but what ASKING names: an experiment names what it hangs on of that.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from vertex_softmax.runs import sources
from vertex_softmax.runs.journal import Journal

LABORATORY = Path(__file__).parent
ASKING = ("commands", "experiments", "fuzz", "soundness", "softmax_box_bench.py", "journals.py")
"""What asks and shows; data sets and baselines are not in it, and count for every experiment."""


@cache
def fingerprint(*files: str) -> str:
    """Of everything that computes, in the product and here, and of these files and folders of the laboratory."""
    found = hashlib.sha256(sources.fingerprint().encode())
    for data in (*(name.encode() for name in files), b""):
        _add(found, data)
    for path in counted(*files):
        _add(found, path.relative_to(LABORATORY).as_posix().encode())
        _add(found, path.read_bytes())
    return found.hexdigest()


def counted(*files: str) -> list[Path]:
    """The files of the laboratory that a fingerprint is taken of."""
    asking = {path for name in ASKING for path in _within(LABORATORY / name)}
    named = {path for name in files for path in _within(LABORATORY / name)}
    return sorted((set(_within(LABORATORY)) - asking) | named)


def journal_of(name: str, out: Path, *files: str) -> Journal:
    """OUT/journals/NAME.jsonl, for answers of these sources."""
    return Journal(out / "journals" / f"{name}.jsonl", fingerprint(*files))


def _within(place: Path) -> list[Path]:
    return list(place.rglob("*.py")) if place.is_dir() else [place]


def _add(found: hashlib._Hash, data: bytes) -> None:
    """With the length first, so that no two lists of parts look alike."""
    found.update(len(data).to_bytes(8, "little") + data)
