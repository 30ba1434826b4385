"""Ties are said to be ties, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import vertex_softmax as vx


class Least(nn.Module):
    """Two outputs: 0, and −(|x| + gap), whose margin is least at x = 0, where it is the gap."""

    def __init__(self, gap: float) -> None:
        super().__init__()
        self.gap = gap

    def forward(self, x: Tensor) -> Tensor:
        size = torch.relu(x) + torch.relu(-x)
        return torch.cat([torch.zeros_like(x), -size - self.gap], -1)


@pytest.mark.parametrize("method", ["crown", "joint", "bab"])
@pytest.mark.parametrize(("gap", "tie"), [(0.0, True), (1e-12, False), (0.1, False)])
def test_a_tie(method: str, gap: float, *, tie: bool) -> None:
    """Only where the bound is within 1e-9 of 0, and a point of the set too."""
    x = torch.tensor([[0.0]], dtype=torch.float64)
    found = vx.certify(Least(gap).double().eval(), vx.LinfBall(x, 1e-10), 0, method)
    assert ("tie" in found.reasons[0]) == tie
    assert found.verdicts[0] == ("unknown" if tie else "verified")


def test_a_loose_bound_is_no_tie() -> None:
    """The bound is far below 0; and a bound near 0 whose points are all far above."""
    x = torch.tensor([[0.0]], dtype=torch.float64)
    found = vx.certify(Least(0.0).double().eval(), vx.LinfBall(x, 1.0), 0, "ibp")
    assert found.verdicts[0] == "unknown"
    far = vx.certify(Least(0.5).double().eval(), vx.LinfBall(x, 1.0), 0, "ibp")
    assert "tie" not in far.reasons[0]


class Ridge(nn.Module):
    """Two outputs: |x₀ − x₁| + gap and 0, so that the margin is least all along the diagonal, where it is the gap."""

    def __init__(self, gap: float) -> None:
        super().__init__()
        self.gap = gap

    def forward(self, x: Tensor) -> Tensor:
        apart = x[:, :1] - x[:, 1:]
        size = torch.relu(apart) + torch.relu(-apart) + self.gap
        return torch.cat([size, torch.zeros_like(size)], -1)


RIDGE = vx.Box(torch.tensor([[-1.0, -0.9]], dtype=torch.float64), torch.tensor([[1.0, 1.1]], dtype=torch.float64))
SOME = vx.Options(search=vx.Search(seconds=None))


@pytest.mark.parametrize(("gap", "verdict"), [(-1e-7, "falsified"), (0.0, "unknown"), (1e-7, "verified")])
def test_with_few_numbers_everything_but_a_tie_is_decided(gap: float, verdict: str) -> None:
    """No gradient leads to the diagonal, and no corner of the first boxes lies on it."""
    found = vx.certify(Ridge(gap).double().eval(), RIDGE, 0, "bab", options=SOME)
    assert found.verdicts[0] == verdict
    assert ("within 1e-09 of 0" in found.reasons[0]) == (verdict == "unknown")


class Valley(nn.Module):
    """Two outputs: relu(x) − x/2, which is |x|/2, and 0. Intervals bound both terms by themselves."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(x) - x / 2, torch.zeros_like(x)], -1)


def test_a_tie_at_a_point_is_said_where_the_bound_is_far_below() -> None:
    found = vx.certify(Valley().double().eval(), vx.LinfBall(torch.zeros(1, 1, dtype=torch.float64), 0.5), 0, "ibp")
    assert found.verdicts[0] == "unknown"
    assert float(found.worst) < -0.1
    assert found.reasons[0].startswith("at a point of the set the margin is within 1e-09 of 0")
