"""What a method may need, and what is said where that is too much."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest
import torch

from tests.extremes.networks import inputs, network
from vertex_softmax.bounds.memory import GIB, PAIR_ARRAYS, Memory, pair_numbers
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.errors import NotEnoughMemoryError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods import sizing
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS, Method
from vertex_softmax.methods.sizing import batch_size, refusal
from vertex_softmax.runs.certify import load
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.sets import LinfBall, LpBall
from vertex_softmax.sets.region import Region

CPU = torch.device("cpu")
BALL = LinfBall(torch.rand(1, 1, 28, 28, dtype=torch.float64), 0.01)


def limited(total: int) -> Options:
    return Options(memory=Memory(total=total))


def problem(**shape: object) -> tuple[Graph, Region]:
    net = network(**shape)
    ball = LinfBall(inputs(net, 1), 0.01)
    graph = load(net, ball)
    return graph, ball.region(graph.input.shape, torch.float64, CPU)


def needed(graph: Graph, method: Method, region: Region | None, options: Options | None = None) -> int:
    return sizing._needed(graph, method, options or limited(1 << 40), CPU, torch.float64, region).one


def test_the_limit_is_kept_to_the_byte() -> None:
    graph, region = problem(tokens=16)
    question = Question.over(graph, region)
    for method in METHODS:
        if METHODS[method].branches:  # what parts may take depends on the limit
            continue
        need = needed(graph, method, region)
        assert refusal(question, method, limited(need)) == ""
        assert f"{method} on one input may need" in refusal(question, method, limited(need - 1))
        with pytest.raises(NotEnoughMemoryError):
            batch_size(graph, method, limited(need - 1), CPU, torch.float64, region)
    assert refusal(question, Method.BAB, Options()) == ""


def test_the_sentence_says_what_to_give_and_what_fits() -> None:
    graph, region = problem(tokens=64)
    total = (needed(graph, Method.VERTEX, region) + needed(graph, Method.CROWN, region)) // 2
    text = refusal(Question.over(graph, region), Method.CROWN, limited(total))
    assert text.endswith("or take a method that fits: ibp, vertex")
    need, left, more = map(float, re.findall(r"\d+\.\d+", text))
    assert need > left == pytest.approx(total / GIB, abs=0.01)
    assert total + more * GIB >= needed(graph, Method.CROWN, region)


def test_zonotopes_are_counted_where_they_are_made() -> None:
    """`crown` makes them behind the first attention, `vertex` not before the fourth; over balls all methods do."""
    one, two = problem(tokens=8), problem(tokens=8, blocks=2)
    extra = {
        (name, method): needed(*_swapped(each, method)) - needed(each[0], method, None)
        for name, each in (("one", one), ("two", two))
        for method in (Method.IBP, Method.CROWN, Method.VERTEX)
    }
    assert {key for key, more in extra.items() if more} == {("two", Method.CROWN)}
    ball = LpBall(inputs(network(tokens=8), 1), 0.01, 2)
    region = ball.region(one[0].input.shape, torch.float64, CPU)
    assert needed(one[0], Method.VERTEX, region) > needed(one[0], Method.VERTEX, one[1])


def _swapped(each: tuple[Graph, Region], method: Method) -> tuple[Graph, Method, Region]:
    return each[0], method, each[1]


def test_products_are_counted_where_they_are_kept() -> None:
    graph, region = problem(tokens=4, blocks=2)
    products = 8 * PAIR_ARRAYS * pair_numbers(graph, sizing.varying_numbers(region))
    ample, scarce = (needed(graph, Method.CROWN, region, limited(total)) for total in (4 * products, 4 * products - 1))
    assert ample - scarce == products


def test_branch_and_bound_keeps_parts_in_a_quarter() -> None:
    assert Memory(total=1000).for_parts(1 << 30) == 250
    assert Memory(total=1000).for_parts(10) == 10
    assert Memory().for_parts(1 << 30) == 1 << 30
    options = dataclasses.replace(limited(GIB))
    graph, region = problem(tokens=4)
    more = needed(graph, Method.BAB, region, options) - needed(graph, Method.JOINT, region, options)
    assert more == GIB // 4


@pytest.mark.parametrize(("memory", "inputs_at_once"), [(24 << 30, 256), (40 << 30, 579), (139 << 30, 1024)])
def test_a_larger_gpu_bounds_more_inputs_together(
    memory: int, inputs_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generators of one block of 16 tokens fit 579 times into 2²⁹ numbers; half of a large GPU has more room."""
    graph = load(PatchTransformer(image=28, patch=7, dim=32, heads=4, mlp=64).double().eval(), BALL)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=memory))
    gpu = torch.device("cuda")
    assert batch_size(graph, Method.JOINT, Options(), gpu) == inputs_at_once
    need = sizing.GENERATED * 8 * sizing.most_numbers(graph) * inputs_at_once
    assert need <= max(memory // 2, sizing.GENERATED * 8 * (1 << 29))
