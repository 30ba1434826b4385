"""The lowered network computes what the graph computes, with the same numbers; what it cannot have is refused."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.certificate.exact import Array, Network, floats
from tests.certificate.made import NETS, boxed, draw, lowered_file, made
from tests.graph.models import FAMILIES
from tests.ops.cases import CASES, Case, boxes, points
from vertex_softmax.certificate.checker.network import ARRAYS, PLAIN
from vertex_softmax.certificate.lowering import lowered, require_lowerable
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.ops import activations, elementwise, linear, shape
from vertex_softmax.ops.contract import Op
from vertex_softmax.ops.fields import moved
from vertex_softmax.ops.registry import OPS
from vertex_softmax.ops.rounding import Round

REFUSED = {"Softplus-with a step"}
"""Cases that are refused: the checker has softplus with the threshold of torch alone."""
MORE = [Case(activations.Softplus(threshold=20.0), ((3, 2),), size=lambda x: 30 * x, name="of torch")]


def refused(case: Case) -> bool:
    return case.label in REFUSED


ALONE = [case for case in [*CASES, *MORE] if not refused(case)]


def alone(case: Case) -> Graph:
    """A graph of one op, whose inputs are slices of one flat input, each through a reshape."""
    sizes = [int(np.prod(s)) for s in case.shapes]
    start = build.source((sum(sizes),))
    ends = np.cumsum([0, *sizes])
    parts = [
        build.reshape(build.slice_(start, 0, int(a), int(b), 1, f"part {k}"), dims, f"shaped {k}")
        for k, (a, b, dims) in enumerate(zip(ends, ends[1:], case.shapes, strict=False))
    ]
    return Graph(start, Node("op", case.op, tuple(parts), case.out))


def middle(balls: Array) -> Array:
    return np.array([float(v) for v in balls.ravel()]).reshape(balls.shape)


def assert_same(graph: Graph, x: Tensor, tolerance: float = 1e-9) -> None:
    """graph.evaluate, the lowered network in floats, and (at a few points) in Arb."""
    file = lowered_file(graph)
    with torch.no_grad():
        wanted = graph.evaluate(x).reshape(len(x), -1).numpy()
    found = floats(file.header, file.arrays, x.numpy())[-1]
    assert found.shape[1:] == graph.output.shape
    size = 1 + np.abs(wanted).max(initial=0.0)
    assert np.abs(found.reshape(wanted.shape) - wanted).max() <= tolerance * size
    network = Network(file.header, file.arrays)
    for k in range(min(3, len(x))):
        assert np.abs(middle(network.values(x[k].numpy())[-1]).ravel() - wanted[k]).max() <= tolerance * size


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.label)
def test_one_op(case: Case) -> None:
    graph = alone(case)
    for kind in ("ordinary", "positive", "point"):
        some = [x[:, 0].reshape(9, -1) for x in points(boxes(case, kind), 9)]
        assert_same(graph, torch.cat(some, 1))


def test_every_op_is_lowered_or_refused() -> None:
    tried = {type(case.op).__name__ for case in CASES}
    assert set(OPS) - {"Input", "Constant"} <= tried
    for case in CASES:
        if refused(case):
            with pytest.raises(UnsupportedModelError, match=type(case.op).__name__):
                lowered(alone(case))


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.label)
def test_the_checker_knows_every_op(case: Case) -> None:
    assert {entry["op"] for entry in lowered(alone(case)).entries} <= set(PLAIN) | set(ARRAYS)


@pytest.mark.parametrize("name", NETS)
def test_whole_networks(name: str) -> None:
    net = made(name)
    t = torch.from_numpy(np.random.default_rng(0).random((16, *net.lower.shape)))
    lower, upper = torch.from_numpy(net.lower), torch.from_numpy(net.upper)
    assert_same(net.graph, lower + (upper - lower) * t)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_families_of_models(name: str) -> None:
    from vertex_softmax.graph.from_torch.importer import from_torch
    from vertex_softmax.graph.simplify import simplify

    module, x, arguments = FAMILIES[name]()
    graph = simplify(from_torch(module, x, **arguments))
    assert_same(graph, draw(8, *graph.input.shape, seed=0))


def numbers(graph: Graph) -> set[float]:
    """All numbers of a graph's ops, in double precision, besides those that moves and sums need."""
    found = {0.0, 1.0, -1.0}
    for node in graph.nodes():
        for field in dataclasses.fields(node.op):  # type: ignore[arg-type]
            value = getattr(node.op, field.name)
            found |= {value, -value} if isinstance(node.op, Round) and isinstance(value, float) else set()
            if isinstance(value, Tensor) and value.is_floating_point():
                found |= set(value.double().reshape(-1).tolist())
    return found


