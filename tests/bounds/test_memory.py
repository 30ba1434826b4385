"""A total for a run: fewer inputs together, the same bounds, or a refusal before anything is computed."""

from __future__ import annotations

import pytest
import torch

from tests.extremes.networks import inputs, network
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.foundation.errors import InvalidValueError, NotEnoughMemoryError
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS, Method
from vertex_softmax.methods.sizing import batch_size
from vertex_softmax.runs.certify import bound, certify, load
from vertex_softmax.sets import LinfBall

CPU = torch.device("cpu")


def test_what_does_not_fit_is_refused_before_anything_is_computed() -> None:
    net = network()
    ball = LinfBall(inputs(net), 0.01)
    graph = load(net, ball)
    small = Options(memory=Memory(total=1 << 20))
    for method in METHODS:
        with pytest.raises(NotEnoughMemoryError, match=r"may need .* GiB, and the memory limit leaves 0.00: give"):
            certify(graph, ball, 0, method, options=small)
    with pytest.raises(MemoryError):
        bound(graph, ball, "crown", options=small)


def test_fewer_inputs_go_together() -> None:
    net = network(tokens=32)
    graph = load(net, LinfBall(inputs(net), 0.01))
    sizes = [
        batch_size(graph, Method.CROWN, Options(memory=Memory(total=total)), CPU)
        for total in (1 << 28, 3 << 27, 1 << 29, 1 << 34)
    ]
    assert sizes == sorted(sizes)
    assert 1 <= sizes[0] < sizes[-1] == batch_size(graph, Method.CROWN, Options(), CPU)


def test_the_bounds_are_the_same() -> None:
    net = network(tokens=16)
    ball = LinfBall(inputs(net, 6), 0.01)
    graph = load(net, ball)
    tight, free = (Options(memory=Memory(total=total)) for total in (100 << 20, None))
    assert batch_size(graph, Method.CROWN, tight, CPU) < 6
    one, other = (certify(graph, ball, 0, "crown", options=options).lower for options in (tight, free))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["bytes", "total"])
def test_no_bytes_at_all(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name} is 0"):
        Memory(**{name: 0})


@pytest.mark.parametrize("method", ["crown", "hybrid"])
def test_1024_tokens_are_refused_under_1_gib(method: str) -> None:
    """And by intervals they are not. (With two `crown` is not refused: no table of keys² numbers is kept.)"""
    net = network(tokens=1024, dim=4, heads=1, mlp=4)
    ball = LinfBall(inputs(net, 1), 1e-4)
    graph = load(net, ball)
    options = Options(memory=Memory(total=1 << 30))
    with pytest.raises(NotEnoughMemoryError, match=r"GiB more, or take a method that fits: ibp"):
        certify(graph, ball, 0, method, options=options)
    assert certify(graph, ball, 0, "ibp", options=options).lower.isfinite()[:, 1:].all()
