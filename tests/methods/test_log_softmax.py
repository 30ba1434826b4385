"""A log-softmax at the end changes no margin, so no bound of one."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import LinfBall


@functools.cache
def models(scale: float) -> tuple[nn.Module, nn.Module, nn.Module]:
    """A small network's logits, their log-softmax and their softmax."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    with torch.no_grad():
        body[2].weight.mul_(scale)
    return tuple(nn.Sequential(body, *end).eval() for end in ((), (nn.LogSoftmax(-1),), (nn.Softmax(-1),)))


@pytest.mark.usefixtures("exported_once")
@pytest.mark.parametrize("method", ["ibp", "crown", "joint"])
def test_margins_of_a_log_softmax_are_those_of_its_logits(method: str) -> None:
    """To the last bit, as it is taken off; a softmax alone is another function."""
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = models(1.0)[0](x).argmax(-1)
    for scale in (1.0, 30.0):
        logits, last, softmax = models(scale)
        plain, same = (certify(model, LinfBall(x, 0.05), labels, method) for model in (logits, last))
        assert torch.equal(plain.lower, same.lower)
        assert torch.equal(plain.clean, same.clean)
    other = certify(softmax, LinfBall(x, 0.05), labels, method)
    assert not torch.equal(plain.lower, other.lower)
