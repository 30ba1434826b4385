"""A graph's own precision and place: those that `to` gave its constants."""

from __future__ import annotations

import pytest
import torch

from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph


def taken(*, weighed: bool) -> Graph:
    """Two of three inputs, by an index; if weighed, then their sum."""
    x = build.source((3,))
    some = build.take(x, 0, torch.tensor([2, 0]), "some")
    return Graph(x, build.affine(some, torch.ones(1, 2).double(), None, "sum") if weighed else some)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_is_that_of_the_weights_and_not_of_an_index_before_them(dtype: torch.dtype) -> None:
    graph = taken(weighed=True).to(dtype)
    assert [value.dtype for value in graph.constants()] == [torch.int64, dtype]
    assert graph.dtype == dtype
    assert graph.device == torch.device("cpu")
    assert taken(weighed=True).to(dtype, "meta").device == torch.device("meta")


def test_without_weights_it_is_float64() -> None:
    for graph in (taken(weighed=False), Graph(x := build.source((2,)), x)):
        assert graph.dtype == torch.float64
        assert graph.to(torch.float32).device == torch.device("cpu")


def test_the_repr_is_one_line() -> None:
    graph = taken(weighed=False)
    assert repr(graph) == f"Graph({len(graph.nodes())} nodes, [3] → [2])"
