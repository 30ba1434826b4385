"""Moves and their coefficients on the way back: against sums that are exact."""

from __future__ import annotations

import numpy as np
import pytest

from tests.certificate.checker.helpers import dot, exact, module, size

moves = module("moves")
rounding = module("rounding")

INDICES = {
    "nothing moves": np.arange(12).reshape(3, 4),
    "turned": np.arange(12).reshape(3, 4).T,
    "backward": np.arange(12)[::-1],
    "a few": np.array([[7, 2], [11, 0]]),
    "a few in order": np.array([2, 3, 4]),
    "one, often": np.full(5, 3),
    "some twice": np.array([[1, 1, 5], [0, 5, 11]]),
    "all, and one again": np.concatenate([np.arange(12), [4]]),
    "all twice": np.concatenate([np.arange(12), np.arange(12)[::-1]]),
}


@pytest.mark.parametrize("name", INDICES)
def test_what_comes_back_is_the_same_function(name: str) -> None:
    """With integers nothing is rounded: Σ A·node = Σ back·input for every input."""
    index, rng = INDICES[name], np.random.default_rng(0)
    move = moves.moved(index, 12)
    for _ in range(20):
        x = rng.integers(-99, 100, 12).astype(np.float64)
        A = rng.integers(-99, 100, (5, index.size)).astype(np.float64)
        back = move.back(A)
        assert back.shape == (5, 12)
        assert (back @ x == A @ x[index.ravel()]).all()
    assert move.most == np.bincount(index.ravel()).max()


@pytest.mark.parametrize("name", INDICES)
def test_roundings_are_counted(name: str) -> None:
    index, rng = INDICES[name], np.random.default_rng(1)
    move = moves.moved(index, 12)
    for _ in range(20):
        A = rng.standard_normal((1, index.size)) * 10.0 ** rng.uniform(-8, 8, index.size)
        x = rng.standard_normal(12)
        taken = x[index.ravel()]
        off = dot(move.back(A)[0], x) - dot(A[0], taken)
        allowed = exact(rounding.rounding(move.most)) * dot(np.abs(A[0]), np.abs(taken))
        assert size(off) <= (allowed if move.most > 1 else 0)


def test_one_objective_and_none() -> None:
    move = moves.moved(np.array([1, 0]), 2)
    assert move.back(np.zeros((0, 2))).shape == (0, 2)
    assert move.back(np.array([[1.0, 2.0]])).tolist() == [[2.0, 1.0]]
