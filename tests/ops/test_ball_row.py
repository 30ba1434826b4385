"""The ball rule lies below the row everywhere in the ball: at random points, at vertices, and where a descent ends."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vertex_softmax.ops.attention.ball_row import BallRow, ball_row
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
