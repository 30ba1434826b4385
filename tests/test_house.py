"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import torch

import vertex_softmax
from tests.pages import run_page
from tests.tiny_files import write_files

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_at_most_fifteen_public_names() -> None:
    assert len(vertex_softmax.__all__) <= 15
    assert all(hasattr(vertex_softmax, name) for name in vertex_softmax.__all__)


def test_no_file_over_500_lines() -> None:
    long = {path.name: n for path in SOURCES if (n := len(path.read_text().splitlines())) > 500}
    assert not long


def test_no_assert_no_pickle_no_print_in_library_code() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Assert), f"{path}:{node.lineno}"
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"{path}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno}"
            if isinstance(node, ast.Import):
                assert all(alias.name != "pickle" for alias in node.names), path


def test_the_primitive_imports_nothing_else_of_the_package() -> None:
    for path in (ROOT / "src" / "vertex_softmax" / "softmax_box").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vertex_softmax"):
                assert node.module.startswith(("vertex_softmax.softmax_box", "vertex_softmax.foundation.errors")), path


def test_the_version_is_told_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == vertex_softmax.__version__
    assert set(project["optional-dependencies"]) == {"onnx", "proof", "report", "ray", "vnnlib", "docs", "dev"}


def test_the_readme_names_both_commands_and_runs(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    torch.manual_seed(0)
    assert run_page(ROOT / "README.md", write_files(tmp_path)) == 0
    for made in ("digit.vertex", "out/certify/run.json"):
        assert (tmp_path / made).stat().st_size > 0
