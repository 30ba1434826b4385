"""Certificates of networks of every op: what they claim holds at every point tried, judged by Arb without tolerance."""

from __future__ import annotations

import math

import pytest

from tests.certificate.claims import (
    attack_passes,
    everything_holds,
)
from tests.certificate.made import (
    NETS,
    Net,
    accepted,
    boxed,
    by_rule,
    cases_below,
    made,
    proved,
)
from tests.graph.models import FAMILIES, imported
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.certificate.certificate import Effort

POINTS = 16


EFFORTS = {"plain": Effort(), "best": Effort(ascent=Ascent(steps=3), best=True)}


@pytest.mark.parametrize(
    ("name", "effort"),
    [
        pytest.param(name, effort, marks=[pytest.mark.slow] if effort == "best" and i % 4 else [])
        for i, name in enumerate(NETS)
        for effort in EFFORTS
    ],
)
def test_what_is_claimed_holds(name: str, effort: str) -> None:
    net = made(name)
    found = proved(net, cases_below(net, 4.0), EFFORTS[effort])
    assert found.certificate is not None, found.margins
    verdict = accepted(found.certificate.data)
    assert 0 < verdict.margin < math.inf
    everything_holds(net, found.certificate.data, POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_what_is_claimed_holds_at_many_points(name: str) -> None:
    net = made(name)
    for rules in (("affine",), ("affine", "vertex"), ("vertex",)):
        _, data = by_rule(net, rules)
        accepted(data)
        everything_holds(net, data, 300, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_families_of_models(name: str) -> None:
    """Everything that is imported from torch can be certified, with a small enough box."""
    from vertex_softmax.graph.from_torch.importer import from_torch
    from vertex_softmax.graph.simplify import simplify

    (module, x, arguments), _, _ = imported(name)
    graph = simplify(from_torch(module, x, **arguments))
    net = boxed(graph, 1e-3)
    if arguments.get("perturb") != "embedding":
        centre = x.double().reshape(graph.input.shape).numpy()
        net = Net(graph, centre - 1e-3, centre + 1e-3)
    _, data = by_rule(net, gap=0.01)
    accepted(data)
    everything_holds(net, data, 24)


@pytest.mark.parametrize("name", NETS)
def test_no_choice_breaks_a_pass(name: str) -> None:
    assert attack_passes(name, 5, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_no_choice_breaks_a_pass_often(name: str, seed: int) -> None:
    assert attack_passes(name, 150, seed)
