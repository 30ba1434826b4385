"""Generators of whole networks: one ν for all numbers of a node, on sampled inputs; and boxes with every tightening."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tests.bounds.checks import (
    TOLERANCE,
    Ready,
    asked,
    by_method,
    check_bounds,
    check_boxes,
    hard_points,
    objectives,
    tightened,
)
from tests.bounds.networks import Config, input_box, transformer
from tests.bounds.test_backward import CONFIGS, LARGEST, configs, radii, usable
from tests.slowly import few
from vertex_softmax.bounds import generate as generate_module
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.generate import generate
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.methods import joint
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.rules import RowRule, Rules

AFFINE = Rules(attention=RowRule.AFFINE, exact=False)
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


def boxed(graph: Graph, lower: Tensor, upper: Tensor, options: Options = QUICK, memory: Memory | None = None) -> Ready:
    return tightened(graph, lower, upper, options, memory)


def generated(ready: Ready, node: Node) -> Generators | None:
    with torch.no_grad():
        return generate(ready.question, ready.boxes, node, AFFINE)


def unit_inputs(ready: Ready, x: Tensor) -> Tensor:
    """ξ of inputs x (points, batch, ...): (points, batch, inputs), 0 where the set has no width."""
    box = ready.question.region.box
    start = ready.graph.values(x)[ready.question.index.start]
    wide = box.radius > 0
    xi = (start - box.centre) / torch.where(wide, box.radius, torch.ones_like(box.radius))
    return torch.where(wide, xi, torch.zeros_like(xi)).flatten(2)


def check_generators(ready: Ready, node: Node, found: Generators, x: Tensor, seed: int = 0) -> None:
    """|η·(y − centre − columns ξ)| ≤ Σ |η·noise| + |η|·error for functionals of all numbers of a node at once."""
    g = torch.Generator().manual_seed(seed)
    size = found.centre[0].numel()
    y = ready.graph.values(x)[node].flatten(2)  # (points, batch, numbers)
    xi = unit_inputs(ready, x)
    assert (xi.abs() <= 1 + 1e-12).all()
    inputs = xi.shape[-1]
    columns = found.columns.reshape(ready.question.batch, size, -1)
    own, noise = columns[..., :inputs], columns[..., inputs:]
    rest = y - found.centre.flatten(1) - (own @ xi.unsqueeze(-1)).squeeze(-1)
    eta = torch.randn(ready.question.batch, 12, size, generator=g, dtype=torch.float64)
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


def inner(ready: Ready) -> list[Node]:
    return [n for n in ready.nodes if n.inputs and not isinstance(n.op, Constant)]


def check_all_generators(config: Config, lower: Tensor, upper: Tensor, *, memory: Memory | None = None) -> int:
    """Every node of a network that has them; how many."""
    graph = transformer(config)
    ready = boxed(graph, lower, upper, memory=memory)
    x = hard_points(graph, lower, upper, count=40)
    check_boxes(graph, ready.boxes, x)
    count = 0
    for i, node in enumerate(inner(ready)):
        found = generated(ready, node)
        if found is not None:
            count += 1
            check_generators(ready, node, found, x, i)
    return count


@pytest.mark.parametrize("name", few(NETWORKS, lambda name: name not in CONFIGS or name not in LARGEST))
def test_one_noise_serves_all_numbers(name: str) -> None:
    config = dataclasses.replace(NETWORKS[name], seed=4)
    assert check_all_generators(config, *uneven_box(config)) > 8


@settings(max_examples=6)
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
        a, b = generated(whole, node), generated(chunked, node)
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
    ready = boxed(graph, lower, upper)
    x = hard_points(graph, lower, upper, count=30)
    inputs = lower[0].numel()
    for node in inner(ready)[-8:]:
        size = torch.tensor(node.shape).prod().item()
        with mock.patch.object(generate_module, "MOST_GENERATOR_NUMBERS", size * (inputs + room)):
            found = generated(ready, node)
        assert found is not None
        assert found.columns.shape[-1] <= inputs + room
        check_generators(ready, node, found, x)
        whole = generated(ready, node)
        assert whole is not None
        assert torch.allclose(found.box().radius, whole.box().radius, rtol=1e-9)  # no column cancels another
        with mock.patch.object(generate_module, "MOST_GENERATOR_NUMBERS", size * inputs - 1):
            assert generated(ready, node) is None


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
    ready = boxed(graph, lower, upper, TIGHTENINGS[which])
    boxes = ready.boxes
    assert bool(boxes.centred) == TIGHTENINGS[which].centred
    assert bool(boxes.summaries or boxes.generators) <= TIGHTENINGS[which].generators
    x = hard_points(graph, lower, upper, count=40)
    check_boxes(graph, boxes, x)
    A = objectives(graph, 2)
    with torch.no_grad():
        for rule in RowRule:
            check_bounds(graph, ready.bound(A, Rules(attention=rule)), A, x)
    for (node, _), centred in boxes.centred.items():
        s = graph.values(x)[node]
        t = s - (centred.weights * s).sum(-1, keepdim=True)
        slack = TOLERANCE * (1 + s.abs().amax(0))
        assert (t >= centred.box.lower - slack).all(), node
        assert (t <= centred.box.upper + slack).all(), node


@pytest.mark.parametrize("name", ["two blocks", "pre norm", "class token", "unfused", "max pooling"])
def test_the_boxes_of_joint_are_never_wider_than_those_it_knows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(NETWORKS[name], seed=8)
    graph, box = transformer(config), uneven_box(config, 0.3)
    real, given = joint.tightened_boxes, []

    def noted(question: Question, options: Options, known: Sequence[Boxes]) -> Boxes:
        given.extend(known)
        return real(question, options, known)

    monkeypatch.setattr(joint, "tightened_boxes", noted)
    boxes = by_method(asked(graph, *box), "joint", QUICK).boxes
    assert len(given) == 1  # those of hybrid, in which those of crown and vertex are met
    for known in (*given, by_method(asked(graph, *box), "crown", QUICK).boxes):
        for node in graph.nodes():
            slack = 1e-12 * (1 + known[node].lower.abs() + known[node].upper.abs())
            assert (boxes[node].lower >= known[node].lower - slack).all(), node
            assert (boxes[node].upper <= known[node].upper + slack).all(), node


def test_generators_are_dropped_when_all_have_used_them() -> None:
    config = NETWORKS["two blocks"]
    boxes = boxed(transformer(config), *input_box(config, 1, 0.2)).boxes
    assert boxes.summaries
    assert not boxes.generators


def test_a_node_behind_an_op_without_parallel_rules_has_none() -> None:
    config = Config(pooling="max")
    ready = boxed(transformer(config), *input_box(config, 1, 0.2))
    assert generated(ready, ready.graph.output) is None
