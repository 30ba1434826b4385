"""`vertex verify` with --workers, --runner, --address and --journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny_files import vertex, write_files
from vertex_softmax.cli.sharing import sharing
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.sweep import ray

FILES = ("model.onnx", "property.vnnlib")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "0"), "--workers is 0; it must be a whole number from 1"),
        (("--workers", "99999"), "--workers is 99999"),
        (("--runner", "cloud"), "--runner is 'cloud'; choose one of local, ray"),
        (("--address", "auto"), "--address is for a Ray cluster: give --runner ray, too"),
        (("--workers", "2", "--method", "joint"), "share branch and bound, and --method joint has none"),
        (("--workers", "2", "--certificate", "p.vertex"), "are not available with --certificate"),
        (("--journal", "model.onnx"), "that this run reads"),
        (("--journal", "a", "--json", "a"), "the place of two outputs"),
        (("--journal", "."), "a folder"),
    ],
)
def test_options_that_contradict_each_other(options: tuple[str, ...], message: str) -> None:
    found = vertex("verify", *FILES, *options)
    assert found.exit_code == 2
    assert message in " ".join(found.stderr.split())
    assert found.stdout == "error\n"


def test_python_models_are_not_shared() -> None:
    Path("net.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(2, 1)\n")
    found = vertex("verify", "net.py:net", "property.vnnlib", "--workers", "2")
    assert (found.exit_code, "are for ONNX files" in " ".join(found.stderr.split())) == (2, True)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "find_spec", lambda _name: None)
    found = vertex("verify", *FILES, "--runner", "ray")
    assert found.exit_code == 2
    assert "pip install 'vertex-softmax[ray]'" in found.stderr


def test_what_the_options_ask_for() -> None:
    assert sharing(None, "local", None, None) is None
    alone = sharing(None, "local", None, Path("tree"))
    assert alone is not None
    assert (alone.count, alone.runner) == (1, "local")
    many = sharing(7, "local", None, None)
    assert many is not None
    assert many.count == 7
    with pytest.raises(InvalidValueError, match="--workers is -1"):
        sharing(-1, "local", None, None)


def test_workers_answer_and_the_journal_is_gone_on_with() -> None:
    """The property needs a split: with workers the answer is the same, and the second time nothing is left to do."""
    alone = json.loads(vertex("verify", *FILES, "--json", "-", "--threads", "1").stdout)
    for read in (False, True):
        found = vertex("verify", *FILES, "--workers", "2", "--journal", "tree", "--json", "-")
        answer = json.loads(found.stdout)
        assert (found.exit_code, answer["status"], answer["stage"]) == (0, "unsat", "bab")
        assert set(answer["rates"]) <= (set() if read else {"parts_per_second"})  # none where no part is split
        assert answer["bounds"] == alone["bounds"] or answer["bounds"][0][0] > 0
        assert answer["parts"]["open"] == 0
        assert answer["parts"]["closed"] > 0
        assert (answer["parts"]["read"] > 0) is read
    assert Path("tree").read_text().count("\n") >= 3
    other = vertex("verify", "model.onnx", "property.vnnlib", "--journal", "tree", "--seed", "3", "-q")
    assert other.exit_code == 0  # the seed of the attack is none of the journal's business
    Path("property.vnnlib").write_text(Path("property.vnnlib").read_text().replace("0.2", "0.21"))
    refused = vertex("verify", *FILES, "--journal", "tree")
    assert refused.exit_code == 2
    assert "is the journal of another search: the property says something else" in " ".join(refused.stderr.split())


def test_a_counterexample_needs_no_workers() -> None:
    found = vertex("verify", "model.onnx", "broken.vnnlib", "--workers", "2", "--json", "-")
    assert (found.exit_code, json.loads(found.stdout)["status"]) == (10, "sat")


def test_progress_says_how_many_parts_are_open() -> None:
    found = vertex("verify", *FILES, "--workers", "1", "-v")
    assert "0 parts open, 1 closed" in found.stderr
    assert "1 worker on this machine" in found.stderr


def test_nothing_is_shared_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("vertex_softmax.runs.shared.workers.LocalWorkers.__init__", never)
    found = vertex("verify", *FILES, "--json", "-")
    assert (found.exit_code, "parts" in json.loads(found.stdout)) == (0, False)
