"""Extreme numbers through the whole path: every method is sound, in its order, and has a bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.extremes.checks import QUICK, check_all, check_sound, labels_of, watched
from tests.extremes.networks import inputs, network
from tests.slowly import few
from vertex_lab.fuzz.case import FLOAT32, FLOAT64
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.sets import LinfBall

pytestmark = pytest.mark.usefixtures("exported_once", "zonotopes_once")

Regime = tuple[dict[str, Any], float]
NORM = {"norm": 1e-5}
GELU = {"activation": "gelu", **NORM}
REGIMES: dict[str, Regime] = {
    "scores of 1e4": ({"scores": 2e3}, 1e-3),
    "scores of 1e4, tiny set": ({"scores": 2e3, **NORM}, 1e-6),
    "scores of 1e4, wide set": ({"scores": 2e3}, 0.05),
    "scores of 1e4, norm": ({"scores": 2e3, **NORM}, 0.05),
    "scores of 1e4, gelu": ({"scores": 2e3, **GELU}, 1e-3),
    "scores of 1e7": ({"scores": 1e6}, 1e-3),
    "values of 1e6": ({"values": 1e6}, 1e-3),
    "values of 1e6, two blocks": ({"values": 1e6, "blocks": 2, **NORM}, 1e-3),
    "values of 1e6, gelu": ({"values": 1e6, **GELU}, 1e-3),
    "values of 1e6, classifier of 1e-6": ({"values": 1e6, "head": 1e-6}, 0.01),
    "values of 1e-6, classifier of 1e6": ({"values": 1e-6, "head": 1e6, "blocks": 2}, 0.01),
    "scores of 1e-6": ({"scores": 1e-6}, 1e-3),
    "values of 1e-6": ({"values": 1e-6, **GELU}, 1e-3),
    "classifier of 1e6": ({"head": 1e6, **NORM}, 1e-3),
    "denormal scores": ({"scores": 1e-310}, 0.1),
    "denormal values": ({"values": 1e-310}, 0.1),
    "denormal classifier": ({"head": 1e-310}, 0.1),
    "one token": ({"tokens": 1, **NORM}, 0.1),
    "one key seen": ({"seen": (2,)}, 0.1),
    "every token three times": ({"repeats": 3}, 0.1),
    "saturated by 10": ({**NORM}, 10.0),
    "saturated by 1e3, gelu": ({**GELU}, 1e3),
    "saturated by 1e6": ({}, 1e6),
    "saturated by 1e6, tanh": ({"activation": "tanh", **NORM}, 1e6),
    "saturated by 1e100": ({**NORM}, 1e100),
}  # fmt: skip
NOW = (
    "scores of 1e4", "values of 1e6", "every token three times", "saturated by 1e100",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", few(REGIMES, lambda name: name in NOW))
def test_every_method_is_sound_and_in_order(name: str) -> None:
    shape, radius = REGIMES[name]
    net = network(**shape)
    found = check_all(net, LinfBall(inputs(net), radius), single=("crown", "joint"))
    for method in ("hybrid", "joint", "bab"):  # these are not below intervals
        below = found["ibp"].lower - found[method].lower
        assert (below.nan_to_num(nan=0.0) <= 1e-9 * found[method].lower.abs().nan_to_num(posinf=0.0)).all(), method


@pytest.mark.parametrize("batch", few((1, 2, 4), lambda batch: batch == 2))
def test_one_class_more_than_inputs(batch: int) -> None:
    """And as many, and one less: no dimension is taken for another."""
    for classes in {max(2, batch - 1), max(2, batch), batch + 1}:
        net = network(classes=classes)
        found = check_all(net, LinfBall(inputs(net, batch), 0.01), methods=("ibp", "crown", "vertex", "joint"))
        assert found["joint"].lower.shape == (batch, classes)
        assert found["joint"].certified.any()


def test_equal_tokens_that_move_apart() -> None:
    """Ties in every score: sound, and a permutation of the tokens changes nothing."""
    net = network()
    x = inputs(net)[:, :1].expand(-1, 4, -1).contiguous()
    radius = torch.rand(2, 4, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64).expand_as(x) * 0.1
    one = check_all(net, LinfBall(x, radius), methods=("ibp", "crown", "vertex", "hybrid", "joint"))
    turned = LinfBall(x, radius[:, [2, 0, 3, 1]])
    graph = load(net, turned)
    for method, answer in one.items():
        if method != "joint":  # whose ascent rounds otherwise
            other = certify(graph, turned, labels_of(net, turned), method)
            torch.testing.assert_close(other.lower, answer.lower, rtol=1e-9, atol=1e-9)


SCALES = {torch.float32: (1e14, 1e18, 1e30), torch.float64: (1e100, 1e104, 1e150, 1e200)}


class Cubed(nn.Module):
    """LayerNorm, then layers whose numbers are ordinary again."""

    def __init__(self, approximate: str | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        first = nn.LayerNorm(6) if approximate is None else nn.Linear(6, 6)
        second = nn.ReLU() if approximate is None else nn.GELU(approximate=approximate)
        self.layers = nn.Sequential(first, nn.Linear(6, 4), second, nn.Linear(4, 3)).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


CUBED = [(kind, dtype) for kind in (None, "tanh", "none") for dtype in SCALES]


@pytest.mark.parametrize(("kind", "dtype"), few(CUBED, lambda kind, _: kind is None))
def test_powers_that_overflow(kind: str | None, dtype: torch.dtype) -> None:
    """σ³ overflows where σ² does not: a tangent of 1/σ without its slope was above 1/σ."""
    net = Cubed(kind).eval()
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    graph = load(net, LinfBall(x, 0.1))
    for scale in SCALES[dtype]:
        for radius in (1e-4, 0.3):
            ball = LinfBall(x * scale, radius * scale)
            labels = labels_of(net, ball)
            at = watched(net, graph, ball, labels)
            at.noise.zero_()  # the network's own numbers are of order 1, or of the input's, as it is
            for method in ("ibp", "crown", "joint"):
                found = certify(graph, ball, labels, method, dtype=dtype, options=QUICK)
                check_sound(net, found, at, labels, FLOAT32 if dtype == torch.float32 else FLOAT64)
                if kind is not None:
                    assert not found.lower.isnan().any(), (scale, radius, method)


@pytest.mark.parametrize("offset", few((0.0, 3.0), lambda offset: offset > 0))
def test_layer_norm_of_a_constant_vector(offset: float) -> None:
    """Variance 0: with ε there are bounds, exact at the point; without, `unknown` and why, or no model.

    It is refused where x − mean is not 0 in the graph's order of sums, as it is in the module's: that is the machine's.
    """
    x = torch.full((2, 4, 6), offset, dtype=torch.float64)
    net = network(norm=1e-5)
    check_all(net, LinfBall(x, 1e-6), methods=("ibp", "crown", "joint"))
    for method, found in check_all(net, LinfBall(x, 0.0), methods=("ibp", "crown", "joint")).items():
        torch.testing.assert_close(found.lower, found.clean, rtol=1e-4 if method == "ibp" else 1e-9, atol=0)
    try:
        bare = load(network(norm=0.0), LinfBall(x, 0.0))
    except UnsupportedModelError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert "NaN or infinity" in said
        return
    for radius in (0.0, 1e-3):
        for method in ("ibp", "crown", "joint", "bab"):
            found = certify(bare, LinfBall(x, radius), 0, method, options=QUICK)
            assert found.verdict is Verdict.UNKNOWN
            assert "NaN at" in found.reasons[0]
