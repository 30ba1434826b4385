"""A model that was read once, and how far above 0 a bound has to be."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

import vertex_softmax as vx
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.sets.loading import read

X = torch.full((1, 2), 0.25, dtype=torch.float64)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()


def test_a_module_that_was_changed_must_be_read_again() -> None:
    module = small()
    label = module(X).argmax(-1)
    original = read(module)
    first = vx.certify(original, vx.LinfBall(X, 1e-3), label, "crown")
    again = vx.certify(original, vx.LinfBall(X, 2e-3), label, "crown")
    assert float(again.lower.min()) < float(first.lower.min())
    with torch.no_grad():
        module[2].bias[0] += 1e-9  # type: ignore[index,union-attr]
    with pytest.raises(InvalidValueError, match="changed since it was read"):
        vx.certify(original, vx.LinfBall(X, 1e-3), label, "crown")
    vx.certify(module, vx.LinfBall(X, 1e-3), label, "crown")


class Far(nn.Module):
    """Class 0 wins by `margin`; on the way there are numbers of this size, which cancel."""

    def __init__(self, margin: float, size: float) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(2, 2).double() for _ in range(2))
        with torch.no_grad():
            for layer, sign in ((self.up, 1.0), (self.down, -1.0)):
                layer.weight.copy_(torch.eye(2))
                layer.bias.copy_(torch.tensor([sign * size + (margin if sign < 0 else 0.0), 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(torch.relu(self.up(x)))
        return y - x


@functools.cache
def far(margin: float, size: float) -> nn.Module:
    return Far(margin, size).eval()


@pytest.mark.usefixtures("exported_once")
@pytest.mark.parametrize("method", METHODS)
def test_verified_has_to_clear_rounding(method: str) -> None:
    """The numbers on the way have 1e6, whose rounding is 1e-10: a margin of 1e-8 is not told from 0, .1 is."""
    point = vx.LinfBall(X, 0.0)
    assert vx.certify(far(0.1, 1e6), point, 0, method).verdicts[0] is vx.Verdict.VERIFIED
    found = vx.certify(far(1e-8, 1e6), point, 0, method)
    assert found.verdicts[0] is not vx.Verdict.VERIFIED
    if float(found.lower.min()) > 0:
        assert "rounding may have taken more" in found.reasons[0]
