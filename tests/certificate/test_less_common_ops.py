"""Certificates of networks with ELU, hardswish, torch's softplus, maxima and roundings, from import to check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import vertex_softmax as vx
from tests.graph.test_onnx_quantised import network
from vertex_softmax.certificate.checker import check
from vertex_softmax.foundation.errors import UnsupportedModelError

KINDS = {
    "ELU": nn.ELU(),
    "hardswish": nn.Hardswish(),
    "softplus": nn.Softplus(),
    "maximum": nn.MaxPool1d(3, stride=2, padding=1),
}


class Block(nn.Module):
    """Attention over three tokens between two functions of the kind that is tried."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        pooled = isinstance(act, nn.MaxPool1d)
        self.first, self.query, self.out = nn.Linear(4, 6), nn.Linear(3 if pooled else 6, 6), nn.Linear(18, 3)
        self.second, self.act = nn.Linear(6, 12 if pooled else 6), act

    def forward(self, x: Tensor) -> Tensor:
        h = self.query(self.act(self.first(3 * x)))
        h = h + torch.softmax(h @ h.transpose(-1, -2) / 6**0.5, -1) @ h
        return self.out((h + self.act(self.second(h))).flatten(1))


def sampled(model: nn.Module, ball: vx.LinfBall, label: int) -> float:
    """The least margin over corners and random points."""
    rng = np.random.default_rng(0)
    t = torch.from_numpy(np.concatenate([rng.integers(0, 2, (200, 3, 4)), rng.random((200, 3, 4))]).astype(float))
    with torch.no_grad():
        y = model(ball.lower + (ball.upper - ball.lower) * t)
    others = [k for k in range(3) if k != label]
    return float((y[:, [label]] - y[:, others]).min())


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_says_no_more_than_what_is_attained(kind: str) -> None:
    torch.manual_seed(4)
    model = Block(KINDS[kind]).double().eval()
    x = torch.randn(1, 3, 4, dtype=torch.float64)
    label = int(model(x).argmax())
    for eps in (0.01, 0.05):
        ball = vx.LinfBall(x, eps)
        proof = vx.certify(model, ball, label, certificate=True).certificates[0]
        assert proof is not None
        found = check(proof.data)
        assert found.accepted
        assert 0 < found.margin <= sampled(model, ball, label)


def test_a_certificate_of_a_quantised_file(tmp_path: Path) -> None:
    """Every rounding of the file's activations is in it, and no point of the set, run by onnxruntime, is below it."""
    path = tmp_path / "quantised.onnx"
    onnx.save(network(), path)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 6))).float()
    result = vx.certify(path, vx.LinfBall(x, 0.03), 2, certificate=True)
    proof = result.certificates[0]
    assert proof is not None
    found = check(proof.data)
    assert found.accepted
    assert 0.7 < found.margin <= float(result.clean.min())


def test_what_has_no_certificate_is_said_before_anything_is_computed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softplus(threshold=5.0), nn.Linear(4, 2)).double().eval()
    with pytest.raises(UnsupportedModelError, match=r"no certificate: .*Softplus with torch's threshold of 20"):
        vx.certify(model, vx.LinfBall(torch.zeros(1, 4, dtype=torch.float64), 0.01), 0, certificate=True)
