"""Gathered errors: a functional of them reaches as far as segments and a ball do, and no farther than their ball."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.ops.test_unknowns import normal
from vertex_softmax.ops import gathered
from vertex_softmax.ops.reaches import Care, KnownReaches, reach_of
from vertex_softmax.ops.unknowns import GatheredUnknowns

BALLS, SEGMENTS, K = 2, 4, 3


def drawn(seed: int, size: float = 1.0) -> GatheredUnknowns:
    """ν = spanᵀ ξ + rootᵀ μ with |ν| ≤ size, nearly."""
    generator = torch.Generator().manual_seed(seed)
    span, root = normal(generator, 2, BALLS, SEGMENTS, K), normal(generator, 2, BALLS, K, K)
    most = span.norm(dim=-1).sum(-1) + torch.linalg.matrix_norm(root, 2)
    return GatheredUnknowns("here", *(size * x / most[..., None, None] for x in (span, root)))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_a_block_reaches_as_far_as_what_was_gathered(shape: tuple[int, ...]) -> None:
    """By hand, and attained: by the signs of the segments and the direction of the ball."""
    unknowns = drawn(0)
    columns = normal(torch.Generator().manual_seed(1), 2, BALLS, K, *shape)
    found = gathered.reach(unknowns, columns)
    assert found.shape == (2, *shape)
    flat, reach = columns.reshape(2, BALLS, K, -1), found.reshape(2, -1)
    for b, i in itertools.product(range(2), range(reach.shape[1])):
        size = 0.0
        for m in range(BALLS):
            along = flat[b, m, :, i]
            signs, towards = (unknowns.span[b, m] @ along).sign(), unknowns.root[b, m] @ along
            nu = unknowns.span[b, m].mT @ signs + unknowns.root[b, m].mT @ (towards / towards.norm())
            size += float(nu @ along)
        assert size * (1 - 1e-13) <= float(reach[b, i]) <= size * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_no_farther_than_the_ball(seed: int) -> None:
    """Also where the parts alone would say more than that |ν| ≤ 1."""
    unknowns, columns = drawn(seed, 3.0), normal(torch.Generator().manual_seed(seed), 2, BALLS, K, 50)
    balls = columns.norm(dim=2).sum(1)
    assert bool((gathered.reach(unknowns, columns) <= balls * (1 + 1e-15)).all())
    torch.testing.assert_close(gathered.reach(drawn(seed, 1e3), columns), balls, rtol=1e-14, atol=0)


def test_only_functionals_are_worth_the_care() -> None:
    """A zonotope's own ranges are those of the balls; where one functional is asked for the parts are looked at."""
    unknowns, columns = drawn(2), normal(torch.Generator().manual_seed(2), 2, BALLS, K, 7)
    balls = columns.norm(dim=2).sum(1)
    for care in (Care.ROUGH, Care.PLAIN, Care.TIGHT):
        torch.testing.assert_close(KnownReaches().of(unknowns, columns, care), balls, rtol=1e-14, atol=0)
    assert bool((reach_of(unknowns, columns, tight=True) < balls).all())
