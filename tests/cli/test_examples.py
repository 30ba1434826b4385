"""Every example of the help texts works as it is written (those of the README and of docs/: test_docs.py).

They run in this process, in a folder with small files of the names that they use; what would take minutes is made
smaller here and runs as it is in the slow test.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from tests import forks
from tests.lab.suite.small import SMALL
from tests.lab.zoo.data_files import mnist_files, registered, write
from tests.runs import words as sentences
from tests.search.small import network
from tests.slowly import few
from vertex_lab import experiments, softmax_box_bench
from vertex_lab.fuzz import run
from vertex_lab.fuzz.run import fuzz
from vertex_lab.soundness import bench
from vertex_lab.suite import max_of_k
from vertex_softmax.cli import main, verify
from vertex_softmax.runs.demo import demo
from vertex_softmax.runs.demo.model import Architecture, PatchTransformer
from vertex_softmax.runs.demo.training import save
from vertex_softmax.search import answers

TINY = Architecture(patch=4, dim=4, heads=1, mlp=0)
ALL = "vertex reproduce all --quick"
LONG = ("vertex bench fuzz", "vertex bench soundness")
"""Minutes to hours, as the example says."""
DEMO = "vertex demo --images 4"
"""The tests of main.py run it, with other images."""
RAY = "vertex sweep benchmark/instances.csv --runner ray"
FIRST = ("vertex demo", "vertex verify", "vertex sweep", "vertex suite make")
"""In the slow test these come first: others read what they write."""
SETUP = (
    "vertex verify model.onnx property.vnnlib --certificate proof.vertex",
    "vertex sweep benchmark/instances.csv --out out/benchmark",
    "vertex certify out/demo/model --eps 0.01 --count 1 --methods crown --out out/demo",
    "vertex suite make out/suite --families max_of_k --quick",
)
"""What the examples of the default run find done."""


def commands(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group of commands, by its words."""
    yield path, found
    for name, part in getattr(found, "commands", {}).items():
        yield from commands(part, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(main.app)))


def written(path: tuple[str, ...]) -> list[str]:
    """The examples in a command's help, as its author wrote them."""
    return re.findall(r"^    (vertex .+)$", COMMANDS[path].help, re.MULTILINE)


EXAMPLES = sorted(set(itertools.chain.from_iterable(map(written, COMMANDS))))


