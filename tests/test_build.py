"""The build hook, and what is in the wheel: the kernel where there is a compiler, and nothing of the laboratory."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import vertex_softmax as vx
from tests import forks
from vertex_softmax.softmax_box import native

ROOT = Path(__file__).parents[1]


@pytest.fixture
def hook(monkeypatch):
    """hatch_build.py, with a stand-in for hatchling, which only a build environment has."""
    name = "hatchling.builders.hooks.plugin.interface"
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    sys.modules[name].BuildHookInterface = object
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path, hook):
    shutil.copytree(ROOT / hook.SOURCE, tmp_path / hook.SOURCE, ignore=shutil.ignore_patterns("*.so"))
    return tmp_path


def initialize(hook, tree):
    instance = hook.KernelBuildHook()
    instance.root, instance.target_name = str(tree), "wheel"
    data = {"artifacts": []}
    instance.initialize("standard", data)
    return data


def test_the_kernel_is_compiled_and_loads(hook, tree, wheel: Path, monkeypatch) -> None:
    """Once, for the wheel; then the hook alone is asked, with that library instead of the compiler's work."""
    assert wheel.stem.split("-")[2:] == ["py3", "none", hook._platform()]
    with zipfile.ZipFile(wheel) as file:
        library = file.read(hook.LIBRARY.relative_to("src").as_posix())
        (about,) = (file.read(name).decode() for name in file.namelist() if name.endswith(".dist-info/WHEEL"))
    assert "Root-Is-Purelib: false" in about
    monkeypatch.setattr(hook, "compile_kernel", lambda root: (root / hook.LIBRARY).write_bytes(library))
    data = initialize(hook, tree)
    assert data["artifacts"] == [str(hook.LIBRARY)]
    assert data["pure_python"] is False
    assert data["tag"].startswith("py3-none-")
    assert ctypes.CDLL(str(tree / hook.LIBRARY)).vertex_variant() >= 0


def test_without_a_compiler_the_wheel_is_pure_python(hook, tree, monkeypatch, capsys) -> None:
    (tree / hook.LIBRARY).write_bytes(b"stale")
    monkeypatch.setenv("CC", "/nonexistent/cc")
    assert initialize(hook, tree) == {"artifacts": []}
    assert "the CPU kernel was not compiled" in capsys.readouterr().err
    assert not (tree / hook.LIBRARY).exists()


def minima(pure: str) -> None:
    """Print whether the kernel is there, and some minima."""
    os.environ["VERTEX_PURE_PYTHON"] = pure
    r = np.random.default_rng(0)
    c, lower = r.normal(size=(2, 50, 9))
    print(native.available(), *vx.softmax_box_min(c, lower, lower + r.uniform(size=lower.shape)))


def test_without_the_kernel_the_functions_are_the_same(tmp_path: Path) -> None:
    outputs = {}
    for pure in ("0", "1"):
        process = forks.Forked(tmp_path, minima, pure)
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        outputs[pure] = out.split()
    assert outputs["0"][0] == "True"
    assert outputs["1"][0] == "False"
    assert len(outputs["0"]) == len(outputs["1"]) == 51
    assert [float(x) for x in outputs["1"][1:]] == pytest.approx([float(x) for x in outputs["0"][1:]], abs=1e-14)


