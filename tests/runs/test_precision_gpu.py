"""Bounds in float32 on a GPU are float32's: TF32, torch's default for convolutions there, and autocast are off."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vertex_softmax import LinfBall, certify

pytestmark = pytest.mark.gpu


class Kernel(nn.Module):
    """Class 1 wins by 5e-5, which TF32 rounds away."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(64, 64, 3, padding=1)
        with torch.no_grad():
            self.c.weight.zero_()
            self.c.bias.fill_(0.5)
            self.c.weight[0, 0, 1, 1], self.c.weight[1, 0, 1, 1], self.c.weight[1, 1, 1, 1] = 1.0005, 1.00045, 1e-4

    def forward(self, x: Tensor) -> Tensor:
        return self.c(x)[:, :2, 2, 2]


@pytest.mark.parametrize("method", ["crown", "joint"])
def test_tf32_is_off_on_a_gpu(method: str) -> None:
    assert torch.backends.cudnn.allow_tf32  # torch's default
    ball = LinfBall(torch.ones(16, 64, 8, 8), 1e-7)
    found = certify(Kernel().eval(), ball, 0, method, dtype=torch.float32, device="cuda")
    assert set(found.verdicts) == {"falsified"}
    assert torch.backends.cudnn.allow_tf32


def test_autocast_of_the_gpu_changes_nothing() -> None:
    module, ball = nn.Linear(2, 2).eval(), LinfBall(torch.ones(1, 2), 1e-7)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0005, 0.0], [1.00045, 1e-4]]))
        module.bias.fill_(0.5)
    with torch.autocast("cuda", dtype=torch.float16):
        found = certify(module, ball, 0, "crown", dtype=torch.float32, device="cuda")
    assert found.verdict == "falsified"