def prepare(place: Path) -> None:
    """Files with the names of the examples: the property holds, the model is small."""
    ends, sides = ("X_0", "X_1"), ((">=", "-1.0"), ("<=", "1.0"))
    declared = "".join(f"(declare-const {name} Real)\n" for name in (*ends, "Y_0", "Y_1"))
    box = "".join(f"(assert ({sign} {name} {end}))\n" for name in ends for sign, end in sides)
    eye, model = np.eye(2), network(([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.5]), "Relu", (np.eye(2), [0.25, 9.0]))
    (place / "benchmark").mkdir()
    for folder in (place, place / "benchmark"):
        (folder / "model.onnx").write_bytes(model)
        (folder / "property.vnnlib").write_text(declared + box + "(assert (>= Y_0 Y_1))\n")
    (place / "benchmark" / "instances.csv").write_text("model.onnx,property.vnnlib,60\n")
    np.savez(place / "inputs.npz", inputs=np.stack([eye[0], -eye[0], eye[1]]), labels=np.array([1, 1, 1]))
    (place / "model.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef net():\n    torch.manual_seed(0)\n"
        "    found = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))\n"
        "    found[2].bias.data = torch.tensor([0.0, 9.0])\n    return found\n"
    )
    sentences.written(place)
    for old, new in {"code.py": "words.py", "data.json": "ids.json", "choices.json": "words.json"}.items():
        (place / old).rename(place / new)
    (place / "weights.safetensors").rename(place / "w.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("examples")
    prepare(place)
    torch.manual_seed(0)
    save(PatchTransformer(**asdict(TINY)), place / "out" / "demo" / "model", {})
    write(place / "data" / "mnist", mnist_files())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        hurry(patch)
        for line in SETUP:
            assert CliRunner().invoke(main.app, shlex.split(line)[1:]).exit_code == 0, line
    return place


def hurry(patch: pytest.MonkeyPatch) -> None:
    """The time of `vertex verify` counts from the start of the process, and this one runs all tests; short attacks."""
    patch.setattr(verify, "_since_start", lambda: 0.0)
    patch.setattr(answers, "Budget", functools.partial(answers.Budget, first=1e-3))
    for name, value in SMALL.items():
        patch.setattr(max_of_k, name, value)


whole = bench.bench


@pytest.fixture
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same commands with less to do."""
    registered(monkeypatch, "mnist", mnist_files())
    monkeypatch.delenv("VERTEX_DATA", raising=False)
    hurry(monkeypatch)
    for name, value in {"ARCHITECTURE": TINY, "TRAINING": {**demo.TRAINING, "epochs": 1}, "EPS": (0.02,)}.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "BOUNDS_AT", 0.02)
    monkeypatch.setattr(demo, "STEPS", 4)
    monkeypatch.setattr(softmax_box_bench, "CPU_KEYS", (16,))
    monkeypatch.setattr(softmax_box_bench, "GROWTH_KEYS", (16,))
    monkeypatch.setattr(softmax_box_bench, "cpu_extra_bytes", lambda _keys: 0)
    monkeypatch.setattr(run, "fuzz", lambda _minutes, *given, **more: fuzz(0.0, *given, **more))
    first = {bench.TREE: "tree-side-1"}
    monkeypatch.setattr(
        bench, "names_of", lambda families, *_, **__: [first.get(families[0], f"{families[0]}-tokens-linear-1-1")]
    )
    monkeypatch.setattr(bench, "bench", lambda *given, **more: whole(*given, **{**more, "seconds": 0.1}))
    monkeypatch.setattr(bench.multiprocessing, "get_context", lambda _kind: forks.context())


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: "-".join(("vertex", *path)))
def test_every_command_has_examples_that_can_be_copied(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal of eighty columns each is one line."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = [line.rstrip() for line in CliRunner().invoke(main.app, [*path, "--help"]).stdout.splitlines()]
    assert max(map(len, shown)) <= 80
    assert written(path), f"`vertex {' '.join(path)}` has no lines under `Examples:` in its docstring"
    first = shown.index(" Examples") + 2
    assert shown[first : shown.index("", first)] == [f"     {line}" for line in written(path)]
    if not hasattr(COMMANDS[path], "commands"):
        assert any(line.startswith(" ".join(("vertex", *path))) for line in written(path))


@pytest.mark.usefixtures("smaller")
@pytest.mark.parametrize("line", few([line for line in EXAMPLES if line not in (ALL, RAY)], lambda line: line != DEMO))
def test_an_example_works(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = CliRunner().invoke(main.app, shlex.split(line)[1:])
    assert found.exit_code == 0, found.output
    assert found.stdout


def test_all_experiments_are_one_example(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The one that takes minutes: here with a single experiment."""
    assert ALL in EXAMPLES
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"slack": experiments.EXPERIMENTS["slack"]})
    monkeypatch.chdir(folder)
    assert CliRunner().invoke(main.app, shlex.split(ALL)[1:]).exit_code == 0


@pytest.mark.slow
def test_the_examples_work_as_they_are(tmp_path: Path) -> None:
    """As a user would, one after the other; nothing is made smaller. There are no data sets but the embedded one."""
    prepare(tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("VERTEX_DATA", None)
    lines = [line for line in EXAMPLES if "mnist" not in line and not line.startswith(LONG)]
    lines = [line for line in lines if line != RAY or find_spec("ray")]
    for line in sorted(lines, key=lambda line: (not line.startswith(FIRST), line)):
        command = ["bash", "-c", line]
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, f"{line}\n{found.stdout}\n{found.stderr}"
