"""Where attention is something simpler, the bounds are those of the simpler network."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.extremes.checks import QUICK, check_all
from tests.extremes.networks import Network, inputs, network
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.sets import LinfBall

PLAIN = ("ibp", "crown", "vertex", "hybrid")
"""Methods that do not climb: the same to rounding."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@functools.cache
def graph_of(net: Network) -> Graph:
    return load(net, LinfBall(inputs(net), 0.1))


def bounds(net: Network, method: str, radius: float = 0.1) -> torch.Tensor:
    return certify(graph_of(net), LinfBall(inputs(net), radius), 0, method, options=QUICK).lower[:, 1:]


PAIRS = {
    "one token": ({"tokens": 1}, {"tokens": 1, "attention": "none"}),
    "one key seen": ({"seen": (2,)}, {"seen": (2,), "attention": "none"}),
    "constant scores": ({"scores": 0.0}, {"scores": 0.0, "attention": "constant"}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_bounds_of_the_network_without_attention(name: str) -> None:
    """Linear bounds are the same. Intervals are no better: without attention more linear maps can be made one."""
    one, other = (network(**shape) for shape in PAIRS[name])
    x = inputs(one)
    torch.testing.assert_close(one(x), other(x), rtol=1e-12, atol=1e-12)
    for method in ("crown", "hybrid"):
        torch.testing.assert_close(bounds(one, method), bounds(other, method), rtol=1e-9, atol=1e-9)
    assert (bounds(one, "joint") >= bounds(other, "crown") - 1e-9).all()
    assert (bounds(one, "ibp") <= bounds(other, "ibp") + 1e-9).all()


def test_keys_that_are_there_twice() -> None:
    """The optimum over a score box puts twins at the same end, so intervals lose nothing by them."""
    one, twice = network(), network(repeats=2)
    x = inputs(one)
    torch.testing.assert_close(one(x), twice(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(bounds(one, "ibp"), bounds(twice, "ibp"), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bounds(one, "vertex"), bounds(twice, "vertex"), rtol=1e-9, atol=1e-9)


def test_saturated_rows_stay_in_the_hull_of_the_values() -> None:
    """A softmax row is a mean of values whatever the scores: the bound does not grow with them."""
    one, other = network(scores=1e3), network(scores=1e8)
    for method in PLAIN:
        wide, wider = bounds(one, method, 0.5), bounds(other, method, 0.5)
        assert wider.isfinite().all()
        assert (wider >= 1.5 * wide.clamp(max=0) - 1).all(), method


@pytest.mark.parametrize("tokens", [24, *(pytest.param(tokens, marks=pytest.mark.slow) for tokens in (48, 256))])
def test_many_tokens(tokens: int) -> None:
    """Sound and in order."""
    net = network(tokens=tokens, dim=4, heads=1, mlp=4)
    methods = METHODS.keys() - {"bab", "joint", "alpha-crown"} if tokens > 64 else METHODS.keys() - {"bab"}
    check_all(net, LinfBall(inputs(net, 1), 1e-3), methods=[m for m in METHODS if m in methods])


@pytest.mark.parametrize("method", ["ibp", pytest.param("vertex", marks=pytest.mark.slow)])
def test_a_thousand_tokens_in_little_memory(method: str) -> None:
    """With scores by intervals, under two GiB that are promised; no sampled margin is below the bound."""
    net = network(tokens=1024, dim=4, heads=1, mlp=4)
    box = LinfBall(inputs(net, 1), 1e-3)
    options = Options(scores="interval", memory=Memory(total=2 << 30))
    found = certify(load(net, box), box, 0, method, options=options).lower[:, 1:]
    for way in (-1.0, 0.0, 1.0, torch.randn(box.shape, generator=torch.Generator().manual_seed(0)).sign()):
        with torch.no_grad():
            y = net(box.centre + way * 0.999e-3)
        assert (found <= y[:, :1] - y[:, 1:] + 1e-9).all()
    assert found.isfinite().all()
