"""Sizes of results from shapes alone: never too small, exact for products and elementwise ops, and no slow imports."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.ops import bilinear, linear
from vertex_softmax.ops.contract import Op
from vertex_softmax.ops.softmax import Softmax

sizes = st.integers(1, 4)
leads = st.lists(sizes, max_size=2).map(tuple)


def evaluated(op: Op, *shapes: tuple[int, ...]) -> tuple[int, int]:
    """The size that is computed from the shapes, and that of the result."""
    result = op.evaluate(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))
    return build._most_numbers(op, shapes), result.numel()


@given(lead=leads, weight=leads, n=sizes, k=sizes, m=sizes, bias=st.booleans())
def test_products_with_a_constant(
    lead: tuple[int, ...], weight: tuple[int, ...], n: int, k: int, m: int, bias: bool
) -> None:
    """Exact if only one factor has leading dimensions; never less than the result."""
    right = linear.Linear(torch.zeros(*weight, k, m).double(), torch.zeros(m).double() if bias else None)
    left = linear.LeftLinear(torch.zeros(*weight, n, k).double())
    for op, shape in ((right, (*lead, n, k)), (left, (*lead, k, m))):
        try:
            most, actual = evaluated(op, shape)
        except RuntimeError:  # the leading dimensions do not fit each other
            continue
        assert most >= actual
        if not lead or not weight:
            assert most == actual


@given(lead=leads, n=sizes, k=sizes, m=sizes)
def test_products_of_two_nodes_and_elementwise_ops_are_exact(lead: tuple[int, ...], n: int, k: int, m: int) -> None:
    most, actual = evaluated(bilinear.MatMul(), (*lead, n, k), (*lead, k, m))
    assert most == actual
    shape = (*lead, n, k)
    row, mask = torch.ones(k).double(), torch.zeros(n, k, dtype=torch.bool)
    for op in (linear.Scale(row), linear.Shift(row), linear.Divide.by(row), Softmax(mask), Softmax()):
        assert evaluated(op, shape) == (math.prod(shape),) * 2
    for op in (linear.Add(), linear.Subtract(), bilinear.Multiply()):
        assert evaluated(op, shape, shape) == (math.prod(shape),) * 2


def test_no_inner_size_and_no_numbers() -> None:
    """A product over nothing has numbers, although no factor has any."""
    assert evaluated(linear.Linear(torch.zeros(0, 7).double()), (5, 0)) == (35, 35)
    assert evaluated(linear.LeftLinear(torch.zeros(5, 0).double()), (0, 7)) == (35, 35)
    assert evaluated(bilinear.MatMul(), (5, 0), (0, 7)) == (35, 35)


def test_what_is_too_large_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "LARGEST", 20)
    x = build.source((5, 2))
    assert build.matmul(x, build.constant(torch.ones(2, 4)), "fits").shape == (5, 4)
    with pytest.raises(InvalidValueError, match=r"large: a tensor of shape \(5, 5\); at most 20 numbers"):
        build.matmul(x, build.constant(torch.ones(2, 5)), "large")
    with pytest.raises(InvalidValueError, match=r"shapes \(5, 2\) and \(5, 3\) do not broadcast"):
        build.add(x, build.source((5, 3)), "sum")
