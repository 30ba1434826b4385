"""Which sources gave an answer.

Invariant: two answers with the same fingerprint came from the same sources of everything that computes a bound or an
attack, the compiled kernel and the versions of the libraries that compute included. Whatever is in the package counts
unless it is named in SHOWING, so that a new file counts. It is read from the files, and nothing is imported for it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SHOWING = (
    "cli",
    "runs/report",
    "runs/demo/demo.py",
    "runs/journal.py",
    "runs/sweep",
    "__main__.py",
)
"""What asks, starts and shows, and computes no bound itself; an answer that hangs on some of it names it."""
LIBRARIES = ("torch", "numpy", "onnx", "onnxruntime")
SUFFIXES = {".py", ".c", ".h"}
BUILT = {".so", ".dll", ".dylib", ".pyd"}


@cache
def fingerprint(*files: str, built: bool = True) -> str:
    """Of everything in the package that computes a bound or an attack, and of the files and folders named.

    built: with the bytes of the compiled kernel, which differ between compilers.
    """
    found = hashlib.sha256()
    for text in (*files, "", *(f"{name} {_version(name)}" for name in LIBRARIES), _kernel()):
        _add(found, text.encode())
    for path in counted(*files):
        if path.suffix in SUFFIXES or (built and path.suffix in BUILT):
            _add(found, path.relative_to(PACKAGE).as_posix().encode())
            _add(found, path.read_bytes())
    return found.hexdigest()


def counted(*files: str) -> list[Path]:
    """The files of the package that a fingerprint is taken of, before their suffixes are looked at."""
    shown = {path for name in SHOWING for place in PACKAGE.glob(name) for path in _within(place)}
    named = {path for name in files for path in _within(PACKAGE / name)}
    return sorted((set(_within(PACKAGE)) - shown) | named)


def of_answers(*, built: bool = True) -> str:
    """The fingerprint of everything that an answer of `vertex verify` hangs on."""
    return fingerprint("cli/verify.py", "cli/common.py", built=built)


def _within(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else [place]


def _add(found: hashlib._Hash, data: bytes) -> None:
    """With the length first, so that no two lists of parts look alike."""
    found.update(len(data).to_bytes(8, "little") + data)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _kernel() -> str:
    return "pure Python" if os.environ.get("VERTEX_PURE_PYTHON") == "1" else "compiled kernel"
