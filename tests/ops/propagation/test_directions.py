"""Faults that attacks in the worst direction found: each at the point and in the direction where it showed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vertex_softmax.ops.lengths import norm
from vertex_softmax.ops.propagation.norms import inner, normalized
from vertex_softmax.ops.propagation.products import matrix_product
from vertex_softmax.ops.propagation.rows import attended
from vertex_softmax.ops.reaches import reach_of
from vertex_softmax.ops.unknowns import InputUnknowns, Pairs, Unknowns
from vertex_softmax.ops.zonotope import RowShape, Zonotope

TINY = [(torch.float64, 1e-80), (torch.float64, 1e-140), (torch.float32, 1e-12), (torch.float64, 1.0)]


def plain(centre: Tensor, blocks: dict[Unknowns, Tensor]) -> Zonotope:
    return Zonotope(centre, blocks, None, torch.zeros_like(centre))


def errors_of(found: Zonotope, known: list[Unknowns]) -> Tensor:
    """How far each number may be from what is known of it."""
    new = {u: columns for u, columns in found.blocks.items() if u not in known}
    return sum((reach_of(u, columns) for u, columns in new.items()), found.loose)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("score", [0.0, 1.0, 3.0])
def test_a_key_that_does_not_move_by_itself_is_moved_by_the_others(score: float, dtype: torch.dtype) -> None:
    """Two keys move against each other, so that the mean of all scores and the first key's t are 0 throughout."""
    unknowns = Unknowns("input")
    columns = torch.tensor([0.0, 2.0, -2.0], dtype=dtype).reshape(1, 1, 1, 1, 3)
    scores = plain(torch.tensor([[[score, 0.0, 0.0]]], dtype=dtype), {unknowns: columns})
    moves = torch.tensor([0.5, 0.0, 0.0], dtype=dtype).reshape(1, 1, 1, 3, 1)
    other = Unknowns("other")
    for blocks in ({}, {other: moves}):
        values = plain(torch.tensor([[[1.0], [0.0], [0.0]]], dtype=dtype), blocks)
        found = attended(scores, scores.centre, values, "rows")
        most = errors_of(found, [unknowns, other]) + 1e-5 * (dtype == torch.float32)
        for xi in (-1.0, 0.0, 0.4, 1.0):
            for nu in (-1.0, 1.0):
                value = (scores.centre + xi * columns[:, 0, 0]).softmax(-1) @ (
                    values.centre + nu * bool(blocks) * moves[:, 0, 0]
                )
                known = found.centre + xi * found.blocks[unknowns][:, 0, 0]
                if blocks:
                    known = known + nu * found.blocks[other][:, 0, 0]
                assert bool(((value - known).abs() <= most).all())


@pytest.mark.parametrize(("dtype", "size"), TINY)
def test_the_norm_of_tiny_rows_has_the_product_of_what_is_linear_and_the_rest(dtype: torch.dtype, size: float) -> None:
    """ℓ and r lie across c, both in the same direction: along c the norm has −(ℓ r + r²/2) / |c|²."""
    inputs, other = InputUnknowns("input", 2, Unknowns("input"), Pairs("input", 2)), Unknowns("other")
    line = size * torch.tensor([[0.0, 0.1], [0.0, 0.0]], dtype=torch.float64).reshape(1, 2, 1, 1, 2)
    rest = size * torch.tensor([0.0, 0.03], dtype=torch.float64).reshape(1, 1, 1, 1, 2)
    centre = size * torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    y = plain(centre.to(dtype), {inputs: line.to(dtype), other: rest.to(dtype)})
    found = normalized(y, 0.0, "norm")
    known: list[Unknowns] = [inputs, inputs.squares, inputs.pairs, other]
    most = errors_of(found, known).double() + (1e-5 if dtype == torch.float32 else 1e-12)
    for xi in (-1.0, -0.5, 0.5, 1.0):
        for nu in (-1.0, 1.0):
            y_at = (centre + xi * line[:, 0, 0] + nu * rest[:, 0, 0]) / size
            value = y_at / y_at.square().mean(-1, keepdim=True).sqrt()
            said = found.centre.double() + xi * found.blocks[inputs][:, 0, 0] + nu * found.blocks[other][:, 0, 0]
            if inputs.squares in found.blocks:
                said = said + (2 * xi * xi - 1) * found.blocks[inputs.squares][:, 0, 0]
                said = said - found.blocks[inputs.squares][:, 1, 0]  # the other input stays at 0
            assert bool(((value - said).abs() <= most).all())


@pytest.mark.parametrize(("dtype", "size"), TINY)
def test_the_product_of_two_tiny_rows_is_not_nothing(dtype: torch.dtype, size: float) -> None:
    shape = RowShape(size * torch.eye(3, dtype=dtype), torch.tensor(size, dtype=dtype))
    assert float(inner(shape, shape).double()) >= (1 - 1e-6) * size**2


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1e-160), (torch.float64, 1e-250), (torch.float32, 1e-31)])
def test_lengths_whose_squares_underflow_are_exact(dtype: torch.dtype, size: float) -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3.0 / size, 4.0 / size]], dtype=torch.float64) * size
    found = norm(x.to(dtype), (1,)).double()
    wanted = torch.tensor([5 * size, 0.0, 5.0], dtype=torch.float64)
    assert bool(((found - wanted).abs() <= 1e-5 * wanted).all())


@pytest.mark.parametrize(("dtype", "small", "large"), [(torch.float64, 1e-240, 1e100), (torch.float32, 1e-32, 1e10)])
def test_the_product_of_tiny_and_large_deviations_is_not_nothing(
    dtype: torch.dtype, small: float, large: float
) -> None:
    """Σ_k ξ_k s · ξ'_k l over four k: the value at a corner is 4 s l."""
    x, y = (torch.eye(4, dtype=torch.float64) * size for size in (small, large))
    left = plain(torch.zeros(1, 1, 4, dtype=dtype), {Unknowns("x"): x.to(dtype).reshape(1, 4, 1, 1, 4)})
    right = plain(torch.zeros(1, 4, 1, dtype=dtype), {Unknowns("y"): y.to(dtype).reshape(1, 4, 1, 4, 1)})
    assert float(matrix_product(left, right).radius / (4 * small * large)) >= 1 - 1e-5
