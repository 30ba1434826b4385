"""Quadratic forms over the cube: no bound is below the largest value at a corner, which all of them are tried for.

Σ_{i<j} q_ij ξ_i ξ_j is linear in every ξ_i alone, so the largest value over the cube is at a corner. The sum there is
rounded once (math.fsum), and compared without any tolerance: the bounds have to make up for their own rounding.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vertex_softmax.ops import pairs
from vertex_softmax.ops.unknowns import Pairs
from vertex_softmax.ops.zonotope import Zonotope

COUNTS = [2, 3, 5, 8, 10]
EPS = 2.0**-52


@functools.cache
def corners(count: int) -> Tensor:
    """ξ_i ξ_j at the corners with ξ_0 = 1, (2^(n−1), K): −ξ gives the same products."""
    signs = torch.tensor([(1, *rest) for rest in itertools.product((-1, 1), repeat=count - 1)], dtype=torch.float64)
    first, second = pairs.places(count, torch.device("cpu"))
    return signs[:, first] * signs[:, second]


def most_at_corners(q: Tensor, count: int) -> float:
    """The largest |Σ q ξ ξ| of packed coefficients, summed exactly and rounded once."""
    scale = float(q.abs().max()) or 1.0
    values = (corners(count) @ (q.double() / scale)).abs()
    best = (values >= values.max() * (1 - 1e-9)).nonzero().flatten()[:4]
    return max(abs(math.fsum((corners(count)[i] * q.double()).tolist())) for i in best)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(count: int, seed: int) -> Tensor:
    return normal(seed, count * (count - 1) // 2)


def sparse(count: int, seed: int) -> Tensor:
    return dense(count, seed) * (normal(seed + 100, count * (count - 1) // 2) > 0.7)


def rank_one(count: int, seed: int) -> Tensor:
    return pairs.outer(v := normal(seed, 1, count), v)[0][0]


def all_ones(count: int, seed: int) -> Tensor:
    return torch.ones(count * (count - 1) // 2, dtype=torch.float64)


def one_entry(count: int, seed: int) -> Tensor:
    found = torch.zeros(count * (count - 1) // 2, dtype=torch.float64)
    found[seed % len(found)] = -1.5
    return found


def zero(count: int, seed: int) -> Tensor:
    return torch.zeros(count * (count - 1) // 2, dtype=torch.float64)


def uneven(count: int, seed: int) -> Tensor:
    """Of very different sizes, some of which vanish beside the largest when they are squared."""
    return dense(count, seed) * 10.0 ** (-40 * normal(seed + 7, count * (count - 1) // 2).abs())


def star(count: int, seed: int) -> Tensor:
    """One unknown times all the others."""
    first, _ = pairs.places(count, torch.device("cpu"))
    return dense(count, seed) * (first == 0)


KINDS = [dense, sparse, rank_one, all_ones, one_entry, zero, uneven, star]
Kind = Callable[[int, int], Tensor]
SCALES = [(torch.float64, 1.0), (torch.float64, 1e150), (torch.float64, 1e-200), (torch.float32, 1.0)]
SCALES += [(torch.float32, 1e25), (torch.float32, 1e-25)]


def blocks(kind: Kind, count: int, dtype: torch.dtype, scale: float) -> Tensor:
    """(batch 2, 1, K, 3), coefficients times the unit as blocks have them."""
    found = torch.stack([torch.stack([kind(count, 3 * b + i) for i in range(3)], -1) for b in range(2)])
    return (found * scale).to(dtype).unsqueeze(1)


@pytest.mark.parametrize(("dtype", "scale"), SCALES)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_corner_is_beyond_the_reach(kind: Kind, count: int, dtype: torch.dtype, scale: float) -> None:
    columns = blocks(kind, count, dtype, scale)
    rough, tight = pairs.reach(columns, count), pairs.tight_reach(columns, count)
    assert rough.dtype == tight.dtype == dtype
    assert rough.shape == tight.shape == (2, 3)
    # the spectral norm is at most Frobenius', but for what is added for single precision
    share = 1 + 12 * count * count * torch.finfo(torch.float32).eps
    assert bool((tight.double() <= rough.double() * share).all())
    assert bool((tight.isfinite() & rough.isfinite() & (tight >= 0)).all())
    for b, i in itertools.product(range(2), range(3)):
        true = most_at_corners(columns[b, 0, :, i], count) / pairs.unit(count)
        assert true <= float(tight[b, i]), (b, i)
        assert true <= float(rough[b, i]), (b, i)


@pytest.mark.parametrize("count", COUNTS)
def test_a_matrix_of_rank_one_is_reached_nearly(count: int) -> None:
    """So that a bound which is right but useless is noticed: of ones the spectral norm is n − 1, as the corner 1 is."""
    columns = blocks(all_ones, count, torch.float64, pairs.unit(count))
    true = count * (count - 1) / 2
    assert float(pairs.tight_reach(columns, count).max()) <= true * 1.05
    assert float(pairs.reach(columns, count).max()) <= true * math.sqrt(count / (count - 1)) * (1 + 1e-9)


def test_the_reach_takes_numbers_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = blocks(dense, 6, torch.float64, 1.0)
    whole = pairs.tight_reach(columns, 6)
    monkeypatch.setattr(pairs, "MOST_NUMBERS", 100)
    torch.testing.assert_close(pairs.tight_reach(columns, 6), whole, rtol=1e-6, atol=0)
    torch.testing.assert_close(pairs.tight_reach(columns[..., 0], 6), whole[:, 0], rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dtype", "scale"), SCALES)
@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_no_corner_is_outside_the_ellipse(kind: Kind, count: int, dtype: torch.dtype, scale: float) -> None:
    """|η·q(ξ)|² ≤ scale² ηᵀ matrix η, as a share of the sizes of both: one of ulps, as the matrix is rounded."""
    columns = blocks(kind, count, dtype, scale)
    matrix, size = pairs.ellipse(columns.clone(), count)
    assert matrix.shape == (2, 3, 3)
    assert size.shape == (2,)
    eta = torch.cat([normal(1, 20, 3), normal(2, 20, 3).sign(), torch.eye(3, dtype=torch.float64)])
    share = 8 * torch.finfo(dtype).eps
    for b in range(2):
        q = columns[b, 0].double() / scale / pairs.unit(count)  # (K, 3)
        at = corners(count) @ q
        reached = (at @ eta.T).abs().amax(0)
        radius = (eta @ matrix[b].double() * eta).sum(-1).clamp(min=0).sqrt() * (float(size[b]) / scale)
        length = eta.abs().sum(-1) * float(q.abs().sum(0).max())
        assert bool((reached <= radius + share * length).all())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [4, 6, 9])
def test_no_corner_is_outside_the_ellipse_in_its_worst_direction(count: int, seed: int) -> None:
    """The largest |η·q|² / ηᵀ matrix η over all η is qᵀ matrix⁻¹ q."""
    columns = torch.stack([rank_one(count, seed), dense(count, seed), all_ones(count, 0)], -1)[None, None]
    matrix, size = pairs.ellipse(columns.clone(), count)
    at = corners(count) @ (columns[0, 0] / pairs.unit(count))
    worst = (at * torch.linalg.solve(matrix[0], at.T).T).sum(-1).max()
    assert float(worst) <= float(size[0]) ** 2 * (1 + 1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e60, 1e-60])
@pytest.mark.parametrize("kind", [dense, rank_one, one_entry, uneven])
def test_a_row_of_products_is_in_its_shape(kind: Kind, scale: float) -> None:
    count = 6
    columns = blocks(kind, count, torch.float64, scale)
    zeros = torch.zeros(2, 3, dtype=torch.float64)
    zonotope = Zonotope(zeros, {Pairs("products", count): columns}, None, zeros)
    shape = zonotope.row_shape
    eta = torch.cat([normal(1, 30, 3), torch.eye(3, dtype=torch.float64)])
    for b in range(2):
        at = corners(count) @ (columns[b, 0] / scale / pairs.unit(count))
        size = (float(shape.size[b]) / scale) * ((eta @ (shape.matrix[b] / scale)) * eta).sum(-1)
        assert bool(((at @ eta.T).abs().amax(0) <= size.sqrt() * (1 + 1e-12)).all())
        most = at.abs().amax(0)
        assert bool((most <= zonotope.radius[b] / scale).all())
        assert bool((most <= zonotope.tight_radius[b] / scale).all())
        assert bool((most <= zonotope.rough_radius[b] / scale * (1 + 8 * EPS)).all())
        assert float(at.square().sum(-1).max()) <= float(shape.farthest()[b] / scale / scale) * (1 + 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_packed_is_the_double_sum(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    count = 5
    full, xi = normal(0, 2, count, count, *shape).to(dtype), normal(1, 2, count).to(dtype)
    pair, alone = pairs.packed(full)
    first, second = pairs.places(count, full.device)
    found = torch.einsum("bk,bk...->b...", xi[:, first] * xi[:, second], pair)
    found = found + torch.einsum("bi,bi...->b...", xi.square(), alone)
    for b in range(2):
        true = sum(full[b, i, j] * xi[b, i] * xi[b, j] for i in range(count) for j in range(count))
        torch.testing.assert_close(found[b], true)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_outer_is_the_product_of_two_sums(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    count = 5
    x, y = normal(0, 2, count, *shape).to(dtype), normal(1, 2, count, *shape).to(dtype)
    xi = normal(2, 2, count).to(dtype)
    pair, alone = pairs.outer(x, y)
    for b in range(2):
        true = sum(x[b, i] * xi[b, i] for i in range(count)) * sum(y[b, i] * xi[b, i] for i in range(count))
        found = sum(alone[b, i] * xi[b, i] ** 2 for i in range(count))
        for k, (i, j) in enumerate(itertools.combinations(range(count), 2)):
            found = found + pair[b, k] * xi[b, i] * xi[b, j]
        torch.testing.assert_close(found, true)
