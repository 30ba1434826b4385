"""What single precision rounds away decides no answer: boxes are rounded outward there too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vertex_softmax as vx
from vertex_softmax.methods.registry import METHODS


class Cancelling(nn.Module):
    """1 − 1000·relu(((x + big) − big) − cut) against 0; in single precision x + big is rounded by up to big·2⁻²⁴."""

    def __init__(self, big: float, cut: float) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 2)
        with torch.no_grad():
            for layer, weight, bias in ((self.a, 1.0, big), (self.b, 1.0, -big - cut)):
                layer.weight[:], layer.bias[:] = weight, bias
            self.c.weight[:], self.c.bias[:] = torch.tensor([[-1000.0], [0.0]]), torch.tensor([1.0, 0.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.relu(self.b(self.a(x))))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("big", "cut", "radius"), [(1e6, 0.005, 0.01), (1e5, 1e-3, 4e-3), (3e4, 1e-4, 2e-3)])
def test_a_relu_that_only_rounding_makes_dead_is_not_dead(big: float, cut: float, radius: float, method: str) -> None:
    network = Cancelling(big, cut).double().eval()
    worst = network(torch.full((1, 1), radius, dtype=torch.float64))[0]
    assert worst[0] < worst[1] - 0.5  # a point of the set with another label
    ball = vx.LinfBall(torch.zeros(1, 1, dtype=torch.float64), radius)
    found = vx.certify(network, ball, torch.tensor([0]), method, dtype=torch.float32, attack=None)
    assert found.verdicts[0] != "verified"
