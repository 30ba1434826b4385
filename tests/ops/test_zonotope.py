from __future__ import annotations

import torch

from vertex_softmax.ops.unknowns import Unknowns
from vertex_softmax.ops.zonotope import Zonotope


def test_the_ellipsoid_of_a_row_pays_for_rounding_in_every_column() -> None:
    """A sum of P products may lose P ε of its terms, in the worst order; the matrix is above the exact one by that."""
    count, d = 3000, 2
    torch.manual_seed(0)
    columns = torch.randn(1, count, 1, 1, d)
    zero = torch.zeros(1, 1, d)
    shape = Zonotope(zero, {Unknowns("x"): columns}, None, zero).row_shape
    exact = columns.double().flatten(0, 3)
    matrix = (exact.mT / exact.norm(dim=1)) @ exact
    above = torch.linalg.eigvalsh(shape.matrix[0, 0].double() - matrix)
    least = count * torch.finfo(torch.float32).eps * float(matrix.trace())
    assert float(above.min()) >= 0.9 * least
