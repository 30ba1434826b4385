"""ε = 0: the bound is the clean margin, to rounding, by every method on every family of models.

How near, relative to the largest output: crown, alpha-crown, hybrid, joint and bab within 64 ulps (7 at most were
seen), vertex within 1e-9 (3e-11), ibp within 1e-5 (1e-7). The last two pass boxes on, each rounded outward by 1e-13 of
all that was added up to get it, and what comes after may enlarge that; linear bounds are rounded once.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.extremes.checks import QUICK
from tests.extremes.networks import inputs, network
from tests.graph.models import FAMILIES, imported
from tests.slowly import few
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.runs.certify import bound, certify, load
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.sets import Box, LinfBall

NEAR = dict.fromkeys(METHODS, 64 * 2.0 ** (-52)) | {"vertex": 1e-9, "ibp": 1e-5}
NOW = ("multihead_masked", "sdpa_float_mask", "attention_pooling", "decoder_rms_norm")
LONGEST = ("joint", "bab")


def now(name: str, method: str) -> bool:
    return name in (NOW[:2] if method in LONGEST else NOW)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def point_of(name: str) -> torch.Tensor:
    (_, x, arguments), _, graph = imported(name)
    if arguments.get("perturb") == "embedding":
        drawn = torch.rand(graph.input.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return drawn.unsqueeze(0)
    return x.double().reshape(1, *graph.input.shape)


@pytest.mark.parametrize(("name", "method"), few(itertools.product(FAMILIES, METHODS), now))
def test_at_a_point_the_bounds_are_the_output(name: str, method: str) -> None:
    graph, x = imported(name)[2], point_of(name)
    with torch.no_grad():
        out = graph.evaluate(x)
    low, high = bound(graph, Box(x, x), method, options=QUICK)
    most = max(1.0, float(out.abs().max())) * NEAR[method]
    assert float((low - out).abs().max()) <= most
    assert float((high - out).abs().max()) <= most


ZOO = {
    "one block": {"patch": 4},
    "no mlp": {"patch": 4, "mlp": 0, "residual": False},
    "two blocks": {"patch": 4, "blocks": 2, "norm": "layer", "activation": "gelu", "pool": "class"},
}


@pytest.mark.parametrize("name", few(ZOO, lambda name: name != "two blocks"))
def test_the_margins_of_the_zoo(name: str) -> None:
    net = PatchTransformer(**ZOO[name]).double().eval()  # type: ignore[arg-type]
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        labels = net(x).argmax(-1)
    graph = load(net, LinfBall(x, 0.0))
    for method in METHODS:
        found = certify(graph, LinfBall(x, 0.0), labels, method, options=QUICK)
        assert found.certified.all()
        torch.testing.assert_close(found.lower, found.clean, rtol=0, atol=10 * NEAR[method])


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_large_and_small_weights(scale: float) -> None:
    net = network(scores=scale, values=1 / scale, head=scale)
    x = inputs(net)
    graph = load(net, LinfBall(x, 0.0))
    for method in METHODS:
        found = certify(graph, LinfBall(x, 0.0), 0, method, options=QUICK)
        size = float(found.clean[:, 1:].abs().max()) + 1
        torch.testing.assert_close(found.lower, found.clean, rtol=0, atol=10 * size * NEAR[method])
