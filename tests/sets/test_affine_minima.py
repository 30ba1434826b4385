"""Affine networks: what `certify` says of their margins over every kind of set is the closed form, to rounding."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, linprog
from torch import Tensor, nn

import vertex_softmax as vx

GENERATOR = torch.Generator().manual_seed(0)
METHODS = ("ibp", "crown", "joint")


class Scores(nn.Module):
    """Numbers (batch, 3, 4) to three scores."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(12, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class Words(nn.Module):
    """The sum of the scores of words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(9, 4, dtype=torch.float64)
        self.head = nn.Linear(12, 3, dtype=torch.float64)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).flatten(1))


def margins(network: Scores, x: Tensor, label: int) -> tuple[Tensor, Tensor, list[int]]:
    """Slopes (2, 12) and values (2,) at x of the margins to the other classes, and these."""
    others = [k for k in range(3) if k != label]
    weight, bias = network.head.weight.detach(), network.head.bias.detach()
    slopes = weight[label] - weight[others]
    return slopes, slopes @ x.flatten() + bias[label] - bias[others], others


def least(slope: np.ndarray, x: np.ndarray, eps: float, p: float, clip: tuple[float, float]) -> float:
    """The least of slope·(x' − x) over the cut ball: by a linear program, or by the one multiplier of the ball."""
    low, high = clip[0] - x, clip[1] - x
    if p == 1:
        n = len(x)
        both = np.concatenate([slope, -slope])
        ends = [(0, h) for h in high] + [(0, -a) for a in low]
        return float(linprog(both, A_ub=np.ones((1, 2 * n)), b_ub=[eps], bounds=ends).fun)

    def at(price: float) -> np.ndarray:
        return np.clip(-slope / (2 * price), low, high)

    inner = np.where(slope > 0, low, high)
    if float(inner @ inner) <= eps**2:
        return float(slope @ inner)
    price = brentq(lambda u: float(at(u) @ at(u)) - eps**2, 1e-6, 1e6, xtol=1e-15, rtol=1e-15)
    return float(slope @ at(price))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_balls_have_the_dual_norm(p: float, method: str) -> None:
    network, x = Scores().eval(), torch.rand(1, 3, 4, generator=GENERATOR, dtype=torch.float64)
    dual = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[p]
    for label in range(3):
        slopes, values, others = margins(network, x, label)
        found = vx.certify(network, vx.LpBall(x, 0.3, p), label, method, attack=None).lower[0, others]
        expected = values - 0.3 * torch.linalg.vector_norm(slopes, ord=dual, dim=-1)
        assert bool((found <= expected + 1e-12).all())
        assert method == "ibp" or torch.allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_cut_balls_have_the_minimum_of_the_program(p: float) -> None:
    network, x = Scores().eval(), torch.rand(1, 3, 4, generator=GENERATOR, dtype=torch.float64)
    for label, eps in itertools.product(range(3), (0.2, 0.8, 3.0)):
        slopes, values, others = margins(network, x, label)
        found = vx.certify(network, vx.LpBall(x, eps, p, clip=(0, 1)), label, "crown", attack=None).lower[0, others]
        for k in range(2):
            expected = float(values[k]) + least(slopes[k].numpy(), x.flatten().numpy(), eps, p, (0.0, 1.0))
            assert float(found[k]) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_choices_have_the_least_combination(method: str) -> None:
    model, ids = Words().eval(), torch.tensor([[1, 2, 3]])
    lists = {0: [1, 4, 5], 2: [3, 6, 7, 8]}
    words = vx.TokenChoices(model, ids, lists)
    every = torch.tensor([[a, 2, c] for a, c in itertools.product(lists[0], lists[2])])
    with torch.no_grad():
        logits = model(every)
    for label in range(3):
        others = [k for k in range(3) if k != label]
        expected = (logits[:, [label]] - logits[:, others]).amin(0)
        found = vx.certify(model, words, label, method, attack=None).lower[0, others]
        assert bool((found <= expected + 1e-12).all())
        assert method == "ibp" or torch.allclose(found, expected, rtol=0, atol=1e-9)
