"""Which sources gave an answer.

Invariant: two answers with the same fingerprint came from the same sources of everything that computes a bound or an
attack. It is read from the files, and nothing is imported for it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
COMPUTING = ("softmax_box", "ops", "bounds", "graph", "search", "sets.py", "methods/bounding.py", "methods/certify.py")


@cache
def fingerprint(*files: str) -> str:
    """Of everything in the package that computes a bound or an attack, and of the files named."""
    found = hashlib.sha256()
    for name in (*COMPUTING, *files):
        place = PACKAGE / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in {".py", ".c", ".h"}:
                found.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def of_answers() -> str:
    """The fingerprint of everything that an answer of `vertex verify` hangs on."""
    return fingerprint("specs", "methods", "cli_verify.py")
