"""Regions: `support` and `minimise` against all corners of small boxes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.sets.region import BoxRegion, placed

GENERATOR = torch.Generator().manual_seed(0)
SHAPE = (2, 3)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def box(batch: int = 2) -> BoxRegion:
    lower = drawn(batch, *SHAPE)
    return BoxRegion(lower, lower + drawn(batch, *SHAPE).abs())


def least(region: BoxRegion, A: Tensor, constant: Tensor) -> Tensor:
    """Over all corners."""
    found = []
    for sides in itertools.product((0, 1), repeat=A[0, 0].numel()):
        side = torch.tensor(sides, dtype=torch.bool).reshape(SHAPE)
        corner = torch.where(side, region.upper, region.lower)
        found.append((A * corner.unsqueeze(1)).flatten(2).sum(-1))
    return constant + torch.stack(found).amin(0)


def test_the_least_value_over_a_box_and_where() -> None:
    region, A, constant = box(), drawn(2, 4, *SHAPE), drawn(2, 4)
    A[0, 0, 0, 0] = 0.0
    expected = least(region, A, constant)
    assert torch.allclose(region.support(A, constant), expected, rtol=0, atol=1e-12)
    value, point = region.minimise(A, constant)
    assert torch.allclose(value, expected, rtol=0, atol=1e-12)
    assert torch.allclose((A * point).flatten(2).sum(-1) + constant, expected, rtol=0, atol=1e-12)
    assert (point >= region.lower.unsqueeze(1)).all()
    assert (point <= region.upper.unsqueeze(1)).all()
    assert point[0, 0, 0, 0] == region.box.centre[0, 0, 0]
    assert torch.allclose(region.support(A), expected - constant, rtol=0, atol=1e-12)


def test_some_inputs_of_the_batch() -> None:
    region = box(4)
    some = region.at(slice(1, 3))
    assert torch.equal(some.lower, region.lower[1:3])
    assert torch.equal(some.upper, region.upper[1:3])


def test_rearranged_entry_i_is_number_i() -> None:
    region, numbers = box(), torch.tensor([[4, 0], [5, 2], [3, 1]])
    moved = region.rearranged(numbers)
    for end, before in ((moved.lower, region.lower), (moved.upper, region.upper)):
        assert tuple(end.shape) == (2, 3, 2)
        for place in itertools.product(range(3), range(2)):
            assert torch.equal(end[(slice(None), *place)], before.flatten(1)[:, numbers[place]])


@pytest.mark.parametrize(
    ("given", "shape", "expected"),
    [((2, 3), (3,), (2, 3)), ((2, 3), (1, 3), (2, 1, 3)), ((2, 3), (2, 3), (1, 2, 3))],
)
def test_placed(given: tuple[int, ...], shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = drawn(*given)
    assert tuple(placed(x, shape).shape) == expected
    assert torch.equal(placed(x, shape).flatten(), x.flatten())
    with pytest.raises(InvalidValueError, match="but the network takes"):
        placed(x, (7,))
