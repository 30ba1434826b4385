"""Fingerprints of the sources that computed an answer.

Invariant: two answers with the same fingerprint came from the same sources of everything that computes a bound or an
attack, including the compiled kernel and the versions of the numerical libraries. Every file of the package counts
unless it is listed in SHOWING, so that a new file counts. Files are read, not imported.
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
"""Modules that only start computations and show results. An answer that depends on one of them names it."""
LIBRARIES = ("torch", "numpy", "onnx", "onnxruntime")
"""The libraries whose versions count."""
SUFFIXES = {".py", ".c", ".h"}
BUILT = {".so", ".dll", ".dylib", ".pyd"}


@cache
def fingerprint(*files: str, built: bool = True) -> str:
    """The SHA-256 of everything in the package that computes a bound or an attack, and of the files and folders named.

    built: include the bytes of the compiled kernel, which differ between compilers.
    """
    digest = hashlib.sha256()
    for text in (*files, "", *(f"{name} {_version(name)}" for name in LIBRARIES), _kernel()):
        _add(digest, text.encode())
    for path in counted(*files):
        if path.suffix in SUFFIXES or (built and path.suffix in BUILT):
            _add(digest, path.relative_to(PACKAGE).as_posix().encode())
            _add(digest, path.read_bytes())
    return digest.hexdigest()


def counted(*files: str) -> list[Path]:
    """The files of the package that a fingerprint is taken of, before they are filtered by suffix."""
    shown = {path for name in SHOWING for match in PACKAGE.glob(name) for path in _within(match)}
    named = {path for name in files for path in _within(PACKAGE / name)}
    return sorted((set(_within(PACKAGE)) - shown) | named)


def of_answers(*, built: bool = True) -> str:
    """The fingerprint of everything that an answer of `vertex verify` depends on."""
    return fingerprint("cli/verify.py", "cli/common.py", "cli/sharing.py", built=built)


def _within(path: Path) -> list[Path]:
    """All files in a folder and its subfolders; a file is its own only one."""
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _add(digest: hashlib._Hash, data: bytes) -> None:
    """Add bytes to a digest, their length first, so that different lists of parts have different digests."""
    digest.update(len(data).to_bytes(8, "little") + data)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _kernel() -> str:
    return "pure Python" if os.environ.get("VERTEX_PURE_PYTHON") == "1" else "compiled kernel"
