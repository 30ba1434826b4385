"""Behind the last norm: no point of the row is below the bound, and the bound is close to the least value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import vertex_softmax as vx
from vertex_softmax.bounds.index import last_norm
from vertex_softmax.bounds.last_norm import _lowest, _row
from vertex_softmax.methods import last_pass
from vertex_softmax.ops.unknowns import Unknowns
from vertex_softmax.ops.zonotope import Zonotope
from vertex_softmax.runs.certify import load

Drawn = tuple[Zonotope, list[tuple[Unknowns, int, int]]]


def row(seed: int, d: int, size: float, centre: float = 1.0) -> Zonotope:
    """A row of d numbers with intervals, balls and numbers' own unknowns, in a batch of two."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    blocks = {Unknowns(f"{i}"): size * normal(2, m, k, d) for i, (m, k) in enumerate([(4, 1), (2, 3)])}
    return Zonotope(centre * normal(2, d), blocks, 0.1 * size * normal(2, d).abs(), 0.01 * size * normal(2, d).abs())


def points(y: Zonotope, count: int, seed: int) -> Tensor:
    """Points of the row, most of them at its boundary: (batch, count, d)."""
    generator = torch.Generator().manual_seed(seed)
    found = y.centre.unsqueeze(1).expand(-1, count, -1)
    for columns in y.blocks.values():
        nu = torch.randn(2, count, *columns.shape[1:3], generator=generator, dtype=torch.float64)
        nu = nu / nu.norm(dim=-1, keepdim=True)
        found = found + torch.einsum("bsmk,bmkd->bsd", nu, columns)
    return found + y.loose.unsqueeze(1) * torch.randn(found.shape, generator=generator, dtype=torch.float64).sign()


def descended(y: Zonotope, eps: float, eta: Tensor, kappa: Tensor) -> Tensor:
    """The least value of η·y/σ + κ that projected steps reach from 64 starts, (batch, S)."""
    best = torch.full_like(kappa, torch.inf)
    for s in range(eta.shape[1]):
        generator = torch.Generator().manual_seed(s)
        parts = [torch.randn(2, 64, *x.shape[1:3], generator=generator, dtype=torch.float64) for x in y.blocks.values()]
        parts.append(torch.randn(2, 64, y.centre.shape[-1], generator=generator, dtype=torch.float64))
        for step in range(40):
            parts = [x / x.norm(dim=-1, keepdim=True).clamp(min=1) for x in parts[:-1]] + [parts[-1].clamp(-1, 1)]
            parts = [x.detach().requires_grad_(True) for x in parts]
            at = y.centre.unsqueeze(1) + y.loose.unsqueeze(1) * parts[-1]
            for nu, columns in zip(parts, y.blocks.values(), strict=False):
                at = at + torch.einsum("bsmk,bmkd->bsd", nu, columns)
            value = value_at(at, eps, eta[:, s : s + 1], kappa[:, s : s + 1])
            best[:, s] = torch.minimum(best[:, s], value.detach().amin(1))
            gradients = torch.autograd.grad(value.sum(), parts)
            size = 0.5 if step < 20 else 0.1
            parts = [
                x.detach() - size * g / g.norm(dim=-1, keepdim=True).clamp(min=1e-300)
                for x, g in zip(parts, gradients, strict=True)
            ]
    return best


def value_at(y: Tensor, eps: float, eta: Tensor, kappa: Tensor) -> Tensor:
    """η·y/σ + κ: y (batch, points, d), η (batch, 1, d), κ (batch, 1) → (batch, points)."""
    return (eta * y).sum(-1) / (y.square().mean(-1) + eps).sqrt() + kappa


def objectives(seed: int, d: int, shift: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed + 100)
    eta = torch.randn(2, 5, d, generator=generator, dtype=torch.float64)
    return eta, shift * torch.randn(2, 5, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shift", [0.0, 1.0, 20.0])
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5, 1.0])
@pytest.mark.parametrize("size", [1e-6, 0.02, 0.15, 1.0])
def test_no_point_is_below(size: float, eps: float, shift: float) -> None:
    for seed, d in enumerate((1, 2, 6, 16)):
        y, (eta, kappa) = row(seed, d, size), objectives(seed, d, shift)
        bound = _lowest(y, eps, eta, kappa)
        assert bool(bound.isfinite().all())
        at = points(y, 3000, seed)
        drawn = torch.stack([value_at(at, eps, eta[:, s : s + 1], kappa[:, s : s + 1]).amin(1) for s in range(5)], 1)
        rounding = 1e-12 * (kappa.abs() + d**0.5 * eta.norm(dim=-1))
        assert bool((bound <= drawn + rounding).all())
        floor = kappa - d**0.5 * eta.norm(dim=-1)
        assert bool((bound >= floor - 1e-9 * (1 + floor.abs())).all())


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_a_descent_ends_just_above(shift: float) -> None:
    """It is the exact minimum but for how far σ is from its plane, and for what the numbers' slack adds."""
    for seed in range(4):
        y, (eta, kappa) = row(seed, 8, 0.05), objectives(seed, 8, shift)
        bound, reached = _lowest(y, 1e-5, eta, kappa), descended(y, 1e-5, eta, kappa)
        at_centre = (eta * y.centre.unsqueeze(1)).sum(-1) / (y.centre.square().mean(-1) + 1e-5).sqrt().unsqueeze(1)
        assert bool((bound <= reached + 1e-12).all())
        assert bool((reached - bound <= 0.25 * (at_centre + kappa - reached) + 1e-9).all())