def assert_nothing_rounded(graph: Graph) -> None:
    found = lowered(graph)
    known = numbers(graph)
    for name, value in found.arrays.items():
        if value.dtype.kind == "f":
            assert set(np.asarray(value, dtype=np.float64).ravel().tolist()) <= known, name


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.label)
def test_no_number_is_rounded(case: Case) -> None:
    """Every number of the lowered network is one of the graph's."""
    assert_nothing_rounded(alone(case))
    single = dataclasses.replace(case, op=moved(case.op, torch.float32, torch.device("cpu")))
    assert_nothing_rounded(alone(single))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("channels", [1, 16])
def test_no_number_of_a_convolution_is_rounded(dtype: torch.dtype, channels: int) -> None:
    """Three by three with stride 1, where libraries have methods that add and subtract the weights."""
    start = build.source((1, channels, 8, 8))
    weight = draw(channels, channels, 3, 3, seed=1).to(dtype)
    op = linear.Convolution(weight, draw(channels, seed=2).to(dtype), (8, 8), (1, 1), (1, 1), (1, 1), 1)
    assert_nothing_rounded(Graph(start, Node("conv", op, (start,), (1, channels, 8, 8))))


def test_numbers_are_the_same_bits() -> None:
    """Also where a graph is in single precision: the doubles are those numbers, not others near them."""
    start = build.source((3,))
    weight = draw(2, 3, seed=1).float()
    found = lowered(Graph(start, build.affine(start, weight, None, "out")))
    (value,) = (v for v in found.arrays.values() if v.dtype.kind == "f")
    assert value.dtype == np.float64
    assert np.array_equal(value, weight.double().T.numpy())


class Sine(Op):
    """An op that nobody knows."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].sin()


class Cosine(elementwise.Elementwise):
    """A function of one number that nobody knows."""

    def evaluate(self, *xs: Tensor) -> Tensor:
        return xs[0].cos()


@pytest.mark.parametrize("op", [dataclasses.dataclass(frozen=True)(kind)() for kind in (Sine, Cosine)])
def test_what_the_checker_does_not_have_is_refused_by_name(op: Op) -> None:
    start = build.source((2, 3))
    x = build.apply(elementwise.Relu(), start, name="before")
    node = Node("encoder.layer 7", op, (x,), tuple(op.evaluate(torch.zeros(x.shape)).shape))
    graph = Graph(start, build.affine(node, draw(2, node.shape[-1], seed=0), None, "out"))
    with pytest.raises(UnsupportedModelError) as error:
        lowered(graph)
    with pytest.raises(UnsupportedModelError, match=re.escape(str(error.value))):
        require_lowerable(graph)
    assert type(op).__name__ in str(error.value)
    assert "encoder.layer 7" in str(error.value)


def test_what_is_too_large_is_refused() -> None:
    start = build.source((1, 1, 100, 100))
    op = linear.Convolution(torch.ones(1, 1, 3, 3), None, (100, 100), (1, 1), (1, 1), (1, 1), 1)
    graph = Graph(start, Node("wide", op, (start,), (1, 1, 100, 100)))
    for way in (lowered, require_lowerable):
        with pytest.raises(UnsupportedModelError, match="large"):
            way(graph)


def test_the_output_is_last_wherever_it_was() -> None:
    """The output may be the input, a constant, or used by nothing after it."""
    start = build.source((2, 3))
    constant = Node("constant", Constant(draw(4, seed=1)), (), (4,))
    moved = Node("moved", shape.Permute((1, 0)), (start,), (3, 2))
    for graph in (Graph(start, start), Graph(start, constant), Graph(start, moved)):
        found = lowered(graph)
        assert tuple(found.entries[-1]["shape"]) == graph.output.shape
        assert found.number[graph.output] == len(found.entries) - 1
        assert found.entries[0]["op"] == "Input"
        assert_same(graph, draw(3, 2, 3, seed=2))


def test_an_output_that_is_used_on_the_way() -> None:
    start = build.source((3,))
    x = build.apply(elementwise.Relu(), start, name="relu")
    net = boxed(Graph(start, x), 0.3)
    assert_same(net.graph, draw(5, 3, seed=3))
