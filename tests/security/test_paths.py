"""What is no file is read as none: pipes that nobody writes to, devices that never end, folders, links to nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vertex_lab.experiments import summary
from vertex_lab.zoo.datasets import dataset
from vertex_softmax.certificate import checker
from vertex_softmax.certificate.checker import model
from vertex_softmax.foundation.errors import InvalidValueError, VertexError
from vertex_softmax.foundation.files import read_whole, regular
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.runs import run
from vertex_softmax.runs.demo import training
from vertex_softmax.runs.journal import Journal
from vertex_softmax.runs.report import sweep_page
from vertex_softmax.runs.subject import read_inputs
from vertex_softmax.runs.sweep.instances import SweepInstance, read_instances
from vertex_softmax.runs.sweep.runner import digests
from vertex_softmax.specs.vnnlib import read_vnnlib


def _journal(path: Path) -> None:
    with Journal(path, "s"):
        pass


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "model": ("m.onnx", from_onnx),
    "property": ("p.vnnlib", read_vnnlib),
    "inputs": ("x.npz", lambda path: read_inputs(str(path))),
    "tensors": ("x.safetensors", lambda path: read_inputs(str(path))),
    "weights": ("m.safetensors", lambda path: training.load(path.with_suffix(""))),
    "their record": ("m.json", lambda path: training.load(path.with_suffix(""))),
    "run": ("run.json", run.read),
    "instances": ("instances.csv", read_instances),
    "journal": ("journal.jsonl", _journal),
    "sweep": ("journal.jsonl", lambda path: sweep_page.page(path.parent)),
    "table": ("slack.json", lambda path: summary.write(path.parent)),
    "data": ("t10k-images-idx3-ubyte", lambda path: dataset("mnist", path.parent)),
}


def _made(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    file, read = READERS[name]
    place = tmp_path / "mnist" / file
    if name in ("weights", "their record"):
        place.parent.mkdir()
        other = {".json": ".safetensors", ".safetensors": ".json"}[place.suffix]
        place.with_suffix(other).write_bytes(b"{}")
    _made(place, kind)
    if (name, kind) == ("table", "loop"):
        return  # a link to nowhere: no such table
    with pytest.raises(VertexError):
        read(place)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop"])
def test_a_certificate_that_is_no_file_is_rejected(kind: str, tmp_path: Path) -> None:
    _made(tmp_path / "proof.vertex", kind)
    assert not checker.check(tmp_path / "proof.vertex").accepted
    with pytest.raises((checker.Rejected, OSError)):
        model.identity_of_file(tmp_path / "proof.vertex")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_digest_of_what_is_no_file(kind: str, tmp_path: Path) -> None:
    _made(tmp_path / "m.onnx", kind)
    found = digests(SweepInstance("m", "s", 1.0, tmp_path / "m.onnx", tmp_path / "none"))
    assert found == {"model": "not read: it is not a regular file", "spec": "not read: No such file or directory"}


def test_limits_hold_for_what_grows_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    assert read_whole(tmp_path / "f", 100, "") == bytes(100)
    with pytest.raises(InvalidValueError, match="has 100 bytes; files up to 99 bytes are read"):
        read_whole(tmp_path / "f", 99, "")
    proc = Path("/proc/self/status")  # it says that it has 0 bytes
    if proc.exists():
        with pytest.raises(InvalidValueError, match="files up to 9 bytes are read"):
            read_whole(proc, 9, "")


@pytest.mark.parametrize("name", ["a\0b", "\udcff\ud800", "x" * 9999])
def test_a_name_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no file can have|too long|No such file"):
        regular(tmp_path / name)
