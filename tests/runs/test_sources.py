"""A fingerprint counts every file that an answer hangs on: whatever the code that computes imports."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vertex_softmax.runs import sources
from vertex_softmax.runs.sources import PACKAGE, counted, fingerprint, of_answers


def module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in PACKAGE.rglob("*.py")}


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it, and perhaps names that are none."""
    here = module(path).split(".") if path.name == "__init__.py" else module(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            name = ".".join((*base, *([node.module] if node.module else [])))
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


def reached(*roots: str) -> set[str]:
    """The files of the package that some modules import, and what those import, and so on."""
    found: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop()
        if name in MODULES and name not in found:
            found.add(name)
            left += imported(MODULES[name])
    return {MODULES[name].relative_to(PACKAGE).as_posix() for name in found}


SHOWN = {
    "cli/__init__.py",
    "cli/names.py",
    "cli/values.py",
    "runs/journal.py",
    "runs/report/__init__.py",
    "runs/report/figures.py",
    "runs/report/plots.py",
    *(f"runs/sweep/{name}.py" for name in ("instances", "ray", "runner", "workers")),
}
"""Of what a result is drawn with, what commands are called, what keeps the answers, and what carries sealed lines."""


@pytest.mark.parametrize(
    ("roots", "files"),
    [
        (("runs.evaluate",), ("runs/evaluate.py",)),
        (("runs.radius",), ("runs/radius.py",)),
        (("cli.verify",), ("cli/verify.py", "cli/common.py", "cli/sharing.py")),
    ],
)
def test_what_computes_an_answer_is_counted(roots: tuple[str, ...], files: tuple[str, ...]) -> None:
    known = {path.relative_to(PACKAGE).as_posix() for path in counted(*files)}
    assert reached(*(f"{PACKAGE.name}.{root}" for root in roots)) - known - SHOWN == set()


def test_what_is_shown_is_there_and_names_of_files_count() -> None:
    for name in sources.SHOWING:
        assert list(PACKAGE.glob(name)), name
    names = {path.relative_to(PACKAGE).as_posix() for path in counted()}
    assert {"foundation/errors.py", "runs/certification.py", "sets/box.py", "certificate/prove.py"} <= names
    assert {"runs/subject.py", "runs/demo/training.py", "runs/demo/baselines/wei.py", "runs/sources.py"} <= names
    assert not {"cli/main.py", "cli/verify.py", "runs/sweep/sweep.py", "runs/sweep/runner.py"} & names
    assert not {"runs/report/plots.py", "runs/demo/demo.py", "runs/journal.py", "__main__.py"} & names
    assert len({fingerprint(), fingerprint("runs"), fingerprint("sets"), of_answers(), of_answers(built=False)}) == 5
    assert len(fingerprint()) == 64


def test_libraries_and_the_kernel_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*, built: bool = True) -> str:
        fingerprint.cache_clear()
        return fingerprint(built=built)

    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    (tmp_path / "softmax_box").mkdir()
    first, plain = taken(), taken(built=False)
    (tmp_path / "softmax_box" / "kernel.so").write_bytes(b"1")
    second = taken()
    (tmp_path / "softmax_box" / "kernel.so").write_bytes(b"2")
    assert len({first, second, taken()}) == 3
    assert taken(built=False) == plain
    monkeypatch.setattr(sources.importlib.metadata, "version", lambda name: f"{name} 99")
    assert taken(built=False) != plain
    plain = taken(built=False)
    monkeypatch.setenv("VERTEX_PURE_PYTHON", "0" if os.environ.get("VERTEX_PURE_PYTHON") == "1" else "1")
    assert taken(built=False) != plain
    monkeypatch.undo()
    fingerprint.cache_clear()


def test_where_one_file_ends_and_the_next_begins_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(**files: bytes) -> str:
        for name, data in files.items():
            (tmp_path / f"{name}.py").write_bytes(data)
        fingerprint.cache_clear()
        return fingerprint()

    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    assert len({taken(a=b"1", b=b"2"), taken(a=b"1b.py2", b=b""), taken(a=b"12", b=b""), taken(a=b"", b=b"12")}) == 4
    monkeypatch.undo()
    fingerprint.cache_clear()
