from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.runs.made import inputs, network, subject_of
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs import subject as module
from vertex_softmax.runs.demo.training import save
from vertex_softmax.runs.subject import read_inputs, read_model

X = np.linspace(0, 1, 32, dtype=np.float32).reshape(2, 1, 4, 4)
Y = np.array([0, 2])


def test_npz_and_safetensors_give_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=X, labels=Y)
    np.savez_compressed(tmp_path / "b.npz", images=np.asfortranarray(X), y=Y.astype(np.uint8))
    save_file({"x": X, "labels": Y}, tmp_path / "c.safetensors")
    for name in ("a.npz", "b.npz", "c.safetensors"):
        found = read_inputs(str(tmp_path / name))
        assert torch.equal(found.x, torch.from_numpy(X.astype(np.float64)))
        assert found.labels.tolist() == [0, 2]
        assert found.clip is None
        assert found.name == name
    some = read_inputs(str(tmp_path / "a.npz"), first=1, count=5, clip=(0, 1))
    assert some.numbers == (1,)
    assert some.clip == (0, 1)


def test_a_file_without_inputs_says_which_arrays_it_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", pixels=X, digit=Y)
    save_file({"pixels": X, "digit": Y}, tmp_path / "b.safetensors")
    for name in ("a.npz", "b.safetensors"):
        with pytest.raises(VertexError, match=r"no array 'inputs' or .*; it has .*'pixels'"):
            read_inputs(str(tmp_path / name))
    np.savez(tmp_path / "c.npz", **{f"a{i}": Y for i in range(12)})
    with pytest.raises(VertexError, match="'a7' and 4 more"):
        read_inputs(str(tmp_path / "c.npz"))
    np.savez(tmp_path / "d.npz")
    with pytest.raises(VertexError, match="it has none"):
        read_inputs(str(tmp_path / "d.npz"))


def test_a_data_set_is_clipped_to_its_range() -> None:
    found = read_inputs("digits", count=3, first=7)
    assert found.numbers == (7, 8, 9)
    assert found.clip == (0.0, 1.0)
    assert tuple(found.x.shape) == (3, 1, 8, 8)


def _npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def test_nothing_is_unpickled_and_no_header_is_believed(tmp_path: Path) -> None:
    objects = _npy(np.array([{"a": 1}], dtype=object))
    huge = _npy(X).replace(b"(2, 1, 4, 4)", b"(2000000000,)")
    for content in (objects, huge, b"", b"\x93NUMPY", _npy(X)[:-1], _npy(np.array(["a"]))):
        path = _npz(tmp_path / "bad.npz", inputs=content, labels=_npy(Y))
        with pytest.raises(VertexError, match=r"bad\.npz"):
            read_inputs(str(path))


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"inputs": X}, "labels"),
        ({"labels": Y}, "inputs"),
        ({"inputs": X, "labels": Y[:1]}, "2 integers"),
        ({"inputs": X, "labels": Y * 1.0}, "integers"),
        ({"inputs": X[:0], "labels": Y[:0]}, "n ≥ 1"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], text: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(VertexError, match=text):
        read_inputs(str(tmp_path / "a.npz"))


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_files_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(VertexError, match="cannot be read"):
        read_inputs(str(tmp_path / name))
    (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(VertexError, match=name):
        read_inputs(str(tmp_path / name))


def test_names_and_ranges_are_checked(tmp_path: Path) -> None:
    with pytest.raises(VertexError, match="digits"):
        read_inputs("digit")
    with pytest.raises(VertexError, match="360 inputs"):
        read_inputs("digits", first=360)


def test_models_of_the_zoo_and_what_is_none(tmp_path: Path) -> None:
    save(network(), tmp_path / "model", {"accuracy": 0.75, "epochs": 3})
    for name in ("model", "model.safetensors", "model.json"):
        found = read_model(tmp_path / name, inputs())
        assert found.accuracy == 0.75
        assert found.facts["epochs"] == 3
        assert found.facts["heads"] == 2
        assert found.sha256 == subject_of(inputs()).sha256
    for name in ("other", "other.onnx"):
        with pytest.raises(VertexError, match="onnx"):
            read_model(tmp_path / name, inputs())


def test_the_digest_tells_networks_and_inputs_apart() -> None:
    some = inputs()
    assert some.sha256 != some.at([0, 1]).sha256
    changed = network().__class__(image=4, patch=2, dim=4, heads=2, mlp=6, classes=3, seed=4).double().eval()
    from vertex_softmax.runs.subject import subject

    assert subject(changed, some).sha256 != subject_of(some).sha256


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }\n"


@pytest.mark.parametrize(
    "shape",
    ["(2, 1, 4, 4", "(2.0, 1, 4, 4)", "(True, 2, 4, 4)", "(1,) * 9", "(-1, 4)", "(" * 5000, "(999999999999999999999,)"],
)
def test_headers_that_are_none(tmp_path: Path, shape: str) -> None:
    text = (HEADER % shape).encode()
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + X.tobytes()
    with pytest.raises(VertexError):
        read_inputs(str(_npz(tmp_path / "bad.npz", inputs=content, labels=_npy(Y))))


def test_spoilt_archives(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", inputs=X, labels=Y)
    whole = (tmp_path / "a.npz").read_bytes()
    for at in range(0, len(whole), 3):
        (tmp_path / "a.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read_inputs(str(tmp_path / "a.npz"))
        except VertexError:
            continue


def test_what_unpacks_to_much_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", inputs=np.zeros((100, 1000)), labels=np.zeros(100, dtype=np.int64))
    assert len(read_inputs(str(tmp_path / "a.npz"))) == 100
    monkeypatch.setattr(module, "MOST_NUMBERS", 99_999)
    with pytest.raises(VertexError, match="more than 99999 numbers"):
        read_inputs(str(tmp_path / "a.npz"))
    monkeypatch.setattr(module, "MOST_BYTES", 500_000)
    assert (tmp_path / "a.npz").stat().st_size < 500_000
    with pytest.raises(VertexError, match="more than 500000 bytes, decompressed"):
        read_inputs(str(tmp_path / "a.npz"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_inputs_are_finite(tmp_path: Path, value: float) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.array([[0.0, value]]), labels=np.array([0]))
    with pytest.raises(VertexError, match="input 0, counted from 0, is not finite"):
        read_inputs(str(tmp_path / "a.npz"))
    rows = np.array([[0.0, 1.0], [0.0, value], [value, 0.0]])
    np.savez(tmp_path / "b.npz", inputs=rows, labels=np.array([0, 0, 0]))
    with pytest.raises(VertexError, match="input 1, counted from 0, and 1 more are not finite; leave"):
        read_inputs(str(tmp_path / "b.npz"))


def test_bytes_are_not_taken_for_what_a_model_takes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=(255 * X).astype(np.uint8), labels=Y)
    with pytest.raises(VertexError, match=r"a.npz: the inputs are bytes; save .* such as inputs / 255"):
        read_inputs(str(tmp_path / "a.npz"))
