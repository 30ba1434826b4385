"""Weights of keys: lines and parabolas of e^t, and p by the logistic function, against Arb at many points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flint import arb, ctx

from tests.certificate.checker.helpers import PRECISION, exact, module, precisely

exponentials, logistic, forms = module("forward.exponentials"), module("forward.logistic"), module("forward.forms")
TAUS = (0.0, 1e-300, 1e-9, 1e-4, 9.9e-4, 1.1e-3, 0.1, 0.5, 1.0, 2.5, 7.0, 40.0, 300.0)


def alone(tau: np.ndarray) -> Any:
    """Keys of weight 1 with these reaches."""
    return exponentials.ProvedScores(weights=np.ones_like(tau), t=None, reach=tau, z=None, theta=None, useful=None)


@precisely
@pytest.mark.parametrize("kind", ["line", "parabola"])
def test_exponentials(kind: str) -> None:
    tau = np.array(TAUS)
    with np.errstate(all="ignore"):
        q = getattr(exponentials, kind)(alone(tau))
    closest = np.zeros(len(tau))
    for i, most in enumerate(TAUS):
        if not np.isfinite(q.delta[i]):
            continue
        alpha, beta, gamma, delta = (arb(exact(float(x[i]))) for x in (q.alpha, q.beta, q.gamma, q.delta))
        points = [float(most) * np.cos(k * np.pi / 60) for k in range(61)]
        points += [float(np.log(q.beta[i]))] if abs(np.log(q.beta[i])) <= most else []
        for t in points:
            x = arb(exact(min(max(t, -most), most)))
            off = abs(x.exp() - (alpha + beta * x + gamma * x * x))
            assert not off > delta, (kind, most, t)
            assert not x.exp() < arb(exact(q.low[i]))
            assert not x.exp() > arb(exact(q.high[i]))
            closest[i] = max(closest[i], float(off) / float(delta) if float(delta) > 0 else 0.0)
    middle = [i for i, t in enumerate(TAUS) if 0.1 <= t <= (7 if kind == "line" else 1)]
    assert (closest[middle] > 0.8).all(), closest  # sharp, so that a smaller δ would be noticed


def scores(rng: np.random.Generator, rows: int, keys: int, gain: float, move: float) -> Any:
    """A form of scores that depends on two unknowns, and each on its own error."""
    zero = np.zeros((rows, keys))
    centre = gain * rng.standard_normal((rows, keys))
    blocks = {forms.LINES: move * rng.standard_normal((2, 1, rows, keys))}
    return forms.Form(centre=centre, blocks=blocks, own=zero + 0.1 * move * rng.random((rows, keys)), slack=zero)


CASES = [
    (3, 1.0, 1e-8),
    (3, 1.0, 0.1),
    (3, 1.0, 1.0),
    (4, 6.0, 0.3),
    (2, 30.0, 1.0),
    (5, 0.0, 4.0),
    (3, 1.0, 30.0),
    (1, 1.0, 1.0),
]


@pytest.mark.parametrize(("keys", "gain", "move"), CASES)
@pytest.mark.parametrize("masked", [False, True])
def test_softmax_by_both_rules(keys: int, gain: float, move: float, masked: bool) -> None:
    """t is what it is said to be, Z is in its range, and weights are in their bands: at corners and inside."""
    rng = np.random.default_rng(keys)
    rows = 3
    form = scores(rng, rows, keys, gain, move)
    visible = np.ones((rows, keys), dtype=bool)
    if masked and keys > 1:
        visible[0, 1] = False
        visible[1, 1:] = False
    with np.errstate(all="ignore"):
        c = exponentials.centred(form, visible)
        q, bowed = exponentials.line(c), exponentials.parabola(c)
        p = logistic.logistic(c)
    assert c.useful.all()
    assert (c.weights[~visible] == 0).all()
    with ctx.workprec(PRECISION):
        for trial in range(24):
            xi = rng.choice([-1.0, 1.0], 2) if trial % 2 else rng.uniform(-1, 1, 2)
            e = rng.choice([-1.0, 1.0], (rows, keys)) * form.own
            for i in range(rows):
                _judge(form, c, (q, bowed, p), i, visible[i], xi, e[i])


def _judge(form: Any, c: Any, bands: tuple[Any, ...], i: int, visible: Any, xi: Any, e: Any) -> None:
    lines = form.blocks[forms.LINES][:, 0, i]
    moved = [
        sum((arb(exact(lines[u, j])) * arb(exact(xi[u])) for u in range(2)), arb(exact(e[j]))) for j in range(len(e))
    ]
    omega = [arb(exact(w)) for w in c.weights[i]]
    s = [arb(exact(v)) + m for v, m in zip(form.centre[i], moved, strict=True)]
    seen = [j for j in range(len(e)) if visible[j]]
    total = sum((s[j].exp() for j in seen), arb(0))
    true = [s[j].exp() / total if j in seen else arb(0) for j in range(len(e))]
    mean = sum((omega[j] * moved[j] for j in seen), arb(0))
    # t up to the common κ, which is what makes Σ ω e^t consistent: δ_j = s_j^c − log ω_j − κ
    kappa = arb(exact(form.centre[i][seen[0]])) - omega[seen[0]].log()
    for shift in (kappa,):
        t = [s[j] - omega[j].log() - shift - mean if j in seen else arb(0) for j in range(len(e))]
        z = sum((omega[j] * t[j].exp() for j in seen), arb(0))
        slack = 1e-10
        assert float(c.z.lo[i]) * (1 - slack) <= float(z) <= float(c.z.hi[i]) * (1 + slack)
    for j in seen:
        in_blocks = sum((arb(exact(c.t.blocks[forms.LINES][u, 0, i, j])) * arb(exact(xi[u])) for u in range(2)), arb(0))
        loose = arb(exact(c.t.own[i, j])) + arb(exact(c.t.slack[i, j]))
        assert not abs(t[j] - in_blocks) > loose * (1 + arb(2) ** -40) + arb(2) ** -45
        assert not abs(t[j]) > arb(exact(c.reach[i, j])) * (1 + arb(2) ** -40) + arb(2) ** -45
        for band, value in zip(bands, (omega[j] * t[j].exp(), omega[j] * t[j].exp(), true[j]), strict=True):
            alpha, beta, gamma, delta = (arb(exact(x[i, j])) for x in (band.alpha, band.beta, band.gamma, band.delta))
            off = abs(value - (alpha + beta * t[j] + gamma * t[j] * t[j]))
            assert not off > delta * (1 + arb(2) ** -40) + arb(2) ** -45
        assert not true[j] < arb(exact(bands[2].low[i, j])) * (1 - arb(2) ** -40)
        assert not true[j] > arb(exact(bands[2].high[i, j])) * (1 + arb(2) ** -40)
