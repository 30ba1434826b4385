"""Products of three unknowns: forms are what they are of at every point, and no point is beyond a reach."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from vertex_softmax.ops import pairs, triples


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def points(count: int) -> Tensor:
    """All corners, points with zeros and points between, (points, n)."""
    corners = torch.tensor(list(itertools.product((-1.0, 0.0, 1.0), repeat=count)), dtype=torch.float64)
    return torch.cat([corners, 2 * torch.rand(200, count, dtype=torch.float64) - 1])


def twos(xi: Tensor) -> Tensor:
    """ξ_i ξ_j, i < j, and then ζ_i."""
    first, second = pairs.places(xi.shape[1], xi.device)
    return torch.cat([xi[:, first] * xi[:, second], 2 * xi.square() - 1], 1)


def threes(xi: Tensor) -> Tensor:
    every = [xi[:, list(each)].prod(1, keepdim=True) for each in itertools.combinations(range(xi.shape[1]), 3)]
    return torch.cat([*every, ((2 * xi.square() - 1).unsqueeze(2) * xi.unsqueeze(1)).flatten(1)], 1)


def value(cubic: triples.Cubic, xi: Tensor) -> Tensor:
    return torch.einsum("pn,bn...->pb...", xi, cubic.line) + torch.einsum("pm,bm...->pb...", threes(xi), cubic.products)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_linear_form_times_a_quadratic_one(count: int) -> None:
    xi = points(count)
    a, form = normal(2, count, 3), normal(2, count * (count + 1) // 2, 3, seed=1)
    true = torch.einsum("pn,bns->pbs", xi, a) * torch.einsum("pm,bms->pbs", twos(xi), form)
    torch.testing.assert_close(value(triples.times(a, form), xi), true)
    torch.testing.assert_close(value(triples.packed(a.unsqueeze(2) * form.unsqueeze(1)), xi), true)
    assert triples.times(a, form).products.shape[1] == triples.size(count) == threes(xi).shape[1]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_product_of_two_linear_forms(count: int) -> None:
    xi = points(count)
    a, b = normal(2, count, 3), normal(2, count, 3, seed=1)
    true = torch.einsum("pn,bns->pbs", xi, a) * torch.einsum("pn,bns->pbs", xi, b)
    for constant, form in (triples.squared(a, b), triples.quadratic(a.unsqueeze(2) * b.unsqueeze(1))):
        torch.testing.assert_close(constant + torch.einsum("pm,bms->pbs", twos(xi), form), true)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_no_point_is_beyond_a_reach(count: int) -> None:
    xi, few = points(count), triples.size(count)
    for seed in range(6):
        columns = normal(2, few, 1, 3, 2, seed=seed)
        if seed % 2:  # one linear form to the third power: its corners reach far
            a = normal(2, count, 3, 2, seed=seed)
            columns = triples.times(a, triples.squared(a, a)[1]).products.unsqueeze(2)
        if seed == 4:
            columns = columns * (normal(few, seed=9) > 1)[None, :, None, None, None]
        true = torch.einsum("pm,bm...->pb...", threes(xi), columns.squeeze(2)).abs().amax(0)
        found = triples.tight_reach(columns, count)
        assert bool((true <= found).all())
        assert bool((found <= columns.abs().sum((1, 2)) * (1 + 1e-9)).all())


def test_a_spectral_norm_is_less_than_a_sum_where_signs_differ() -> None:
    columns = normal(1, triples.size(16), 1, 4)
    assert bool((triples.tight_reach(columns, 16) < 0.7 * columns.abs().sum((1, 2))).all())


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_a_reach_grows_with_its_form(scale: float) -> None:
    columns = normal(2, triples.size(5), 1, 3)
    torch.testing.assert_close(triples.tight_reach(columns * scale, 5) / scale, triples.tight_reach(columns, 5))
    assert float(triples.tight_reach(0 * columns, 5).max()) == 0


def test_many_numbers_are_bounded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = normal(2, triples.size(5), 1, 7)
    whole = triples.tight_reach(columns, 5)
    monkeypatch.setattr(triples, "MOST_NUMBERS", 400)
    torch.testing.assert_close(triples.tight_reach(columns, 5), whole)
