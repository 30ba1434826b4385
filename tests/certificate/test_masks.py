"""Finite masks in certificates: the checker proves that they leave no weight, and pays for what they leave."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load, save
from torch import Tensor, nn

import vertex_softmax as vx
from vertex_softmax.certificate import checker
from vertex_softmax.certificate.checker.file import Rejected
from vertex_softmax.certificate.checker.rows import negligible

LEAST = float(torch.finfo(torch.float32).min)
Arrays = dict[str, NDArray[Any]]


class Padded(nn.Module):
    """Class 0 wins by what the keys that are not masked have; the masked one would turn it."""

    def __init__(self, fill: bool) -> None:
        super().__init__()
        self.fill = fill

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.tensor([False, False, True])
        scores = x.masked_fill(mask, LEAST) if self.fill else x + torch.where(mask, LEAST, 0.0).double()
        p = scores.softmax(-1)
        return p @ torch.tensor([[1.0, 0.0], [0.8, 0.1], [-9.0, 9.0]], dtype=torch.float64)


def certificate(fill: bool) -> bytes:
    x = torch.tensor([[0.2, -0.4, 3.0]], dtype=torch.float64)
    found = vx.certify(Padded(fill).eval(), vx.LinfBall(x, 0.05), 0, certificate=True)
    assert found.certificates is not None
    assert found.certificates[0] is not None, found.reasons
    return found.certificates[0].data


def changed(data: bytes, tmp_path: Any, change: Any) -> bytes:
    """The certificate with some arrays changed: change(arrays of the attention by kind)."""
    path = tmp_path / "c"
    path.write_bytes(data)
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    header, arrays = json.loads(metadata["certificate"]), load(data)
    (entry,) = [entry for entry in header["graph"] if entry["op"] == "Attention"]
    own = {kind: arrays[name].copy() for kind, name in entry["arrays"].items()}
    change(own)
    arrays.update({f"changed.{kind}": value for kind, value in own.items()})  # two kinds may share an array
    entry["arrays"] = {kind: f"changed.{kind}" for kind in own}
    return bytes(save(arrays, metadata={"certificate": json.dumps(header)}))


@pytest.mark.parametrize("fill", [False, True])
def test_it_is_accepted(fill: bool) -> None:
    verdict = checker.check(certificate(fill))
    assert verdict.accepted, verdict.reason
    assert 0.6 < verdict.margin < 1


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("penalty", [-1900.0, -5.0, 0.0, 7.0])
def test_a_penalty_that_is_too_small_is_not(fill: bool, penalty: float, tmp_path: Any) -> None:
    def change(own: Arrays) -> None:
        own["penalty"][own["penalty"] != 0] = penalty
        if penalty == 0:  # then the key has no weight at all
            own["replaced"][...] = False

    verdict = checker.check(changed(certificate(fill), tmp_path, change))
    assert verdict.accepted == (penalty == 0), verdict.reason
    if penalty < 0:
        assert "not proved to be negligible" in verdict.reason


def test_a_penalty_of_a_key_that_is_not_masked_makes_no_sense(tmp_path: Any) -> None:
    def change(own: Arrays) -> None:
        own["penalty"][..., 0] = -1e30

    verdict = checker.check(changed(certificate(False), tmp_path, change))
    assert not verdict.accepted
    assert "does not fit" in verdict.reason


def test_how_far_below_is_enough() -> None:
    others = np.array([[1.0, -np.inf, -3.0]])
    negligible(np.array([[-np.inf, -1999.5, -np.inf]]), others)
    negligible(np.full((1, 3), -np.inf), others)
    for bad in (-1998.0, 0.0, np.nan, np.inf):
        with pytest.raises(Rejected):
            negligible(np.array([[-np.inf, bad, -np.inf]]), others)
