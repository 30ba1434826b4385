"""Generators of whole networks: one ν for all numbers of a node, on sampled inputs; and boxes with every tightening."""

from __future__ import annotations

import dataclasses
import itertools
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from vertex_softmax.methods.bounding import make_boxes

from tests.bounds.checks import TOLERANCE, check_bounds, check_boxes, hard_points, objectives
from tests.bounds.networks import Config, input_box, transformer
from tests.bounds.test_backward import CONFIGS, LARGEST, configs, radii, usable
from tests.slowly import few
from vertex_softmax.bounds import generate as generate_module
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.backward import Walk
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import lower_bounds
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.rules import Rules

AFFINE = Rules(attention="affine", exact=False)
QUICK = Options(ascent=Ascent(steps=2))
NETWORKS = {
    **CONFIGS,
    "pre norm, two blocks": Config(norm="pre", depth=2, heads=2, activation="relu"),
    "post norm, gated": Config(norm="post", gated=True, activation="gelu"),
    "class token, norm": Config(norm="pre", class_token=True, pooling="token", heads=2, activation="tanh"),
    "causal, two blocks": Config(mask="causal", depth=2, norm="post"),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def uneven_box(config: Config, radius: float = 0.5) -> tuple[Tensor, Tensor]:
    """One small set and one large one, and inputs that do not vary at all."""
    lower, upper = input_box(config, 2, radius, 3)
    centre = (lower[0] + upper[0]) / 2
    lower[0], upper[0] = centre + 0.05 * (lower[0] - centre), centre + 0.05 * (upper[0] - centre)
    lower[1, 0, 0] = upper[1, 0, 0]
    return lower, upper


def boxed(graph: Graph, lower: Tensor, upper: Tensor, options: Options = QUICK, memory: Memory | None = None) -> Walk:
    walk = Walk(graph, lower, upper, memory=memory)
    with torch.no_grad():
        make_boxes(walk, ("affine",), options, True)
    assert not walk.problems, walk.problems
    return walk


def unit_inputs(walk: Walk, x: Tensor) -> Tensor:
    """ξ of inputs x (points, batch, ...): (points, batch, inputs), 0 where the set has no width."""
    box = walk.boxes[walk.start]
    start = walk.graph.values(x)[walk.start]
    wide = box.radius > 0
    xi = (start - box.centre) / torch.where(wide, box.radius, torch.ones_like(box.radius))
    return torch.where(wide, xi, torch.zeros_like(xi)).flatten(2)


def check_generators(walk: Walk, node: Node, found: Generators, x: Tensor, seed: int = 0) -> None:
    """|η·(y − centre − columns ξ)| ≤ Σ |η·noise| + |η|·error for functionals of all numbers of a node at once."""
    g = torch.Generator().manual_seed(seed)
    size = found.centre[0].numel()
    y = walk.graph.values(x)[node].flatten(2)  # (points, batch, numbers)
    xi = unit_inputs(walk, x)
    assert (xi.abs() <= 1 + 1e-12).all()
    inputs = xi.shape[-1]
    columns = found.columns.reshape(walk.batch, size, -1)
    own, noise = columns[..., :inputs], columns[..., inputs:]
    rest = y - found.centre.flatten(1) - (own @ xi.unsqueeze(-1)).squeeze(-1)
    eta = torch.randn(walk.batch, 12, size, generator=g, dtype=torch.float64)
    eta = torch.where(torch.rand(eta.shape, generator=g) < torch.linspace(0, 0.9, 12)[:, None], 0 * eta, eta)
    left = (eta @ rest.unsqueeze(-1)).squeeze(-1).abs()
    right = (eta @ noise).abs().sum(-1) + (eta.abs() @ found.error.flatten(1).unsqueeze(-1)).squeeze(-1)
    slack = TOLERANCE * (1 + (eta.abs() @ y.abs().amax(0).unsqueeze(-1)).squeeze(-1))
    over = left - right - slack
    assert (over <= 0).all(), f"{node!r}: a functional goes {float(over.max()):.3g} beyond its generators"
    box = found.box()
    for end, sign in ((box.lower, 1), (box.upper, -1)):
        over = sign * (end.flatten(1) - y) - TOLERANCE * (1 + y.abs().amax(0))
        assert (over <= 0).all(), f"{node!r}: a value lies outside the box of its generators by {float(over.max()):.3g}"


def inner(walk: Walk) -> list[Node]:
    return [n for n in walk.nodes if n.inputs and not isinstance(n.op, Constant)]


def check_all_generators(config: Config, lower: Tensor, upper: Tensor, *, memory: Memory | None = None) -> int:
    """Every node of a network that has them; how many."""
    graph = transformer(config)
    walk = boxed(graph, lower, upper, memory=memory)
    x = hard_points(graph, lower, upper, count=40)
    check_boxes(graph, walk.boxes, x)
    count = 0
    for i, node in enumerate(inner(walk)):
        with torch.no_grad():
            found = walk.generate(node, AFFINE)
        if found is not None:
            count += 1
            check_generators(walk, node, found, x, i)
    return count


@pytest.mark.parametrize("name", few(NETWORKS, lambda name: name not in CONFIGS or name not in LARGEST))
def test_one_noise_serves_all_numbers(name: str) -> None:
    config = dataclasses.replace(NETWORKS[name], seed=4)
    assert check_all_generators(config, *uneven_box(config)) > 8


@settings(max_examples=12)
@given(config=configs.filter(usable), radius=radii)
def test_random_networks_have_generators(config: Config, radius: float) -> None:
    check_all_generators(config, *input_box(config, 2, radius, config.seed))


@pytest.mark.slow
@settings(max_examples=400)
@given(config=configs.filter(usable), radius=radii)
def test_many_random_networks_have_generators(config: Config, radius: float) -> None:
    check_all_generators(config, *input_box(config, 2, radius, config.seed))


@pytest.mark.parametrize("name", ["two blocks", "pre norm", "class token"])
def test_chunks_do_not_change_generators(name: str) -> None:
    config = NETWORKS[name]
    graph, box = transformer(config), input_box(config, 2, 0.3)
    whole, chunked = boxed(graph, *box), boxed(graph, *box, memory=Memory(bytes=1))
    for node in inner(whole)[-6:]:
        with torch.no_grad():
            a, b = whole.generate(node, AFFINE), chunked.generate(node, AFFINE)
        assert a is not None
        assert b is not None
        for x, y in zip(a, b, strict=True):
            assert x.shape == y.shape
            assert torch.allclose(x, y, rtol=1e-9, atol=1e-10), node


@pytest.mark.parametrize("room", [0, 5, 30])
@pytest.mark.parametrize("name", ["two blocks", "pre norm, two blocks"])
def test_without_room_for_columns_they_are_error(name: str, room: int) -> None:
    """Where a node may have few numbers, the noise of ops far away is added to the error, and nothing is lost."""
    config = dataclasses.replace(NETWORKS[name], seed=6)
    graph, (lower, upper) = transformer(config), uneven_box(config)
    walk = boxed(graph, lower, upper)
    x = hard_points(graph, lower, upper, count=30)
    inputs = lower[0].numel()
    for node in inner(walk)[-8:]:
        size = torch.tensor(node.shape).prod().item()
        with torch.no_grad(), mock.patch.object(generate_module, "MOST_GENERATOR_NUMBERS", size * (inputs + room)):
            found = walk.generate(node, AFFINE)
        assert found is not None
        assert found.columns.shape[-1] <= inputs + room
        check_generators(walk, node, found, x)
        with torch.no_grad():
            whole = walk.generate(node, AFFINE)
        assert whole is not None
        assert torch.allclose(found.box().radius, whole.box().radius, rtol=1e-9)  # no column cancels another
        with mock.patch.object(generate_module, "MOST_GENERATOR_NUMBERS", size * inputs - 1):
            assert walk.generate(node, AFFINE) is None


TIGHTENINGS = {
    "nothing": Options(centred=False, generators=False),
    "centred": Options(centred=True, generators=False),
    "generators": Options(centred=False, generators=True),
    "ascent": Options(centred=False, generators=False, box_ascent=Ascent(steps=2)),
    "all": Options(box_ascent=Ascent(steps=2)),
}


TIGHTENED = ("two blocks", "pre norm, two blocks", "class token, norm", "gated", "causal", "peaked")


@pytest.mark.parametrize(
    ("name", "which"),
    few(itertools.product(TIGHTENED, TIGHTENINGS), lambda name, which: "blocks" not in name or which == "all"),
)
def test_each_tightening_alone_is_sound(name: str, which: str) -> None:
    config = dataclasses.replace(NETWORKS[name], seed=7)
    graph, (lower, upper) = transformer(config), uneven_box(config, 0.3)
    walk = boxed(graph, lower, upper, TIGHTENINGS[which])
    assert bool(walk.centred) == TIGHTENINGS[which].centred
    assert bool(walk.tables or walk.generators) <= TIGHTENINGS[which].generators
    x = hard_points(graph, lower, upper, count=40)
    check_boxes(graph, walk.boxes, x)
    A = objectives(graph, 2)
    with torch.no_grad():
        for rule in ("affine", "vertex", "lse", "rows"):
            found = walk.bound(graph.output, Part(A), Rules(attention=rule))
            check_bounds(graph, found, A, x)
    for (node, _), centred in walk.centred.items():
        s = graph.values(x)[node]
        t = s - (centred.weights * s).sum(-1, keepdim=True)
        slack = TOLERANCE * (1 + s.abs().amax(0))
        assert (t >= centred.box.lower - slack).all(), node
        assert (t <= centred.box.upper + slack).all(), node


@pytest.mark.parametrize("name", ["two blocks", "pre norm", "class token", "unfused", "max pooling"])
def test_a_joint_walk_is_never_wider_than_those_it_knows(name: str) -> None:
    config = dataclasses.replace(NETWORKS[name], seed=8)
    graph, box = transformer(config), uneven_box(config, 0.3)
    walk = Walk(graph, *box)
    with torch.no_grad():
        lower_bounds(walk, objectives(graph, 2), "joint", QUICK)
    assert len(walk.known) == 2
    for known in walk.known:
        for node in walk.nodes:
            slack = 1e-12 * (1 + known[node].lower.abs() + known[node].upper.abs())
            assert (walk.boxes[node].lower >= known[node].lower - slack).all(), node
            assert (walk.boxes[node].upper <= known[node].upper + slack).all(), node


def test_generators_are_let_go_when_all_have_used_them() -> None:
    config = NETWORKS["two blocks"]
    walk = boxed(transformer(config), *input_box(config, 1, 0.2))
    assert walk.tables
    assert not walk.generators


def test_a_node_behind_an_op_without_parallel_rules_has_none() -> None:
    config = Config(pooling="max")
    walk = boxed(transformer(config), *input_box(config, 1, 0.2))
    assert walk.generate(walk.graph.output, AFFINE) is None
