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
LABORATORY = sorted((ROOT / "lab" / "vertex_lab").rglob("*.py"))
SCRIPTS = sorted((ROOT / "lab" / "benchmarks").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def test_at_most_twenty_four_public_names() -> None:
    assert len(vertex_softmax.__all__) <= 24
    assert all(hasattr(vertex_softmax, name) for name in vertex_softmax.__all__)


def test_no_file_over_500_lines() -> None:
    assert LABORATORY
    assert SCRIPTS
    for path in (*SOURCES, *LABORATORY, *SCRIPTS, *TESTS):
        assert len(path.read_text().splitlines()) <= 500, path


def test_no_assert_no_pickle_no_print_in_library_code() -> None:
    for path in (*SOURCES, *LABORATORY):
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


def test_helpers_of_tests_have_one_name_each() -> None:
    """`from tests.… import …` from the root of the project, and nothing else: no module is read twice by two names."""
    folders = {path.parent for path in TESTS}
    assert all((folder / "__init__.py").is_file() for folder in folders)
    own = {folder.name for folder in folders - {ROOT / "tests"}} | {path.stem for path in (ROOT / "tests").glob("*.py")}
    for path in TESTS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}:{node.lineno}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert not own & {name.partition(".")[0] for name in names}, f"{path}:{node.lineno}"


def test_the_version_is_told_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    laboratory = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert project["version"] == vertex_softmax.__version__ == laboratory["version"]
    assert set(project["optional-dependencies"]) == {"demo", "onnx", "proof", "report", "ray", "vnnlib", "docs", "dev"}


def test_the_readme_names_both_commands_and_runs(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    torch.manual_seed(0)
    assert run_page(ROOT / "README.md", write_files(tmp_path)) == 0
    for made in ("digit.vertex", "out/certify/run.json"):
        assert (tmp_path / made).stat().st_size > 0
