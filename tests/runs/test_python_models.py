"""Models made by Python functions: what is loaded is exactly what the file has, and all else is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from tests.runs.words import IDS, words, written
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs.code_names import is_python_model, source_file
from vertex_softmax.runs.python_models import load_weights, python_model, weights_identity


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("code"))


def test_a_file_and_a_package_give_the_same_model(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = place / "parcel"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text((place / "code.py").read_text())
    monkeypatch.chdir(place)
    before = list(sys.path)
    found = [python_model(name, place / "weights.safetensors") for name in ("code.py:net", "parcel.inner:net")]
    assert sys.path == before
    for module in found:
        assert not module.training
        assert torch.equal(module(IDS), words()(IDS))
    assert len({weights_identity(each) for each in (*found, words())}) == 1


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("a:b", "a.b:c", "x/y.py:f", "/x/y.py:f", "..\\y.py:f"):
        assert is_python_model(text)
    for text in ("model.onnx", "a", "a:", ":b", "a:b.onnx", "a-b:c", "C:\\model.onnx", "dir/a:b", "a:b c", "a\0:b", ""):
        assert not is_python_model(text)
    assert source_file("x/y.py:f") == Path("x/y.py")
    assert source_file("a.b:f") is None


def test_a_file_with_such_a_name_is_never_code(tmp_path: Path) -> None:
    """A list of files from a stranger (a sweep's, for instance) may name one like this."""
    (tmp_path / "evil.py").write_text("raise RuntimeError('this ran')")
    name = f"{tmp_path / 'evil.py'}:f"
    assert is_python_model(name)
    Path(name).write_bytes(b"a model")
    assert not is_python_model(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("code.py:nothing", "has no 'nothing'; it has .*net"),
        ("code.py:number", "returned a int"),
        ("code.py:broken", "KeyError.*nothing here"),
        ("code.py:leaves", "SystemExit: 3"),
        ("code.py:needs", "needs the arguments size;"),
        ("code.py:ready", "is a module itself"),
        ("code.py:text", "is a str"),
        ("empty.py:f", "has no 'f'; it has no functions of its own"),
        ("absent.py:f", "there is no file"),
        ("absent_package.module:f", "no module 'absent_package'"),
        ("faulty.py:f", "SyntaxError"),
        ("importing.py:f", "no_such_thing_here"),
    ],
)
def test_what_is_no_model(place: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.chdir(place)
    (place / "empty.py").write_text("from math import sqrt\n")
    (place / "faulty.py").write_text("def f(:\n")
    (place / "importing.py").write_text("import no_such_thing_here\n")
    with pytest.raises(VertexError, match=text):
        python_model(name)


def test_what_code_prints_is_not_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loud.py").write_text(
        "from torch import nn\nprint('loud')\n\ndef f():\n    print('er')\n    return nn.ReLU()"
    )
    python_model(f"{tmp_path / 'loud.py'}:f")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "loud\ner\n"


def test_weights_have_to_fit(place: Path, tmp_path: Path) -> None:
    state = dict(words().state_dict())
    less = {name: value for name, value in state.items() if name != "key.bias"}
    cases = {
        "lacks key.bias": less,
        "no key.bia": {**less, "key.bia": state["key.bias"]},
        "head.weight .2, 5. for .2, 4.": {**state, "head.weight": torch.zeros(2, 5)},
        "does not hold its numbers exactly": {**state, "head.bias": torch.tensor([0.1, 0.2], dtype=torch.float64)},
        "torch.int64, and the module's": {**state, "head.bias": torch.tensor([1, 2])},
    }
    for text, given in cases.items():
        save_file(given, tmp_path / "w.safetensors")
        with pytest.raises(VertexError, match=text):
            python_model(f"{place / 'code.py'}:net", tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"12345678 no")
    with pytest.raises(VertexError, match="not a safetensors file"):
        python_model(f"{place / 'code.py'}:net", tmp_path / "w.safetensors")
    for name in ("w.pt", "absent.safetensors"):
        with pytest.raises(VertexError, match=name):
            python_model(f"{place / 'code.py'}:net", tmp_path / name)
    exact = {**state, "head.bias": torch.tensor([0.5, 0.25], dtype=torch.float64)}
    save_file(exact, tmp_path / "w.safetensors")
    found = python_model(f"{place / 'code.py'}:net", tmp_path / "w.safetensors")
    assert found.head.bias.tolist() == [0.5, 0.25]  # type: ignore[union-attr]


def test_weights_may_be_a_link(place: Path, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").symlink_to(place / "weights.safetensors")
    found = python_model(f"{place / 'code.py'}:net", tmp_path / "w.safetensors")
    assert weights_identity(found) == weights_identity(words())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.out.weight = self.table.weight


def test_tied_weights_are_in_the_file_once(tmp_path: Path) -> None:
    torch.manual_seed(1)
    one, other = Tied(), Tied()
    save_model(one, str(tmp_path / "t.safetensors"))
    load_weights(other, tmp_path / "t.safetensors")
    assert torch.equal(one.table.weight, other.table.weight)
    assert other.out.weight is other.table.weight
    both = {"table.weight": torch.zeros(5, 3), "out.weight": torch.ones(5, 3)}
    save_file(both, tmp_path / "t.safetensors")
    with pytest.raises(VertexError, match="shares its memory"):
        load_weights(other, tmp_path / "t.safetensors")


def test_every_weight_is_in_the_identity() -> None:
    seen = {weights_identity(words())}
    for name, value in words().state_dict().items():
        model = words()
        with torch.no_grad():
            model.state_dict()[name].flatten()[-1] = torch.nextafter(value.flatten()[-1], torch.tensor(9.0))
        seen.add(weights_identity(model))
    model = words()
    model.register_buffer("hidden", torch.zeros(1), persistent=False)
    seen |= {weights_identity(model), weights_identity(words().double())}
    assert len(seen) == 3 + len(words().state_dict())
