from __future__ import annotations

import pytest
import torch

from vertex_softmax.ops.tensors import times


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 0, 4), (0, 3, 4), (2, 3, 5, 4)])
def test_one_product_of_all_rows_is_the_product(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(*shape, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    torch.testing.assert_close(times(x, weight), x @ weight)


def test_tensors_whose_strides_cannot_be_joined() -> None:
    x, weight = torch.randn(2, 3, 5, 4, dtype=torch.float64).transpose(1, 2), torch.randn(4, 6, dtype=torch.float64)
    wide = x[:, :1].expand(-1, 7, -1, -1)
    torch.testing.assert_close(times(x, weight), x @ weight)
    torch.testing.assert_close(times(wide, weight.flip(0)), wide @ weight.flip(0))


def test_a_weight_of_several_dimensions_broadcasts() -> None:
    x, weight = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(times(x, weight), x @ weight)