def built(tree: Path, out: Path, target: str = "wheel", **variables: str) -> Path:
    """What hatchling makes of the sources in a tree."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    done = subprocess.run(command, cwd=tree, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n(hatchling is in the extra dev)"
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the sources, as in a clone."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "lab", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return copy


@pytest.fixture(scope="module")
def wheel(copy: Path, tmp_path_factory) -> Path:
    """The wheel of the sources here, built in a copy of them, which has the compiled kernel afterwards."""
    return built(copy, tmp_path_factory.mktemp("wheel"))


def test_a_wheel_of_pure_python_has_no_kernel_of_an_earlier_build(copy: Path, wheel: Path, tmp_path: Path) -> None:
    assert list((copy / "src").rglob("*.so"))
    found = built(copy, tmp_path, VERTEX_PURE_PYTHON="1")
    assert found.stem.split("-")[2:] == ["py3", "none", "any"]
    with zipfile.ZipFile(found) as file:
        assert not [name for name in file.namelist() if name.endswith(".so")]


def test_the_source_distribution_has_what_a_wheel_is_built_from(copy: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(built(copy, tmp_path, "sdist")) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    with zipfile.ZipFile(wheel) as file:
        inside = {f"src/{name}" for name in file.namelist() if ".dist-info/" not in name and name[-3:] != ".so"}
    assert inside <= names
    assert {"hatch_build.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {"src", "examples"}
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@pytest.fixture(scope="module")
def vertex(wheel: Path, tmp_path_factory):
    """The command `vertex` of an environment that has the wheel and what it stands on, and no laboratory."""
    site, others = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("others")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)  # noqa: S202
    for path in Path(torch.__file__).parents[1].iterdir():
        if "vertex" not in path.name:
            (others / path.name).symlink_to(path)
    program = "import re, sys; from importlib.metadata import distribution; "
    program += "(entry,) = distribution('vertex-softmax').entry_points.select(group='console_scripts', name='vertex'); "
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{others}", "COLUMNS": "200"}

    def run(*arguments: str, folder: Path, first: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-c", f"{program}\n{first}\nentry.load()()", *arguments]
        return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)

    return run


def test_nothing_of_the_laboratory_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        texts = {name: file.read(name) for name in names if name.endswith((".py", ".j2", ".js", ".txt"))}
    here = ROOT / "src"
    sources = {p.relative_to(here).as_posix() for p in here.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside - {"vertex_softmax/softmax_box/native/softmax_box.so"} == {n for n in sources if n[-3:] != ".so"}
    assert not any("vertex_lab" in name or "benchmark" in name for name in names)
    told = {name for name, data in texts.items() if b"vertex_lab" in data}
    assert told <= {"vertex_softmax/cli/plugins.py", "vertex_softmax/runs/named_data.py"}
    (entries,) = (data.decode() for name, data in texts.items() if name.endswith("entry_points.txt"))
    assert entries.split() == ["[console_scripts]", "vertex", "=", "vertex_softmax.cli.main:main"]


@pytest.mark.parametrize(
    "words",
    [
        "reproduce",
        "reproduce all --quick",
        "bench softmax-box",
        "bench",
        "data list",
        "data fetch mnist --x=1",
        "suite make out",
    ],
)
def test_without_the_laboratory_its_commands_say_how_to_get_it(vertex, words: str, tmp_path: Path) -> None:
    found = vertex(*words.split(), folder=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.count("\n") == 1, found.stderr
    assert found.stderr.startswith(f"error: `vertex {words.split(maxsplit=1)[0]}` is part of the laboratory")
    assert "pip install ./lab" in found.stderr
    assert not list(tmp_path.iterdir())


def test_without_the_laboratory_help_names_its_commands_and_its_data_have_a_remedy(vertex, tmp_path: Path) -> None:
    shown = vertex("--help", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert all(name in shown.stdout for name in ("verify", "reproduce", "bench", "data", "(in a clone)"))


@pytest.mark.slow  # `make release-check` does the same
def test_the_demo_of_an_installed_wheel(vertex, tmp_path: Path) -> None:
    """And what it certifies then; one process reads the package, and each command is a child of it."""
    certify = ("certify", "out/demo/model", "--eps", "0.01", "--count", "1")
    commands = [("demo", "--images", "1"), (*certify, "--data", "mnist"), (*certify, "--methods", "ibp")]
    done = vertex(json.dumps(commands), folder=tmp_path, first=EACH)
    assert done.returncode == 0, done.stderr
    demo, wrong, right = json.loads(done.stdout)
    assert demo[0] == 0, demo
    assert (tmp_path / "out" / "demo" / "report.html").stat().st_size > 0
    assert wrong[:2] == [2, ""]
    assert "the data set 'mnist' is not installed: it comes with the laboratory" in " ".join(wrong[2].split())
    assert right[0] == 0, right


EACH = """
import json, os
from pathlib import Path
import sklearn.datasets, torch._dynamo
import vertex_softmax.cli.certify, vertex_softmax.runs.certify, vertex_softmax.runs.evaluate
from vertex_softmax.runs.demo import demo
from vertex_softmax.runs.demo.model import Architecture
demo.ARCHITECTURE = Architecture(patch=4, dim=4, heads=1, mlp=0)  # a small one, and hardly trained
demo.TRAINING["epochs"], demo.EPS, demo.STEPS = 2, (0.08,), 4
found = []
for words in json.loads(sys.argv[1]):
    files = [Path(name).resolve() for name in ("stdout.txt", "stderr.txt")]
    if not os.fork():
        for number, file in zip((1, 2), files):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv[1:] = words
        break
    found.append([os.waitstatus_to_exitcode(os.wait()[1]), *(file.read_text() for file in files)])
else:
    sys.exit(print(json.dumps(found)))
"""
"""Before the command: become a child of it for every command given as JSON, and tell what each said."""
