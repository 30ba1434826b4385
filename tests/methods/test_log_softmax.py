"""A log-softmax at the end changes no margin, so no bound of one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import LinfBall


@pytest.mark.parametrize("method", ["ibp", "crown", "joint"])
def test_margins_of_a_log_softmax_are_those_of_its_logits(method: str) -> None:
    """To the last bit, as it is taken off; a softmax alone is another function."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double().eval()
    x = torch.randn(2, 3, dtype=torch.float64)
    labels = body(x).argmax(-1)
    for scale in (1.0, 30.0):
        with torch.no_grad():
            body[2].weight.mul_(scale)
        box = LinfBall(x, 0.05)
        plain, last = (
            certify(nn.Sequential(body, *end).eval(), box, labels, method) for end in ((), (nn.LogSoftmax(-1),))
        )
        assert torch.equal(plain.lower, last.lower)
        assert torch.equal(plain.clean, last.clean)
    other = certify(nn.Sequential(body, nn.Softmax(-1)).eval(), box, labels, method)
    assert not torch.equal(plain.lower, other.lower)
