"""The enumeration is the reference's, in either precision and in pieces, and refuses what is too much."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vertex_softmax as vx
from tests.lab.baselines.boxes import FAMILIES, ordinary
from vertex_lab.baselines import exhaustive, exhaustive_min
from vertex_softmax.softmax_box import reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_enumerated_min_is_the_reference(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustive, "PIECE", 1 << 9)
    monkeypatch.setattr(exhaustive, "VERTICES", 24)
    rows = ordinary(np.random.default_rng(1), 48, 6)
    c, lower, upper = (torch.from_numpy(x).to(dtype).reshape(4, 4, 3, 6) for x in rows)
    found = exhaustive.enumerated_min(c, lower, upper)
    assert found.shape == (4, 4, 3)
    assert found.dtype == dtype
    same = zip(*(x.double().reshape(-1, 6).numpy() for x in (c, lower, upper)), strict=True)
    expected = [reference.exhaustive_min(*row) for row in same]
    np.testing.assert_allclose(found.flatten(), expected, atol=1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("pieces", [False, True])
def test_every_family_gives_the_exact_minimum(pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pieces:
        monkeypatch.setattr(exhaustive, "PIECE", 100)
        monkeypatch.setattr(exhaustive, "VERTICES", 10)
    rng = np.random.default_rng(2)
    for family in FAMILIES:
        for K in (1, 2, 7):
            c, lower, upper = family(rng, 30, K)
            exact = vx.softmax_box_min(c, lower, upper)
            slack = 2.0**-53 * (K + 800) * np.abs(c).max(-1)
            assert (np.abs(exhaustive_min(c, lower, upper) - exact) <= slack).all(), (family, K)


def test_more_vertices_than_are_written_out_at_once() -> None:
    c, lower, upper = ordinary(np.random.default_rng(3), 3, 18)
    np.testing.assert_allclose(exhaustive_min(c, lower, upper), vx.softmax_box_min(c, lower, upper), atol=1e-14)


def test_more_than_twenty_keys_are_refused() -> None:
    zero = np.zeros(21)
    with pytest.raises(vx.VertexError, match=r"21 keys.*at most 20.*softmax_box_min"):
        exhaustive_min(zero, zero, zero)
