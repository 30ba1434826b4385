"""The checker is a folder that works alone: copied elsewhere it needs the standard library, numpy and python-flint."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bounds.networks import Config, transformer
from tests.certificate.made import boxed, by_hand, by_rule, leaf, node, with_choices
from vertex_softmax.certificate import checker

FOLDER = Path(checker.__file__).parent
ALONE = """
import json, sys

ALLOWED = set(sys.stdlib_module_names) | {"numpy", "flint", "checker"}


class Only:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ImportError(f"the checker imports {name}")
        return None


before = set(sys.modules)
sys.meta_path.insert(0, Only())
sys.path.insert(0, sys.argv[1])
import checker

assert checker.__file__.startswith(sys.argv[1]), checker.__file__
for place in sys.argv[2:]:
    verdict = checker.check(place)
    print(json.dumps([verdict.accepted, verdict.reason, verdict.margin]))
files = {name for name, module in sys.modules.items() if getattr(module, "__spec__", None)}
others = sorted({name.partition(".")[0] for name in files - before} - ALLOWED)
print(json.dumps(others))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(FOLDER, place / "checker", ignore=shutil.ignore_patterns("__pycache__"))
    return place


def test_a_copy_checks_alone(copy: Path, tmp_path: Path) -> None:
    """It accepts and rejects what it does here, with the same margin, and nothing else was imported."""
    config = Config(tokens=2, width=2, classes=2, norm="pre", activation="gelu", seed=1)
    prover, plain = by_rule(boxed(transformer(config), 0.05, 1))
    false = by_hand([node("Input", shape=[1])], [0], [1], [1], 0.5, tree=[leaf()]).data()
    files = {"plain": plain, "chosen": with_choices(prover), "false": false, "garbage": b"nothing"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    run = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(copy), *(str(tmp_path / name) for name in files)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    *verdicts, others = (json.loads(line) for line in run.stdout.splitlines())
    here = [checker.check(data) for data in files.values()]
    assert [v[:2] for v in verdicts] == [[v.accepted, v.reason] for v in here]
    assert [v[0] for v in verdicts] == [True, True, False, False]
    for there, verdict in zip(verdicts[:2], here[:2], strict=True):
        assert there[2] == pytest.approx(verdict.margin, rel=1e-9)
    assert others == []


def test_its_sources_import_nothing_else() -> None:
    allowed = set(sys.stdlib_module_names) | {"numpy", "flint"}
    for path in FOLDER.rglob("*.py"):
        deep = len(path.relative_to(FOLDER).parts)
        for entry in ast.walk(ast.parse(path.read_text())):
            if isinstance(entry, ast.Import):
                assert all(alias.name.partition(".")[0] in allowed for alias in entry.names), path
            elif isinstance(entry, ast.ImportFrom):
                name = entry.module or ""
                assert 1 <= entry.level <= deep or (entry.level == 0 and name.partition(".")[0] in allowed), path
            elif isinstance(entry, ast.Call) and isinstance(entry.func, ast.Name):
                assert entry.func.id not in {"eval", "exec", "__import__", "compile"}, path


def test_it_never_turns_text_into_code() -> None:
    """No pickle, no numpy file formats, no attribute that a file could name beyond a fixed set."""
    for path in FOLDER.rglob("*.py"):
        text = path.read_text()
        for word in ("pickle", "np.load", "allow_pickle", "importlib", "ctypes", "subprocess"):
            assert word not in text, (path, word)


def test_every_file_is_in_the_order_in_which_to_read_them() -> None:
    page = Path(__file__).parents[2] / "docs" / "certificates.md"
    said = page.read_text(encoding="utf-8").partition("in this order:")[2].partition("then the folder")[0]
    assert {name for name in said.split("`") if name.endswith(".py")} == {
        file.name for file in FOLDER.glob("*.py") if file.name != "__init__.py"
    }
    doc = str(checker.__doc__)
    assert all(file.name in doc for file in FOLDER.glob("*.py") if file.name != "__init__.py")
