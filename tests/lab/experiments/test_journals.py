"""An experiment's answers count for the product's sources, for the laboratory's, and for those it names; no others."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from vertex_lab import journals
from vertex_lab.journals import LABORATORY, fingerprint, journal_of
from vertex_softmax.runs import sources


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Copies of the product and of the laboratory that fingerprints are taken of."""
    product, laboratory = tmp_path / "product", tmp_path / "laboratory"
    for place, copy in ((sources.PACKAGE, product), (LABORATORY, laboratory)):
        shutil.copytree(place, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "data"))
    monkeypatch.setattr(sources, "PACKAGE", product)
    monkeypatch.setattr(journals, "LABORATORY", laboratory)
    forget()
    yield product, laboratory
    forget()


def forget() -> None:
    sources.fingerprint.cache_clear()
    fingerprint.cache_clear()


def taken(*files: str) -> str:
    forget()
    return fingerprint(*files)


COMPUTES = (
    "ops/attention/op.py",
    "bounds/backward.py",
    "graph/decompose.py",
    "search/attack.py",
    "sets/box.py",
    "methods/joint.py",
    "runs/certify.py",
    "runs/demo/training.py",
    "softmax_box/reference.py",
)
COUNTS = ("baselines/galileo.py", "zoo/datasets.py", "zoo/idx.py")
"""Of the laboratory, for every experiment."""
SHOWS = ("runs/journal.py", "runs/report/plots.py", "runs/sweep/runner.py", "cli/main.py", "ops/x.pyc")
ASKS = ("experiments/learned.py", "experiments/tables.py", "commands/reproduce.py", "fuzz/check.py", "journals.py")


def test_a_fingerprint_changes_with_what_computes_and_with_nothing_else(copies: tuple[Path, Path]) -> None:
    product, laboratory = copies
    plain, with_file = taken(), taken("experiments/learned.py")
    assert len({plain, with_file, taken("experiments/synthetic.py"), taken("experiments")}) == 4
    kernels = [str(path.relative_to(product)) for path in product.rglob("*.[ch]")]
    assert kernels
    for path in (*(product / name for name in (*COMPUTES, *kernels)), *(laboratory / name for name in COUNTS)):
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        assert taken() != plain, path
        assert taken("experiments/learned.py") != with_file, path
        path.write_bytes(before)
    for folder in (product / "ops", laboratory / "baselines"):
        (folder / "new.py").write_text("")
        assert taken() != plain
        (folder / "new.py").unlink()
    for path in (*(product / name for name in SHOWS), *(laboratory / name for name in ASKS)):
        with path.open("ab") as file:
            file.write(b"\n")
    assert taken() == plain
    assert taken("experiments/learned.py") != with_file


def test_where_one_file_ends_and_the_next_begins_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(**files: bytes) -> str:
        for name, data in files.items():
            (tmp_path / f"{name}.py").write_bytes(data)
        fingerprint.cache_clear()
        return fingerprint("a.py")

    monkeypatch.setattr(journals, "LABORATORY", tmp_path)
    monkeypatch.setattr(journals, "ASKING", ())
    assert len({of(a=b"1", b=b"2"), of(a=b"1b.py2", b=b""), of(a=b"12", b=b""), of(a=b"", b=b"12")}) == 4
    monkeypatch.undo()
    fingerprint.cache_clear()


def test_every_source_that_an_experiment_names_is_there() -> None:
    named: set[str] = set()
    for path in (*(LABORATORY / "experiments").glob("*.py"), *(LABORATORY / "soundness").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z_]+/[a-z_/]+(\.py)?", str(node.value)):
                named.add(str(node.value))
    assert {"experiments/learned.py", "experiments/slack.py", "experiments/synthetic.py"} <= named
    assert [name for name in sorted(named) if not (LABORATORY / name).exists()] == []
    assert [name for name in journals.ASKING if not (LABORATORY / name).exists()] == []


def test_the_journal_of_an_experiment(tmp_path: Path) -> None:
    found = journal_of("strong", tmp_path, "experiments/synthetic.py")
    assert found.path == tmp_path / "journals" / "strong.jsonl"
    assert found.source == fingerprint("experiments/synthetic.py") != fingerprint() != sources.fingerprint()
    assert fingerprint("experiments/synthetic.py") == fingerprint("experiments/synthetic.py")
