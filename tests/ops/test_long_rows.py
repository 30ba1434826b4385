"""Rows whose tables are not kept have the same bounds as rows whose tables are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vertex_softmax.ops import softmax
from vertex_softmax.ops.interval import Interval


def score_box(shape: tuple[int, ...]) -> Interval:
    """Random scores, one key of which is masked in all rows."""
    g = torch.Generator().manual_seed(len(shape))
    centre, radius = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))
    ends = (centre - radius.abs(), centre + radius.abs())
    for end in ends:
        end[..., 1] = -torch.inf
    return Interval(*ends)


def choice_for(c: Tensor) -> softmax.RowChoice:
    """Random values of what is free."""
    g = torch.Generator().manual_seed(1)
    ratio, tangent = (0.1 * torch.randn(c.shape, generator=g, dtype=c.dtype) for _ in range(2))
    return softmax.RowChoice(ratio, tangent, 0.1 * torch.randn(*c.shape[:-1], 1, generator=g, dtype=c.dtype))


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 9, 4), (3, 6)])
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_the_same_bounds(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], *, chosen: bool, kept: bool) -> None:
    """To the last digit, in pieces of a few rows, whether the tables are kept or made again."""
    box = score_box(shape)
    c = torch.randn(shape[0], 4, *shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    choice = choice_for(c) if chosen else None
    expected = softmax.row_below(c, softmax.row_bounds(box), choice)
    monkeypatch.setitem(softmax.AT_ONCE, "cpu", 3 * shape[-1] ** 2)
    if not kept:
        monkeypatch.setattr(softmax, "MOST_TABLE_NUMBERS", 1)
    rows = softmax.linear_rows(box)
    assert isinstance(rows, softmax.RowBounds if kept else softmax.LongRows)
    found = softmax.below_rows(c, rows, choice)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    whole = softmax.row_bounds(box)
    assert torch.equal(rows.middle, whole.middle)
    assert all(torch.equal(one, other) for one, other in zip(rows.box, whole.box, strict=True))


def test_an_attention_without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of a network by `crown` and `alpha-crown` do not change."""
    from vertex_softmax import LinfBall, certify
    from vertex_softmax.runs.demo.model import PatchTransformer

    network = PatchTransformer(patch=4, dim=4, heads=1, mlp=4, classes=3).double().eval()
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ball = LinfBall(x, 0.01)
    expected = [certify(network, ball, 0, method, attack=None).lower for method in ("crown", "alpha-crown")]
    monkeypatch.setattr(softmax, "MOST_TABLE_NUMBERS", 1)
    monkeypatch.setitem(softmax.AT_ONCE, "cpu", 1)
    found = [certify(network, ball, 0, method, attack=None).lower for method in ("crown", "alpha-crown")]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
