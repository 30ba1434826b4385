"""Products of inputs so small that the square of their scale underflows are still in the ellipsoid of a row.

They once vanished there, and a box was [0, 0] where the value was 4.
"""

from __future__ import annotations

import pytest
import torch

from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotopes import boxes_by_zonotopes
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops.unknowns import Pairs
from vertex_softmax.ops.zonotope import Zonotope
from vertex_softmax.sets.region import BoxRegion


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1e-170), (torch.float32, 1e-24)])
def test_the_row_shape_of_tiny_products_is_not_nothing(dtype: torch.dtype, size: float) -> None:
    zero = torch.zeros(1, 2, dtype=dtype)
    shape = Zonotope(zero, {Pairs("p", 3): torch.full((1, 1, 3, 2), size, dtype=dtype)}, None, zero).row_shape
    radius = shape.size.sqrt() * shape.matrix[0, 0, 0].sqrt()
    assert float(radius) >= size * 3**0.5 * (1 - 1e-6)  # reached at ξ = (1, 1, 1)


@pytest.mark.parametrize("size", [1e-12, 1e-15])
def test_the_box_of_a_matrix_product_of_tiny_products_in_float32_holds_its_values(size: float) -> None:
    """(sx · sx') @ xᵀ / s², whose value at a corner is 4."""
    start = build.source((2, 4))
    number = build.constant(torch.tensor(size))
    x = build.multiply(start, number, "small")
    turned = build.affine(x, torch.eye(4).roll(1, 0), torch.zeros(4), "turned")
    product = build.matmul(build.multiply(x, turned, "products"), build.transpose(start, 0, 1, "columns"), "product")
    back = build.constant(torch.tensor(1 / size))
    graph = Graph(start, build.multiply(build.multiply(product, back, "half way"), back, "out"))
    one = torch.ones(1, 2, 4)
    box = boxes_by_zonotopes(Question.over(graph, BoxRegion(-one, one))).intervals[graph.output]
    value = graph.values(one)[graph.output]
    assert bool((value <= box.upper * (1 + 1e-5)).all())
