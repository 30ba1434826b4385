"""Zonotopes that are made from others: which ones, that all of it holds, and that what is false is refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.bounds.networks import Config, transformer
from tests.certificate.claims import everything_holds
from tests.certificate.exact import Written, read
from tests.certificate.made import Net, about, accepted, boxed, made, rows_of
from vertex_softmax.certificate.checker import check
from vertex_softmax.certificate.checker.file import OLDER
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.prove import Prover, written
from vertex_softmax.certificate.score_boxes import ScoreProof
from vertex_softmax.certificate.shared_zonotopes import shared_sources
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.ops.rules import RowRule

NETS = {
    "shallow": Config(depth=1, tokens=3, seed=4),
    "deep": Config(depth=2, tokens=4, seed=8),
    "heads": Config(depth=2, tokens=3, heads=2, seed=5),
}


@functools.cache
def net_of(name: str) -> Net:
    return boxed(simplify(transformer(NETS[name])), 0.05, 3)


def proved(net: Net, scores: ScoreProof) -> Prover:
    prover = Prover(net.graph, net.lower, net.upper, scores=scores)
    prover.state([ForbiddenCase(rows_of(net, 1, 4), np.full(1, -1e3), np.ones(1))])
    prover.by_rule(RowRule.AFFINE)
    return prover


@functools.cache
def certificate() -> Written:
    return read(written([proved(net_of("deep"), ScoreProof.CENTRED)], about()))


@pytest.mark.parametrize("name", NETS)
def test_queries_keys_and_values_are_images_of_one_zonotope(name: str) -> None:
    net = net_of(name)
    prover = proved(net, ScoreProof.CENTRED)
    steps = prover.header["steps"]
    images = [step for step in steps if step["kind"] == "image"]
    assert len(images) == 3 * NETS[name].depth == 3 * len({step["of"] for step in images})
    assert sum(step["kind"] == "zonotope" for step in steps) == NETS[name].depth
    assert {step["rule"] for step in steps if step["kind"] == "centred"} == {"factors"}
    data = written([prover], about())
    assert accepted(data).margin == pytest.approx(prover.margin, rel=1e-9)
    everything_holds(net, data, 12)
    by_passes = proved(net, ScoreProof.ALL)
    assert not by_passes.sources
    assert prover.margin < by_passes.margin + 1e-6  # the images are hardly wider, and never narrower by much
    assert prover.margin > by_passes.margin - 0.05


def test_sources_are_there_where_several_nodes_share_them() -> None:
    for name in ("relu", "products and moves", "matrices", "cross attention"):
        net = made(name)
        nodes = Prover(net.graph, net.lower, net.upper).nodes
        for number, source in shared_sources(nodes).items():
            assert 0 < source < number
            assert nodes[source].op != "Input"


@pytest.mark.parametrize("number", range(len(OLDER)))
def test_older_formats_have_no_images(number: int) -> None:
    changed = certificate().copy()
    changed.header["format"] = OLDER[number]
    assert not check(changed.data()).accepted
    if number == len(OLDER) - 1:
        assert "the image of a zonotope in a file of the format vertex-certificate-7" in check(changed.data()).reason
        changed.header["parts"][0]["steps"] = [
            step for step in changed.header["parts"][0]["steps"] if step["kind"] == "centred"
        ]
        assert "scores centred by their factors in a file of the format" in check(changed.data()).reason


def test_what_is_said_of_images_is_proved_again() -> None:
    """Narrower claims, other sources, sources that are not proved, and factors with other unknowns are refused."""
    original = certificate()
    assert check(original.data()).accepted
    steps = original.header["parts"][0]["steps"]
    for k, step in enumerate(steps):
        if step["kind"] not in ("image", "centred", "zonotope"):
            continue
        for end, sign in (("lower", 1.0), ("upper", -1.0)):
            changed = original.copy()
            value = changed.arrays[step[end]].copy()
            value.flat[k % value.size] += sign * 1e-6 * (1 + abs(value.flat[k % value.size]))
            changed.arrays[step[end]] = value
            assert "does not contain the range" in check(changed.data()).reason
        if step["kind"] == "image":
            sources = {other["of"] for other in steps if other["kind"] == "image"} - {step["of"]}
            for of in sources | {0, step["node"], -1}:
                changed = original.copy()
                changed.header["parts"][0]["steps"][k]["of"] = of
                assert not check(changed.data()).accepted
    missing = original.copy()
    missing.header["parts"][0]["steps"] = [step for step in steps if step["kind"] != "zonotope"]
    assert "the image of a zonotope that was not proved" in check(missing.data()).reason
    apart, first = original.copy(), next(k for k, step in enumerate(steps) if step["kind"] == "image")
    apart.header["parts"][0]["steps"][first] = {**steps[first], "kind": "zonotope"}
    assert "no product of two zonotopes with the same unknowns" in check(apart.data()).reason
