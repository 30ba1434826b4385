"""The backward pass on random transformers: sound boxes and bounds, chunks, batches, points; never wider than IBP."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.bounds.checks import SMALL, Ready, asked, bounded, check_bound, check_network, hard_points, objectives
from tests.bounds.networks import ACTIVATIONS, Config, input_box, transformer
from tests.slowly import few
from vertex_softmax.bounds import box_passes
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.backward import lower_bound
from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.bounds.coefficients import Coefficients, Objective
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules

LINEAR = [method for method in METHODS if method != "ibp"]
SMALLEST = ("plain", "max pooling")
"""Of the networks: those that `bab` tries by default. It is `joint` where, as here, there are several inputs."""
LARGEST = ("two blocks", "three blocks", "post norm")
"""Those that what takes longest does not try by default; test_order.py has such."""

CONFIGS = {
    "plain": Config(),
    "no mlp activation": Config(activation="none"),
    "two blocks": Config(depth=2, heads=2, activation="gelu"),
    "three blocks": Config(depth=3, heads=2, width=4, tokens=2, activation="tanh"),
    "pre norm": Config(norm="pre", activation="gelu tanh", heads=2),
    "post norm": Config(norm="post", activation="silu", depth=2),
    "class token": Config(class_token=True, pooling="token", heads=4, depth=2),
    "max pooling": Config(pooling="max", heads=2),
    "gated": Config(gated=True, activation="silu"),
    "causal": Config(mask="causal", heads=2, pooling="token"),
    "padding": Config(mask="padding", depth=2, pooling="max"),
    "unfused": Config(fused=False, heads=2, mask="causal"),
    "peaked": Config(gain=8.0, heads=2, activation="none"),
    "one token": Config(tokens=1, depth=2),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def quick(name: str, method: str) -> bool:
    return name in SMALLEST if method == "bab" else method != "joint" or name not in LARGEST


@cache
def question(name: str) -> tuple[Graph, tuple[Tensor, Tensor], Tensor]:
    """A network, the boxes of two inputs, one small and one large, and hard points of both."""
    config = dataclasses.replace(CONFIGS[name], seed=1)
    graph, (lower, upper) = transformer(config), input_box(config, 2, 0.6, 1)
    centre = (lower[0] + upper[0]) / 2
    lower[0], upper[0] = centre + 0.1 * (lower[0] - centre), centre + 0.1 * (upper[0] - centre)
    return graph, (lower, upper), hard_points(graph, lower, upper)


@cache
def answer(name: str, method: str) -> Bound:
    graph, box, _ = question(name)
    return bounded(graph, *box, method)


@pytest.mark.parametrize(("name", "method"), few(itertools.product(CONFIGS, LINEAR), quick))
def test_boxes_and_bounds_hold(name: str, method: str) -> None:
    graph, _, points = question(name)
    check_bound(graph, answer(name, method), points)


configs = st.builds(
    Config,
    depth=st.integers(1, 2),
    heads=st.sampled_from([1, 2, 4]),
    tokens=st.integers(1, 3),
    inputs=st.integers(1, 3),
    classes=st.integers(1, 3),
    norm=st.sampled_from(["none", "pre", "post"]),
    activation=st.sampled_from(list(ACTIVATIONS)),
    gated=st.booleans(),
    pooling=st.sampled_from(["mean", "token", "max"]),
    class_token=st.booleans(),
    mask=st.sampled_from(["none", "causal", "padding"]),
    fused=st.booleans(),
    gain=st.sampled_from([0.5, 2.0, 10.0]),
    seed=st.integers(0, 10**6),
)


def usable(config: Config) -> bool:
    return config.mask != "padding" or config.tokens + config.class_token > 1


radii = st.sampled_from([1e-9, 0.01, 0.3, 2.0])


@settings(max_examples=6)
@given(config=configs.filter(usable), radius=radii, method=st.sampled_from(list(METHODS)))
def test_random_networks(config: Config, radius: float, method: str) -> None:
    check_network(transformer(config), *input_box(config, 2, radius, config.seed), method)


@pytest.mark.slow
@settings(max_examples=1500)
@given(config=configs.filter(usable), radius=radii, method=st.sampled_from(LINEAR))
def test_many_random_networks(config: Config, radius: float, method: str) -> None:
    check_network(transformer(config), *input_box(config, 2, radius, config.seed), method)


VARIANTS = [
    Options(scores="interval"),
    Options(preactivations="stream"),
    Options(suffix="best"),
    Options(suffix="optimised", ascent=Ascent(steps=4)),
    Options(scores="interval", preactivations="stream", suffix="best"),
]


@pytest.mark.parametrize("options", VARIANTS, ids=["scores", "stream", "best", "optimised", "all"])
@pytest.mark.parametrize("name", ["plain", "two blocks", "class token"])
def test_the_published_variants_are_sound(name: str, options: Options) -> None:
    graph, box, points = question(name)
    for method in ("crown", "vertex"):
        check_bound(graph, bounded(graph, *box, method, options), points)


@pytest.mark.parametrize(
    "name",
    few(
        ["two blocks", "class token", "pre norm", "unfused", "padding"], lambda name: name in ("two blocks", "padding")
    ),
)
def test_chunks_do_not_change_the_result(name: str) -> None:
    config = CONFIGS[name]
    graph, box = transformer(config), input_box(config, 3, 0.2)
    for method in ("crown", "vertex"):
        whole = bounded(graph, *box, method, Options(memory=Memory(bytes=1 << 30)))
        for options in (SMALL, Options(memory=Memory(bytes=20_000))):
            chunked = bounded(graph, *box, method, options)
            assert torch.allclose(whole.lower, chunked.lower, rtol=1e-11, atol=1e-11)
            for node in graph.nodes():
                for a, b in zip(whole.boxes[node], chunked.boxes[node], strict=True):
                    assert torch.allclose(a, b, rtol=1e-11, atol=1e-11), node


@pytest.mark.parametrize(
    "name",
    few(["plain", "pre norm", "class token", "max pooling", "unfused"], lambda name: name in ("pre norm", "unfused")),
)
def test_a_batch_equals_its_singles(name: str) -> None:
    config = CONFIGS[name]
    graph, (lower, upper) = transformer(config), input_box(config, 3, 0.2)
    lower[1] = upper[1] = (lower[1] + upper[1]) / 2  # one input that is a point, where many signs are decided
    together = bounded(graph, lower, upper, "hybrid").lower
    for b in range(3):
        alone = bounded(graph, lower[b : b + 1], upper[b : b + 1], "hybrid").lower
        # an entry that is open for one input of a batch is refined for all: singles may only be looser there
        assert (alone[0] <= together[b] + 1e-9).all()
        assert torch.allclose(alone[0], together[b], rtol=1e-9, atol=1e-9)


STILL = ("two blocks", "pre norm", "class token", "max pooling", "gated", "unfused")


@pytest.mark.parametrize(("name", "method"), few(itertools.product(STILL, METHODS), quick))
def test_no_perturbation_gives_the_clean_value(name: str, method: str) -> None:
    config = CONFIGS[name]
    graph, (lower, upper) = transformer(config), input_box(config, 2, 0.3)
    point = (lower + upper) / 2
    A = objectives(graph, 2)
    found = bounded(graph, point, point, method).lower
    clean = (A * graph.evaluate(point).unsqueeze(1)).flatten(2).sum(-1)
    assert torch.allclose(found, clean, rtol=0, atol=1e-9 if method != "ibp" else 1e-8)


@pytest.mark.parametrize("method", ["crown", "vertex", "hybrid"])
@pytest.mark.parametrize("name", CONFIGS)
def test_boxes_are_never_wider_than_intervals(name: str, method: str) -> None:
    graph, box, _ = question(name)
    boxes, plain = answer(name, method).boxes, all_boxes(asked(graph, *box))
    for node in graph.nodes():
        slack = 1e-9 * (1 + plain[node].lower.abs() + plain[node].upper.abs())
        assert (boxes[node].lower >= plain[node].lower - slack).all(), node
        assert (boxes[node].upper <= plain[node].upper + slack).all(), node


@pytest.mark.parametrize("name", CONFIGS)
def test_hybrid_is_at_least_both(name: str) -> None:
    """By construction: tighter boxes alone may turn an adaptive slope for the worse."""
    hybrid, crown, vertex = (answer(name, method).lower for method in ("hybrid", "crown", "vertex"))
    assert (hybrid >= torch.maximum(crown, vertex) - 1e-9).all()


def test_float32_holds_too() -> None:
    for name in ("plain", "pre norm", "class token", "unfused"):
        config = CONFIGS[name]
        graph, box = transformer(config), input_box(config, 2, 0.2)
        single = graph.to(torch.float32)
        double = bounded(graph, *box, "hybrid").lower
        A = objectives(graph, 2).float()
        found = bounded(single, *(x.float() for x in box), "hybrid", A=A).lower
        assert bool((found.double() <= double + 1e-3 * (1 + double.abs())).all())
        assert torch.allclose(found.double(), double, rtol=1e-2, atol=1e-2)


def test_all_objectives_of_a_node_at_once_or_one_by_one() -> None:
    """`lower_bound` of diagonal coefficients gives, in their numbering, what dense units give."""
    config = CONFIGS["two blocks"]
    graph, box = transformer(config), input_box(config, 2, 0.2)
    for method, rule in (("crown", RowRule.LSE), ("vertex", RowRule.VERTEX)):
        boxes, asking, rules = bounded(graph, *box, method).boxes, asked(graph, *box), Rules(attention=rule)
        for node in (
            n for n in graph.nodes() if isinstance(n.op, Attention) or "residual" in n.name or "scores" in n.name
        ):
            for diagonal in range(len(node.shape)):
                A = torch.randn(2, 2, *node.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
                found = lower_bound(asking, boxes, Objective(node, Coefficients(A, diagonal)), rules)
                for s, i in itertools.product(range(2), range(node.shape[diagonal])):
                    one = torch.zeros_like(A[:, :1])
                    one.select(2 + diagonal, i).copy_(A[:, s : s + 1].select(2 + diagonal, i))
                    alone = lower_bound(asking, boxes, Objective.dense(node, one), rules)
                    assert torch.allclose(alone[:, 0], found[:, s * node.shape[diagonal] + i], rtol=1e-9, atol=1e-9)


def two_layers() -> Graph:
    x = build.source((2,))
    h = build.affine(x, torch.eye(2).double(), None, "first")
    return Graph(x, build.affine(build.apply(Relu(), h, name="relu"), torch.ones(1, 2).double(), None, "last"))


def first_of(graph: Graph) -> Node:
    return next(n for n in graph.nodes() if n.name == "first")


def test_a_tightened_box_never_widens_and_is_relaxed_anew() -> None:
    graph, A = two_layers(), torch.ones(1, 1, 1).double()
    lower, upper = -torch.ones(1, 2).double(), torch.ones(1, 2).double()
    before = bounded(graph, lower, upper, "crown", A=A)
    asking, boxes, first = asked(graph, lower, upper), before.boxes, first_of(graph)
    old = boxes[first]
    assert float(Ready(asking, boxes).bound(A, Rules())) == 0.0  # relaxed, and stored
    boxes = boxes.tightened(first, Interval(old.lower - 1, old.upper + 1))
    assert torch.equal(boxes[first].lower, old.lower)
    assert torch.equal(boxes[first].upper, old.upper)
    boxes = boxes.tightened(first, Interval(old.lower + 1, old.upper))  # both pre-activations are ≥ 0
    assert float(before.lower) == 0.0
    assert float(Ready(asking, boxes).bound(A, Rules())) == -2.0  # of a decided ReLU, over the whole input set
    assert float(Ready(asking, before.boxes).bound(A, Rules())) == 0.0  # the older boxes are as they were
    assert not boxes.problems


def test_bounds_that_cross_are_a_problem_of_that_input_alone() -> None:
    graph = two_layers()
    first, boxes = first_of(graph), all_boxes(asked(graph, -torch.ones(2, 2).double(), torch.ones(2, 2).double()))
    box = boxes[first]
    wrong = box.lower.clone()
    wrong[1, 0] = 1.5
    boxes = boxes.tightened(first, Interval(wrong, box.upper + 2))
    (problem,) = boxes.problems
    assert problem.node is first
    assert problem.where.tolist() == [False, True]
    assert "cross" in problem.text
    assert (boxes[first].lower <= boxes[first].upper).all()


@pytest.mark.parametrize("end", [0, 1], ids=["lower", "upper"])
@pytest.mark.parametrize(("value", "said"), [(torch.nan, "NaN"), (torch.inf, "infinite")])
def test_one_end_that_is_no_number_is_a_problem_of_that_input_alone(
    end: int, value: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = two_layers()
    first, real = first_of(graph), box_passes.by_intervals

    def broken(node: Node, intervals: Mapping[Node, Interval]) -> Interval:
        ends = [x.clone() for x in real(node, intervals)]
        if node is first:
            ends[end][1, 0] = value if end else -value
        return Interval(*ends)

    monkeypatch.setattr(box_passes, "by_intervals", broken)
    boxes = all_boxes(asked(graph, -torch.ones(2, 2).double(), torch.ones(2, 2).double()))
    problem = boxes.problems[0]
    assert problem.node is first
    assert problem.where.tolist() == [False, True]
    assert said in problem.text
