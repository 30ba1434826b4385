"""Radii of the simple kind: those of affine networks are known; each is an ε that certify verifies."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import vertex_softmax as vx
from tests.runs.made import inputs, network
from tests.runs.test_counterexamples import IDS, Sentence
from tests.slowly import few
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.runs.bisection import Bisection
from vertex_softmax.sets.loading import read

FINE = Bisection(least=1e-6, most=50.0, precision=1e-3)


@pytest.mark.parametrize(("p", "dual"), [(math.inf, 1), (2, 2), (1, math.inf)])
def test_radii_of_affine_networks_are_known(p: float, dual: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4, dtype=torch.float64).eval()
    x = torch.randn(5, 6, dtype=torch.float64)
    with torch.no_grad():
        logits = model(x)
    labels = logits.argmax(1)
    labels[4] = (labels[4] + 1) % 4
    W = model.weight.detach()
    gaps = (logits.gather(1, labels[:, None]) - logits) / (W[labels][:, None] - W[None]).norm(dual, dim=-1)
    gaps[torch.arange(5), labels] = math.inf
    exact = gaps.amin(1).clamp(min=0)
    found = vx.radius(model, x, labels, "crown", p=p, how=FINE)
    assert found.dtype == torch.float64
    assert (found <= exact * (1 + 1e-9)).all()
    torch.testing.assert_close(found, exact, rtol=2e-3, atol=1e-6)
    assert found[4] == 0
    one = torch.tensor([[(int(label) + 1) % 4] for label in labels])
    wider = vx.radius(model, x, labels, "crown", p=p, how=FINE, targets=one)
    torch.testing.assert_close(wider, gaps.gather(1, one)[:, 0].clamp(min=0), rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("p", few([1, 2, math.inf], lambda p: p == 2))
def test_every_radius_is_certified_and_below_the_attack(p: float) -> None:
    some, model = inputs(), read(network())
    x, labels = some.x.float(), some.labels
    rough = Bisection(least=1e-4, most=10.0, precision=0.2)
    found = vx.radius(model, x, labels, "hybrid", p=p, clip=(0, 1), how=rough)
    quick = vx.radius(model, x, labels, "crown", p=p, clip=(0, 1), how=rough)
    assert (found >= quick).all()
    assert found[-1] == 0  # misclassified
    assert (found[:-1] > 0).all()
    ball = vx.LpBall(x, found, p, clip=(0, 1))[:4]
    assert vx.certify(model, ball, labels[:4], "hybrid").certified.all()
    assert (vx.attack(model, ball, labels[:4]).worst > 0).all()


def test_sentences() -> None:
    model = Sentence().eval()
    with torch.no_grad():
        labels = model(IDS)[:, -1].argmax(-1)
    rough = Bisection(least=1e-4, most=10.0, precision=0.3)
    one = vx.radius(model, IDS, labels, "crown", tokens=[0], position=-1, how=rough)
    mask = torch.tensor([[True, False, False]] * 3)
    assert torch.equal(vx.radius(model, IDS, labels, "crown", tokens=mask, position=-1, how=rough), one)
    every = vx.radius(model, IDS, labels, "crown", position=-1, how=rough)
    assert (every > 0).all()
    assert (one >= every / 1.3).all()
    ball = vx.TokenBall.of(model, IDS, one, tokens=[0])
    assert vx.certify(model, ball, labels, "crown", position=-1).certified.all()


def test_balls_for_each_token() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 2, dtype=torch.float64)).eval()
    x = torch.randn(2, 3, 2, dtype=torch.float64)
    labels = model(x).argmax(1)
    way = (model[1].weight[0] - model[1].weight[1]).detach()
    gap = (model(x).detach() @ torch.tensor([1.0, -1.0]).double()).abs()
    exact = gap / way.reshape(3, 2).norm(dim=1).sum()
    found = vx.radius(model, x, labels, "crown", p=2, per_token=True, how=FINE)
    torch.testing.assert_close(found, exact, rtol=2e-3, atol=0)
    assert (found <= exact).all()


def test_refused() -> None:
    model, x = network(), inputs().x
    with pytest.raises(InvalidValueError, match="p is 3"):
        vx.radius(model, x, 0, p=3)
    with pytest.raises(InvalidValueError, match="tokens are for token ids"):
        vx.radius(model, x, 0, tokens=[0])
    with pytest.raises(InvalidValueError, match="without clip and per_token"):
        vx.radius(Sentence().eval(), IDS, 0, p=2, per_token=True, position=-1)
    with pytest.raises(InvalidTypeError, match="how is a dict"):
        vx.radius(model, x, 0, how={})
    with pytest.raises(InvalidValueError, match="method is 'crwn'"):
        vx.radius(model, x, 0, "crwn")
    with pytest.raises(InvalidValueError, match="outside clip"):
        vx.radius(model, x + 3, 0, clip=(0, 1))
    with pytest.raises(InvalidValueError, match="there are 2 labels for 5 inputs"):
        vx.radius(model, x, [0, 1])
    with pytest.raises(InvalidValueError, match="targets has 0, which is the label"):
        vx.radius(model, x, 0, "crown", targets=0)
