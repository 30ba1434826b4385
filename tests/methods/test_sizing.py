"""What a method may need, and what is said where that is too much."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest
import torch

from tests.extremes.networks import Network, inputs, network
from vertex_softmax.bounds.memory import GIB, PAIR_ARRAYS, Memory, pair_numbers
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.errors import NotEnoughMemoryError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods import sizing
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS, Method
from vertex_softmax.methods.sizing import batch_size, batches, refusal
from vertex_softmax.runs.certify import bound, certify, load
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.sets import Box, LinfBall, LpBall
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


def mixed(norm: float | None) -> tuple[Network, Box]:
    """Four inputs of one network; of the first and the last the same token moves, of the others another each."""
    net = network(tokens=4, norm=norm)
    x = inputs(net, 4)
    radius = torch.zeros_like(x)
    for i, token in enumerate((1, 2, 0, 1)):
        radius[i, token] = 0.02 * (i + 1)
    return net, Box(x - radius, x + radius)


def test_inputs_of_which_other_numbers_vary_are_bounded_apart() -> None:
    """Where unknowns of the input have products: those of a batch are of every number that varies in any input."""
    net, box = mixed(1e-3)
    graph = load(net, box)
    region = box.region(graph.input.shape, torch.float64, CPU)
    apart = [[0, 3], [1], [2]]
    assert [which.tolist() for which in batches(graph, Method.CROWN, Options(), region)] == apart
    one_each = [which.tolist() for which in batches(graph, Method.CROWN, Options(batch=1), region)]
    assert one_each == [[0], [3], [1], [2]]
    scarce = limited(4 * 8 * PAIR_ARRAYS * pair_numbers(graph, 6) - 1)  # no room for products: then they stay together
    for method, options in ((Method.IBP, Options()), (Method.CROWN, Options(generators=False))):
        assert [which.tolist() for which in batches(graph, method, options, region)] == [[0, 1, 2, 3]]
    assert len(sizing._alike(graph, Method.CROWN, scarce, region)) == 1
    plain, _ = mixed(None)
    assert len(batches(load(plain, box), Method.CROWN, Options(), region)) == 1
    assert sizing.varying_numbers(region) == 18
    assert sizing.varying_numbers(region.at(torch.tensor([0, 3]))) == 6


@pytest.mark.parametrize(("method", "share"), [("crown", 1e-9), ("joint", 1e-4)])
def test_bounds_do_not_depend_on_what_varies_in_other_inputs(method: str, share: float) -> None:
    """To rounding, which the ascent of `joint` amplifies."""
    net, box = mixed(1e-3)
    label = net(box.centre).argmax(-1)
    together, scores = certify(net, box, label, method), bound(net, box, method)
    for i in range(4):
        alone, interval = certify(net, box[[i]], label[i], method), bound(net, box[[i]], method)
        others = together.lower[i].isfinite()
        tiny = share * float(together.lower[i][others].abs().max())
        assert torch.allclose(together.lower[i][others], alone.lower[0][others], rtol=0, atol=tiny)
        assert together.verdicts[i] == alone.verdicts[0]
        for one, other in zip(scores, interval, strict=True):
            assert torch.allclose(one[i], other[0], rtol=0, atol=share * float(other.abs().max()))
