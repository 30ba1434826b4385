"""The build hook: it compiles the kernel when it can, and an install without a compiler still works."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

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


def test_the_kernel_is_compiled_and_loads(hook, tree) -> None:
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


def test_without_the_kernel_the_functions_are_the_same() -> None:
    code = (
        "import numpy as np, vertex_softmax as vx; from vertex_softmax.softmax_box import native;"
        "r = np.random.default_rng(0); c, l = r.normal(size=(2, 50, 9)); u = l + r.uniform(size=l.shape);"
        "print(native.available(), *vx.softmax_box_min(c, l, u))"
    )
    outputs = {}
    for pure in ("0", "1"):
        environment = os.environ | {"VERTEX_PURE_PYTHON": pure}
        found = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        outputs[pure] = found.stdout.split()
    assert outputs["0"][0] == "True"
    assert outputs["1"][0] == "False"
    assert [float(x) for x in outputs["1"][1:]] == pytest.approx([float(x) for x in outputs["0"][1:]], abs=1e-14)
