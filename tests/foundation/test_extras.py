from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from vertex_softmax import LinfBall, certify
from vertex_softmax.cli.main import app
from vertex_softmax.foundation.errors import MissingDependencyError
from vertex_softmax.foundation.extras import require_proof_extra

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_nothing_is_said_where_it_is_installed() -> None:
    require_proof_extra()


def test_a_certificate_names_the_extra_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flint", None)
    for how in ({"certificate": True}, {"rigorous": True}):
        with pytest.raises(MissingDependencyError, match=r"python-flint.*vertex-softmax\[proof\]"):
            certify("nothing.onnx", LinfBall(torch.zeros(1, 2), 0.1), 0, **how)  # type: ignore[arg-type]
    assert certify(nn.Linear(2, 2).eval(), LinfBall(torch.zeros(1, 2), 0.1), 0, "ibp").lower.shape == (1, 2)


def test_commands_answer_error_and_name_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "flint", None)
    model, spec, proof = str(EXAMPLES / "digit.onnx"), str(EXAMPLES / "digit.vnnlib"), str(tmp_path / "proof.vertex")
    (tmp_path / "there.vertex").write_bytes(b"")
    for command in (["verify", model, spec, "--certificate", proof], ["check", str(tmp_path / "there.vertex"), model]):
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 2
        assert "vertex-softmax[proof]" in found.stderr
    assert not Path(proof).exists()
