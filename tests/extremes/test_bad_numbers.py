"""NaN, infinity, numbers that do not fit: errors that say what and where, or `unknown`; never a verdict."""

from __future__ import annotations

import pytest
import torch

from tests.extremes.checks import QUICK
from tests.extremes.networks import inputs, network
from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.sets import Box, LinfBall

NET = network()
X = inputs(NET)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_inputs_that_are_no_numbers(bad: float) -> None:
    x = X.clone()
    x[1, 2, 3] = bad
    with pytest.raises(InvalidValueError, match=r"index \(1, 2, 3\)"):
        LinfBall(x, 0.1)
    with pytest.raises(InvalidValueError, match=r"lower is .* at index \(1, 2, 3\)"):
        Box(x, x)
    with pytest.raises(InvalidValueError, match="eps"):
        LinfBall(X, bad)


def test_a_ball_beyond_all_numbers() -> None:
    with pytest.raises(InvalidValueError, match="overflows at index"):
        LinfBall(torch.full_like(X, 1.7e308), 1e308)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers(bad: float) -> None:
    net = network()
    with torch.no_grad():
        net.offset[0] = bad
    with pytest.raises(InvalidValueError, match="parameter offset holds NaN or infinity"):
        certify(net, LinfBall(X, 0.1), 0)


def test_weights_beyond_what_is_no_mask() -> None:
    with pytest.raises(UnsupportedModelError, match="beyond 1e\\+30"):
        certify(network(values=1e150), LinfBall(X, 0.1), 0)


def test_numbers_that_overflow_on_the_way() -> None:
    """Inputs of 1e300 in float64, of 1e38 in float32, and what float32 does not have: `unknown`, with the node."""
    graph = load(NET, LinfBall(X, 0.1))
    for scale, dtype in ((1e300, torch.float64), (1e38, torch.float32), (1e60, torch.float32)):
        for method in ("ibp", "crown", "vertex", "joint", "bab"):
            found = certify(graph, LinfBall(X * scale, 0.01 * scale), 0, method, dtype=dtype, options=QUICK)
            assert all(verdict is not Verdict.VERIFIED for verdict in found.verdicts)
            for verdict, reason in zip(found.verdicts, found.reasons, strict=True):
                assert verdict is Verdict.FALSIFIED or "infinite" in reason or "NaN" in reason or "finite" in reason


def test_float32_inputs_of_1e30_and_denormals() -> None:
    """No product overflows in float64: bounds, and in float32 `unknown` or a sound bound."""
    graph = load(NET, LinfBall(X, 0.1))
    with torch.no_grad():
        for scale in (1e30, 1e-40):
            x = (X * scale).float()
            labels = NET(x.double()).argmax(-1)
            found = certify(graph, LinfBall(x, 1e-3 * scale), labels, "crown")
            assert found.certified.all()
            assert not found.lower.isnan().any()
            rough = certify(graph, LinfBall(x, 1e-3 * scale), labels, "crown", dtype=torch.float32)
            assert (rough.lower.nan_to_num(nan=-torch.inf).double() <= found.clean * (1 + 1e-5)).all()
