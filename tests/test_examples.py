"""The examples run, and say what they promise."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch
from nbclient import NotebookClient

pytestmark = pytest.mark.usefixtures("zonotopes_once")
EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> str:
    module.main(["--quick"])
    return capsys.readouterr().out


def test_vit(capsys: pytest.CaptureFixture[str]) -> None:
    rows = dict(re.findall(r"│ (\w+) +│ (?:≤ )?(\d+)%", said(example("vit"), capsys)))
    assert list(rows) == ["ibp", "crown", "vertex", "hybrid", "joint", "attack"]
    assert int(rows["joint"]) > 0
    assert int(rows["crown"]) <= int(rows["hybrid"]) <= int(rows["joint"]) <= int(rows["attack"])


def test_text_classifier(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("text_classifier")
    module.Classifier = functools.partial(module.Classifier, d=8)  # type: ignore[attr-defined]
    rows = re.findall(r"│ (\w+) +│ ([\d.]+) +│ ([\d.]+|inf) +│ \w+ at ([\d.]+) +│", said(module, capsys))
    assert [word for word, *_ in rows] == ["the", "film", "was", "really", "very", "good"]
    for _, certified, fooled, _ in rows:
        assert 0 < float(certified) < float(fooled)


def test_bisection_says_only_what_was_tried() -> None:
    bisected = example("text_classifier").bisected
    largest, least = bisected(lambda eps: eps < torch.tensor([0.1, 0.0, 1e3]), 3, 12)
    assert 0.099 < largest[0] < 0.1 <= least[0] < 0.101
    assert largest[1] == 0.0
    assert least[2] == torch.inf


def test_decoder(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("decoder")
    module.SIZES = module.SIZES[:2]  # type: ignore[attr-defined]
    rows = re.findall(r"│ ([\d+ ]+=) +│ (\d+) +│ ([\d.]+) +│ ([\d.]+) +│", said(module, capsys))
    assert [row[0] for row in rows] == ["1 + 2 + 3 =", "0 + 0 + 0 ="]
    assert all(sum(map(int, text[:-2].split(" + "))) == int(answer) for text, answer, *_ in rows)
    assert all(float(eps) > 0 for row in rows for eps in row[2:])


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch.onnx.export's own
def test_digit_writes_a_model_and_a_property(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("digit")
    monkeypatch.setattr(module, "EPOCHS", 2)
    module.main([str(tmp_path)])
    for name in ("digit.onnx", "digit.vnnlib"):
        made, kept = (folder / name for folder in (tmp_path, EXAMPLES))
        assert 0.9 < made.stat().st_size / kept.stat().st_size < 1.1


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_quickstart(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    trained = next(cell for cell in notebook.cells if "epochs=12" in cell.source)
    trained.source = trained.source.replace("epochs=12", "epochs=4")
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "verified margin at least +" in printed
    assert "verified accepted margin" in printed
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
