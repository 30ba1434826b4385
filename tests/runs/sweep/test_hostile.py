"""A sweep's journal is nobody's word: what is no answer is an error that names the line. What answers hang on."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.search.small import network
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.from_onnx.parts import external_files
from vertex_softmax.runs.sweep import sweep
from vertex_softmax.runs.sweep.instances import SweepInstance, read_instances
from vertex_softmax.runs.sweep.runner import digests, stamps


def line(**changes: Any) -> dict[str, Any]:
    found = {"key": "k", "source": sweep.source(), "status": "unsat", "run_time": 1.5, "attempts": 1, "memory": None}
    return {**found, "files": {"model": "a"}, "counterexample": None, "reason": "", **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "proved"},
        {"status": None},
        {"status": ["unsat"]},
        {"run_time": "1"},
        {"run_time": None},
        {"run_time": -1},
        {"run_time": 1e300},
        {"attempts": "2"},
        {"memory": True},
        {"files": [1]},
        {"files": "abc"},
        {"counterexample": 3},
    ],
    ids=str,
)
def test_what_is_no_answer_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text(json.dumps(line()) + "\n" + json.dumps(line(**changes)) + "\n")
    with pytest.raises(InvalidValueError, match="line 2 is not a trial"):
        sweep.run([], tmp_path, sweep.Settings())


def test_a_counterexample_is_a_file_of_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for place in (tmp_path / "secret", out / "c.txt"):
        place.write_text("x")
    (out / "link").symlink_to(tmp_path / "secret")
    (out / "empty").touch()
    settings = sweep.Settings()
    digest = hashlib.sha256(b"x").hexdigest()
    assert sweep._still_valid(line(status="sat", counterexample="c.txt", counterexample_sha256=digest), settings, out)
    for name in ("../secret", str(tmp_path / "secret"), "link", "empty", "none", "a\0b", "x" * 9999, None):
        assert not sweep._still_valid(
            line(status="sat", counterexample=name, counterexample_sha256=digest), settings, out
        )
    for other in (None, "", digest[:16], hashlib.sha256(b"y").hexdigest()):  # of another run, or of none
        assert not sweep._still_valid(
            line(status="sat", counterexample="c.txt", counterexample_sha256=other), settings, out
        )


def test_a_file_that_is_replaced_and_put_back_leaves_its_stamp(tmp_path: Path) -> None:
    model, spec = tmp_path / "m.onnx", tmp_path / "s.vnnlib"
    model.write_bytes(b"one model")
    spec.write_bytes(b"one property")
    instance = SweepInstance("m.onnx", "s.vnnlib", 1.0, model, spec)
    digest, before = digests(instance), stamps(instance)
    assert stamps(instance) == before
    model.chmod(0o600)
    (tmp_path / "backup").hardlink_to(model)
    assert stamps(instance) == before  # the same file with the same content
    os.utime(spec, ns=(1, 1))
    assert stamps(instance) != before
    for again in (False, True):
        before, times = stamps(instance), model.stat()
        if again:  # another file, with the same times
            (tmp_path / "new").write_bytes(b"one model")
            (tmp_path / "new").replace(model)
            os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
        else:
            model.write_bytes(b"another")
            model.write_bytes(b"one model")
        assert digests(instance) == digest
        assert stamps(instance) != before
    spec.unlink()
    assert stamps(instance)[str(spec)] == "not read: No such file or directory"


def test_an_edit_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"one")
    instance = SweepInstance("m.onnx", "s.vnnlib", 1.0, model, tmp_path / "none")
    before, times = digests(instance), model.stat()
    model.write_bytes(b"two")
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digests(instance)["model"] != before["model"]


def test_numbers_outside_the_model_belong_to_its_digest(tmp_path: Path) -> None:
    model = onnx.load_from_string(network((np.eye(2), np.zeros(2))))
    for number, tensor in enumerate(model.graph.initializer):
        onnx.external_data_helper.set_external_data(tensor, f"{number}.bin")
        (tmp_path / f"{number}.bin").write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    (tmp_path / "s.vnnlib").touch()
    instance = SweepInstance("m.onnx", "s.vnnlib", 1.0, path, tmp_path / "s.vnnlib")
    before = digests(instance)
    assert set(before) == {"model", "spec", "data"}
    assert digests(instance) == before
    (tmp_path / "1.bin").write_bytes(np.ones(2, np.float32).tobytes() + b"more")
    after = digests(instance)
    assert after["model"] == before["model"]
    assert after["data"] != before["data"]
    (tmp_path / "1.bin").unlink()
    assert digests(instance)["data"] not in (before["data"], after["data"])
    path.write_bytes(network((np.eye(2), np.zeros(2))))
    assert set(digests(instance)) == {"model", "spec"}


def test_files_outside_the_folder_are_none_of_the_models(tmp_path: Path) -> None:
    model = onnx.load_from_string(network((np.eye(2), np.zeros(2))))
    (tmp_path / "secret").write_text("x")
    (tmp_path / "in").mkdir()
    for name in ("../secret", "/etc/passwd", "a\0b", ""):
        onnx.external_data_helper.set_external_data(model.graph.initializer[0], name)
        assert external_files(tmp_path / "in" / "m.onnx", model.SerializeToString()) == {}


def test_a_list_of_instances_has_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vertex_softmax.runs.sweep.instances.MOST_BYTES", 10)
    (tmp_path / "instances.csv").write_text("model.onnx,property.vnnlib,60\n")
    with pytest.raises(InvalidValueError, match="files up to 10 bytes are read"):
        read_instances(tmp_path / "instances.csv")
