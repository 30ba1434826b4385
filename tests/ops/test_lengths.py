"""Lengths in pieces are lengths, and what is known of a block's reach is never that of other columns."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vertex_softmax.ops import lengths as module
from vertex_softmax.ops.lengths import lengths, norm, sum_of_lengths
from vertex_softmax.ops.reaches import Care, reach_of
from vertex_softmax.ops.unknowns import Pairs, Unknowns
from vertex_softmax.ops.zonotope import Zonotope


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("piece", [1, 7, 1 << 17])
def test_pieces(monkeypatch: pytest.MonkeyPatch, k: int, piece: int) -> None:
    """The same numbers, but for the order of the sum over balls."""
    monkeypatch.setattr(module, "PIECE", piece)
    x = torch.randn(2, 9, k, 3, 5, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
    x[0, 2] *= 1e-200  # squares underflow
    plain = x.norm(dim=2)
    plain[0, 2] = (x[0, 2] * 1e200).norm(dim=0) * 1e-200
    torch.testing.assert_close(lengths(x), plain, rtol=1e-14, atol=0)
    torch.testing.assert_close(sum_of_lengths(x), plain.sum(1), rtol=1e-14, atol=0)
    rows = norm(x, (2, -1))
    assert rows.shape == (2, 9, 3)
    torch.testing.assert_close(rows[1], x[1].norm(dim=(1, 3)), rtol=1e-14, atol=0)
    assert bool((rows > 0).all())


def zonotope() -> tuple[Zonotope, Unknowns, Pairs]:
    """Two blocks, one of products."""
    g = torch.Generator().manual_seed(0)
    plain, products = Unknowns("a"), Pairs("b", 4)
    blocks = {
        plain: torch.randn(1, 3, 2, 5, generator=g, dtype=torch.float64),
        products: torch.randn(1, 1, 6, 5, generator=g, dtype=torch.float64),
    }
    zero = torch.zeros(1, 5, dtype=torch.float64)
    return Zonotope(zero, blocks, None, zero), plain, products


def radii(z: Zonotope) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a zonotope says that nothing is known of."""
    fresh = Zonotope(z.centre, z.blocks, z.own, z.slack)
    return fresh.radius, fresh.rough_radius, fresh.tight_radius


def same(z: Zonotope) -> None:
    """What is known is what would be computed."""
    for one, other in zip((z.radius, z.rough_radius, z.tight_radius), radii(z), strict=True):
        assert torch.equal(one, other)


def test_known_reaches() -> None:
    """Of other columns, of columns changed in place, and of moved numbers."""
    z, plain, products = zonotope()
    same(z)
    for care in Care:
        tight = care in (Care.TIGHT, Care.TIGHTEST)
        expected = z.blocks[products].flatten(0, 2).norm(dim=0)[None] if care is Care.ROUGH else None
        found = z.reach_of_block(products, care)
        if expected is None:
            expected = reach_of(products, z.blocks[products], tight=tight)
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    same(dataclasses.replace(z, blocks={**z.blocks, plain: 2 * z.blocks[plain]}))
    same(dataclasses.replace(z, blocks={plain: z.blocks[plain]}))
    same(dataclasses.replace(z, slack=z.slack + 1))
    turned = z.rearranged(lambda x: x.flip(-1))
    same(turned)
    assert torch.equal(turned.radius, z.radius.flip(-1))
    z.blocks[plain].mul_(3)
    same(dataclasses.replace(z, slack=z.slack))
