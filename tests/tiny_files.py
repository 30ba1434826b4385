"""Files that commands in texts name, tiny: a model, properties of it, a benchmark folder; and how they are run."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from typer.testing import CliRunner

from tests.search.small import network
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.runs.demo.training import save

MODEL = network(
    (np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([0.0, 0.5])), "Relu", (np.array([[1.0, 1.0]]), np.array([0.25]))
)
"""y = relu(x0 + x1) + relu(x0 − x1 + ½) + ¼: ¼ at the least over [−1, 1]²."""
BOX = "".join(f"(declare-const X_{i} Real)\n" for i in range(2)) + "(declare-const Y_0 Real)\n"
BOX += "".join(f"(assert (>= X_{i} -1.0))\n(assert (<= X_{i} 1.0))\n" for i in range(2))


def write_files(folder: Path) -> Path:
    """Write model.onnx, property.vnnlib (unsat), broken.vnnlib (sat); the same in benchmark/, with an instances.csv;
    a model as `vertex demo` leaves it in out/demo; and the model and the property of examples/.
    """
    for place in (folder, folder / "benchmark"):
        place.mkdir(exist_ok=True)
        (place / "model.onnx").write_bytes(MODEL)
        (place / "property.vnnlib").write_text(BOX + "(assert (<= Y_0 0.2))\n")
        (place / "broken.vnnlib").write_text(BOX + "(assert (<= Y_0 0.3))\n")
    (folder / "benchmark" / "instances.csv").write_text("model.onnx,property.vnnlib,60\n")
    (folder / "examples").mkdir(exist_ok=True)
    for name in ("digit.onnx", "digit.vnnlib"):
        shutil.copy(Path(__file__).parents[1] / "examples" / name, folder / "examples")
    save(PatchTransformer(patch=4, dim=4, heads=1, mlp=0, seed=0), folder / "out" / "demo" / "model", {})
    return folder


def vertex(*arguments: str) -> Any:
    """The command, in this process and in the current folder; its time counts from now, its first attack is short."""
    from vertex_softmax.cli import verify
    from vertex_softmax.cli.main import app
    from vertex_softmax.search import answers

    short = functools.partial(answers.Budget, first=1e-3)
    with mock.patch.object(verify, "_since_start", return_value=0.0), mock.patch.object(answers, "Budget", short):
        return CliRunner().invoke(app, list(arguments))