def test_a_point_has_its_value() -> None:
    y = row(0, 6, 0.0)
    eta, kappa = objectives(0, 6, 1.0)
    value = (eta * y.centre.unsqueeze(1)).sum(-1) / (y.centre.square().mean(-1) + 1e-5).sqrt().unsqueeze(1) + kappa
    assert torch.allclose(_lowest(y, 1e-5, eta, kappa), value, atol=1e-9)


def test_rows_that_reach_zero_and_extreme_scales_have_the_floor_or_more() -> None:
    for scale in (1e-200, 1e-100, 1e100, 1e160):
        for centre in (0.0, 1.0):
            y, (eta, kappa) = row(1, 5, 2.0 * scale, centre * scale), objectives(1, 5, 1.0)
            bound = _lowest(y, 0.0, eta, kappa)
            assert not bool(bound.isnan().any())
            at = points(y, 500, 1)
            for s in range(5):
                scaled = value_at(at / scale, 0.0, eta[:, s : s + 1], kappa[:, s : s + 1]).amin(1)
                assert bool((bound[:, s] <= scaled + 1e-9).all())


class Ended(nn.Module):
    """One layer, then a norm of the first token (or of all) and a head; `around`: the token itself is added too."""

    def __init__(self, *, pooled: bool = True, around: bool = False, norm: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
        self.norm: nn.Module = nn.LayerNorm(8) if norm else nn.Identity()
        self.head = nn.Linear(8 if pooled else 24, 3)
        self.pooled, self.around = pooled, around

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x))
        y = y + x if self.around else y
        scores: Tensor = self.head(y[:, 0] if self.pooled else y.flatten(1))
        return scores


def test_which_networks_end_in_a_norm() -> None:
    x = torch.rand(1, 3, 8)
    for module, ends in (
        (Ended(), True),
        (Ended(pooled=False), True),
        (Ended(around=True), False),
        (Ended(norm=False), False),
    ):
        assert (last_norm(load(module.eval(), vx.LinfBall(x, 0.0))) is not None) == ends


def test_a_network_is_bounded_better_and_no_sample_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Ended().eval().double(), torch.rand(2, 3, 8, dtype=torch.float64)
    label = model(x).argmax(1)
    ball = vx.LinfBall(x, 0.015)
    graph = load(model, ball)
    better = vx.certify(graph, ball, label, "crown")
    monkeypatch.setattr(last_pass, "behind_last_norm", lambda *_: None)
    plain = vx.certify(graph, ball, label, "crown")
    assert bool((better.lower >= plain.lower - 1e-9).all())
    assert bool((better.worst > plain.worst + 1e-4).all())
    at = x.unsqueeze(1) + 0.015 * (2 * torch.rand(2, 2000, 3, 8, dtype=torch.float64) - 1).sign()
    for i in range(2):
        scores = model(at[i]).detach()
        margins = scores[:, label[i]].unsqueeze(1) - scores
        margins[:, label[i]] = torch.inf
        assert float(margins.amin()) >= float(better.worst[i])


def test_a_set_of_one_point_and_blocks_without_unknowns() -> None:
    """ε 0: no op has an error, and some blocks have no unknown at all."""
    model, x = Ended().eval().double(), torch.rand(2, 3, 8, dtype=torch.float64)
    graph, label = load(model, vx.LinfBall(x, 0.0)), model(x).argmax(1)
    for eps in (0.0, 1e-13):
        result = vx.certify(graph, vx.LinfBall(x, eps), label, "crown")
        assert torch.allclose(result.worst, result.clean.amin(1), atol=1e-9)
    empty = torch.zeros(2, 0, 1, 3, 8, dtype=torch.float64)
    zero = torch.zeros(2, 3, 8, dtype=torch.float64)
    row_of = _row(Zonotope(zero, {Unknowns("nothing"): empty}, None, zero), 1, 2)
    assert next(iter(row_of.blocks.values())).shape == (2, 0, 1, 8)


def test_objectives_on_several_rows_are_left_to_others() -> None:
    """With a head on all tokens the bound is that of the zonotope, and still a bound."""
    model, x = Ended(pooled=False).eval().double(), torch.rand(1, 3, 8, dtype=torch.float64)
    result = vx.certify(model, vx.LinfBall(x, 0.02), model(x).argmax(1), "crown")
    assert bool(result.worst.isfinite().all())
