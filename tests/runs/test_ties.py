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
