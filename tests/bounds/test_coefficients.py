"""Diagonal coefficients stand for the dense ones that their invariant names."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from vertex_softmax.bounds.coefficients import Coefficients, total


def drawn(*dims: int, seed: int = 0) -> Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loops(part: Coefficients) -> Tensor:
    """The invariant, literally."""
    A, diagonal = part
    if diagonal is None:
        return A
    batch, S, *shape = A.shape
    n = shape[diagonal]
    out = torch.zeros(batch, S * n, *shape, dtype=A.dtype)
    for b, s, i in itertools.product(range(batch), range(S), range(n)):
        for at in itertools.product(*(range(k) for k in shape)):
            if at[diagonal] == i:
                out[(b, s * n + i, *at)] = A[(b, s, *at)]
    return out


SHAPES = [(3,), (3, 2), (2, 3, 2), (3, 3), (1, 3), (2, 2, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dense_is_what_the_invariant_says(shape: tuple[int, ...]) -> None:
    A = drawn(2, 2, *shape)
    for diagonal in range(len(shape)):
        assert torch.equal(Coefficients(A, diagonal).dense(), by_loops(Coefficients(A, diagonal)))
        spread = drawn(2, 1, *shape).expand(2, 2, *shape)  # as expanded units are
        assert torch.equal(Coefficients(spread, diagonal).dense(), by_loops(Coefficients(spread, diagonal)))
    assert torch.equal(Coefficients(A).dense(), A)


@pytest.mark.parametrize("shape", [(3, 2), (3, 3), (2, 3, 3)], ids=str)
def test_total_is_the_sum(shape: tuple[int, ...]) -> None:
    """Every way to mix dense parts with diagonal ones of the same objectives."""
    n = 3
    ways = [d for d in range(len(shape)) if shape[d] == n]
    kinds: list[int | None] = [None, *ways]
    for count in (1, 2, 3):
        for chosen in itertools.product(kinds, repeat=count):
            parts = [
                Coefficients(drawn(2, 2 * n if diagonal is None else 2, *shape, seed=i), diagonal)
                for i, diagonal in enumerate(chosen)
            ]
            copies = [part.A.clone() for part in parts]
            found = total(parts)
            expected = sum(by_loops(part) for part in parts)
            assert torch.allclose(found.dense(), expected, atol=1e-14)
            if len(set(chosen)) == 1:
                assert found.diagonal == chosen[0]
            assert all(torch.equal(part.A, copy) for part, copy in zip(parts, copies, strict=True)), (
                "a part was changed"
            )


def test_total_of_views_that_are_not_contiguous() -> None:
    turned = drawn(2, 3, 6, 2).permute(0, 2, 1, 3)  # (2, 6, 3, 2)
    diagonal = Coefficients(drawn(2, 2, 3, 2), 0)
    found = total([Coefficients(turned), diagonal])
    assert torch.allclose(found.dense(), turned + by_loops(diagonal))
