"""The ball rule lies below the row everywhere in the ball: at random points, at vertices, and where a descent ends."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from vertex_softmax.ops.attention.ball_row import BallRow, _curve, ball_row
from vertex_softmax.ops.attention.shared import Scores
from vertex_softmax.ops.contract import AffineForm
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.unit_sets import UnitBall, UnitSet

HEADS, ROWS, KEYS, EACH, D = 2, 2, 5, 3, 4
DUAL = {UnitBall.EUCLIDEAN: 2.0, UnitBall.CROSS: 1.0}


class Row:
    """A random attention whose keys depend on EACH inputs of their own; the first key on none."""

    def __init__(self, seed: int, ball: UnitBall, scale: float, masked: bool) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.ball, inputs = ball, EACH * (KEYS - 1)
        own = torch.zeros(KEYS, inputs, dtype=torch.float64)
        for j in range(1, KEYS):
            own[j, EACH * (j - 1) : EACH * j] = 1
        self.s, self.v = 2 * draw(1, HEADS, ROWS, KEYS), draw(1, HEADS, KEYS, D)
        self.G = scale * draw(HEADS, ROWS, KEYS, inputs) * own
        self.V = scale * draw(HEADS, KEYS, D, inputs) * own.unsqueeze(-2)
        self.radius = 0.5 + torch.rand(1, inputs, generator=generator, dtype=torch.float64)
        self.mask = torch.zeros(ROWS, KEYS, dtype=torch.bool)
        if masked:
            self.mask[0, 2] = self.mask[1, 0] = True
        unit = UnitSet(ball)
        wide = (self.G.abs() * self.radius).sum(-1)[None]
        box = Interval(self.s - wide, self.s + wide)
        box = Interval(*(end.masked_fill(self.mask, -torch.inf) for end in box))
        self.eta = draw(1, 3, HEADS, ROWS, D)
        found = ball_row(
            Scores.of(box, None, torch.float64),
            AffineForm(self.s, self.G, self.radius, unit),
            AffineForm(self.v, self.V, self.radius, unit),
        )
        assert isinstance(found, BallRow)
        self.rule = found

    def true(self, z: Tensor) -> Tensor:
        """z (count, inputs) in the unit ball → Σ η·out, (3, count)."""
        x = z * self.radius
        scores = self.s + torch.einsum("hnkp,cp->chnk", self.G, x)
        values = self.v + torch.einsum("hkdp,cp->chkd", self.V, x)
        out = scores.masked_fill(self.mask, -torch.inf).softmax(-1) @ values
        return torch.einsum("shnd,chnd->sc", self.eta[0], out)

    def linear(self, z: Tensor) -> Tensor:
        """The rule's bound there, (3, count)."""
        step = self.rule.backward(self.eta)
        assert step.constant is not None
        assert step.start is not None
        return step.constant[0, :, None] + step.start[0] @ (z * self.radius).mT

    def points(self, generator: torch.Generator) -> Tensor:
        """Of the unit ball: inside, on its surface, and the vertices of the cross-polytope."""
        inputs = self.radius.shape[1]
        z = torch.randn(300, inputs, generator=generator, dtype=torch.float64) ** 3
        z = z / torch.linalg.vector_norm(z, ord=DUAL[self.ball], dim=1, keepdim=True)
        z[:100] *= torch.rand(100, 1, generator=generator, dtype=torch.float64)
        eye = torch.eye(inputs, dtype=torch.float64)
        return torch.cat([z, eye, -eye, torch.zeros(1, inputs, dtype=torch.float64)])

    def into(self, z: Tensor) -> Tensor:
        """Points pulled into the unit ball."""
        size = torch.linalg.vector_norm(z, ord=DUAL[self.ball], dim=1, keepdim=True)
        return z / size.clamp(min=1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [1e-6, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("ball", [UnitBall.EUCLIDEAN, UnitBall.CROSS])
@pytest.mark.parametrize("seed", range(4))
def test_the_rule_is_below_the_row_everywhere(seed: int, ball: UnitBall, scale: float, masked: bool) -> None:
    """Also where a descent on the gap itself ends."""
    row = Row(seed, ball, scale, masked)
    z = row.points(torch.Generator().manual_seed(seed))
    for _ in range(40):
        z = z.detach().requires_grad_()
        gap = row.true(z) - row.linear(z)
        assert float(gap.detach().min()) >= -1e-13 * (1 + float(row.true(z).detach().abs().max()))
        (step,) = torch.autograd.grad(gap.sum(), z)
        size = torch.linalg.vector_norm(step, dim=1, keepdim=True)
        z = row.into(z.detach() - 0.1 * step / size.clamp(min=1e-300))


@pytest.mark.parametrize("ball", [UnitBall.EUCLIDEAN, UnitBall.CROSS])
def test_the_loss_is_of_second_order(ball: UnitBall) -> None:
    """Half the radius, about a quarter of what the rule lies below the row at the centre."""
    gaps = []
    for scale in (0.02, 0.01):
        row = Row(1, ball, scale, masked=False)
        zero = torch.zeros(1, row.radius.shape[1], dtype=torch.float64)
        gaps.append((row.true(zero) - row.linear(zero)).flatten())
    assert bool((gaps[0] / gaps[1] > 3.8).all())
    assert bool((gaps[0] / gaps[1] < 4.3).all())


@pytest.mark.parametrize("ball", [UnitBall.EUCLIDEAN, UnitBall.CROSS])
def test_rows_for_themselves(ball: UnitBall) -> None:
    """Diagonal along the rows, every row has its own bound; together they are the bound of the sum."""
    row = Row(2, ball, 0.3, masked=True)
    whole, each = row.rule.backward(row.eta), row.rule.backward(row.eta, 1)
    assert whole.start is not None and each.start is not None  # noqa: PT018
    assert whole.constant is not None and each.constant is not None  # noqa: PT018
    assert torch.allclose(each.start.reshape(1, 3, ROWS, -1).sum(2), whole.start)
    assert torch.allclose(each.constant.sum(-1), whole.constant)


def test_a_weight_that_underflows() -> None:
    """At the centre a key has the weight 0 in floats, but not where its score is higher: no rule."""
    row = Row(0, UnitBall.EUCLIDEAN, 0.3, masked=True)
    unit, values = UnitSet(UnitBall.EUCLIDEAN), AffineForm(row.v, row.V, row.radius, UnitSet(UnitBall.EUCLIDEAN))
    assert ball_row(row.rule.scores, AffineForm(row.s, row.G, row.radius, unit), values) is not None
    low = row.s.clone()
    low[..., 3] -= 800
    assert ball_row(row.rule.scores, AffineForm(low, row.G, row.radius, unit), values) is None


@pytest.mark.parametrize("diagonal", [None, 1])
def test_no_objectives(diagonal: int | None) -> None:
    """As where the signs of all ReLUs behind the row are known: nothing is asked, and nothing is answered."""
    row = Row(0, UnitBall.EUCLIDEAN, 0.3, masked=False)
    step = row.rule.backward(row.eta[:, :0], diagonal)
    assert step.start is not None
    assert step.start.shape == (1, 0, row.radius.shape[1])


def test_only_one_ball_without_shared_inputs() -> None:
    """Two balls, a cube, or an input that two keys depend on: no rule."""
    row = Row(0, UnitBall.EUCLIDEAN, 0.3, masked=False)
    scores = row.rule.scores
    inputs = row.radius.shape[1]

    def asked(unit: UnitSet, V: Tensor) -> BallRow | None:
        return ball_row(scores, AffineForm(row.s, row.G, row.radius, unit), AffineForm(row.v, V, row.radius, unit))

    assert asked(UnitSet(UnitBall.EUCLIDEAN), row.V) is not None
    assert asked(UnitSet(), row.V) is None
    assert asked(UnitSet(UnitBall.EUCLIDEAN, torch.arange(inputs) // EACH), row.V) is None
    shared = row.V.clone()
    shared[0, 0, 0, 0] = 1.0
    assert asked(UnitSet(UnitBall.EUCLIDEAN), shared) is None


class Written:
    """The docstring of the rule with all inputs written out: matrices of the whole ball, one head and row at a time."""

    def __init__(self, row: Row, s: int, head: int, n: int) -> None:
        self.row, eta = row, row.eta[0, s, head, n]
        self.weights = row.s[0, head, n].masked_fill(row.mask[n], -torch.inf).softmax(-1)
        self.g = (row.G[head, n] * row.radius[0]) * ~row.mask[n].unsqueeze(-1)
        self.h = torch.einsum("d,kdp->kp", eta, row.V[head]) * row.radius[0]
        w = row.v[0, head] @ eta
        self.middle = float(self.weights @ w)
        self.W = w - self.middle
        self.t = self.g - self.weights @ self.g  # (K, inputs)
        self.slope = self.weights @ (self.W.unsqueeze(-1) * self.g + self.h)
        tau = self.dual(self.t)
        curve = (torch.expm1(tau) - tau) / tau.square().clamp(min=1e-300)
        self.curve = torch.where(tau > 0.1, curve, _curve(tau))
        self.c = self.weights * self.curve * (self.dual(self.h) - self.W).clamp(min=0)

    def dual(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, ord=2 if self.row.ball is UnitBall.EUCLIDEAN else torch.inf, dim=-1)

    def form(self) -> Tensor:
        """Q as a symmetric matrix, (inputs, inputs)."""
        mixed = torch.einsum("k,kp,kq->pq", self.weights, self.t, self.h)
        return torch.einsum("k,kp,kq->pq", self.c, self.t, self.t) - (mixed + mixed.mT) / 2

    def grown(self) -> Tensor:
        """D − 1 at most, by its quadratic form."""
        return torch.einsum("k,kp,kq->pq", self.weights * self.curve, self.t, self.t)

    def numerator(self, z: Tensor) -> Tensor:
        """N at z (count, inputs)."""
        return (self.weights * (z @ self.t.mT).exp() * (self.W + z @ self.h.mT)).sum(-1)

    def denominator(self, z: Tensor) -> Tensor:
        return (self.weights * (z @ self.t.mT).exp()).sum(-1)


@pytest.mark.parametrize("ball", [UnitBall.EUCLIDEAN, UnitBall.CROSS])
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_every_step_of_the_proof(ball: UnitBall, scale: float) -> None:
    """N ≥ ℓ·z − Q(z) and 1 ≤ D ≤ D_high at points of the ball; and the loss is not below what follows from these."""
    row = Row(5, ball, scale, masked=True)
    z = row.points(torch.Generator().manual_seed(0))
    lost = torch.zeros(3, dtype=torch.float64)
    for s in range(3):
        for head in range(HEADS):
            for n in range(ROWS):
                one = Written(row, s, head, n)
                below = z @ one.slope - torch.einsum("cp,pq,cq->c", z, one.form(), z)
                assert bool((one.numerator(z) >= below - 1e-12).all())
                if ball is UnitBall.EUCLIDEAN:
                    most, grown = (float(torch.linalg.eigvalsh(Q)[-1].clamp(min=0)) for Q in (one.form(), one.grown()))
                else:
                    most = float(torch.einsum("cp,pq,cq->c", z, one.form(), z).max().clamp(min=0))
                    grown = float(one.grown().diagonal().max())
                assert float(one.denominator(z).max()) <= 1 + grown + 1e-12
                assert float(one.denominator(z).min()) >= 1 - 1e-12
                lost[s] += one.middle - most - float(one.dual(one.slope)) * grown / (1 + grown)
    step = row.rule.backward(row.eta)
    assert step.constant is not None
    assert bool((step.constant[0] <= lost + 1e-11).all())
    if ball is UnitBall.EUCLIDEAN:
        assert torch.allclose(step.constant[0], lost, rtol=1e-9, atol=1e-9)


def test_values_that_turn_against_their_weight() -> None:
    """A key whose value falls while its weight grows: c has to count how far the value goes."""
    row = Row(5, UnitBall.EUCLIDEAN, 1.0, masked=False)
    found = []
    for head in range(HEADS):
        one = Written(row, 0, head, 0)
        still = one.weights * one.curve * (-one.W).clamp(min=0)
        found.append(bool((one.c > 1.01 * still).any()))
    assert all(found)


@pytest.mark.parametrize("tau", [0.0, 1e-9, 1e-3, 0.05, 0.0999, 0.1, 0.5, 2.0, 10.0])
def test_the_curve_of_the_exponential(tau: float) -> None:
    """(e^τ − 1 − τ)/τ² from its series in rationals: not below it but for rounding, and hardly above."""
    exact, term = Fraction(0), Fraction(1, 2)
    for k in range(2, 120):
        exact += term
        term = term * Fraction(tau) / (k + 1)
    found = float(_curve(torch.tensor(tau, dtype=torch.float64)))
    assert found >= float(exact) * (1 - 1e-13)
    assert found <= float(exact) * 1.004
