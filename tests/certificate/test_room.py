"""A certificate that may not fit is refused before anything is computed."""

from __future__ import annotations

import pytest
import torch

import vertex_softmax as vx
from tests.extremes.networks import inputs, network
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.certificate.certificate import Effort, prove
from vertex_softmax.certificate.room import proof_bytes, require_room
from vertex_softmax.foundation.errors import NotEnoughMemoryError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.runs import certify
from vertex_softmax.runs.certify import load
from vertex_softmax.sets import LinfBall


def graph_of(**shape: object) -> Graph:
    net = network(**shape)
    return load(net, LinfBall(inputs(net, 1), 0.01))


def test_a_proof_that_does_not_fit_is_refused() -> None:
    for forward, graph in ((False, graph_of()), (True, graph_of(norm=1e-5))):
        need = proof_bytes(graph, forward=forward)
        require_room(graph, Memory(), forward=forward)
        require_room(graph, Memory(total=need), forward=forward)
        with pytest.raises(NotEnoughMemoryError, match=r"a certificate may need .* GiB more, or leave the certificate"):
            require_room(graph, Memory(total=need - 1), forward=forward)
        with pytest.raises(NotEnoughMemoryError):
            require_room(graph, Memory(total=need), forward=forward, search=Search())
        with pytest.raises(NotEnoughMemoryError):
            prove(graph, [], Effort(memory=Memory(total=need - 1)))


def test_a_larger_network_needs_more() -> None:
    small, large = graph_of(tokens=4), graph_of(tokens=64)
    for forward in (False, True):
        assert proof_bytes(small, forward=forward) < proof_bytes(large, forward=forward)


def test_certify_refuses_before_it_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    x = inputs(net, 1)
    ball, graph = LinfBall(x, 1e-4), load(net, LinfBall(x, 1e-4))
    need = proof_bytes(graph, forward=False)

    def never(*_arguments: object) -> None:
        raise AssertionError("a bound was computed")

    monkeypatch.setattr(certify, "lower_bounds", never)
    options = vx.Options(memory=Memory(total=need - 1))
    with pytest.raises(NotEnoughMemoryError, match="a certificate may need"):
        vx.certify(graph, ball, torch.tensor([0]), "ibp", options=options, certificate=True)
