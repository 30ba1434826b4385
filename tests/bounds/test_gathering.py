"""Gathering the errors of rows: nothing is lost of what may happen, and next to nothing of what is known."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, input_box, transformer
from vertex_softmax.bounds import gathering, zonotopes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.gathering import gathered, places_to_gather
from vertex_softmax.bounds.index import GraphIndex
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotopes import boxes_by_zonotopes, lowest
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.crown import crown
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.generators import root
from vertex_softmax.ops.unknowns import GatheredUnknowns, LocalUnknowns, Unknowns, in_rows
from vertex_softmax.ops.zonotope import Ellipse, Segments, Zonotope
from vertex_softmax.sets.region import BoxRegion

ROWS, D = 4, 3
CONFIGS = {
    "pre": Config(depth=3, heads=2, norm="pre", activation="gelu", seed=4),
    "post": Config(depth=3, norm="post", mask="causal", seed=5),
    "gated": Config(depth=2, gated=True, norm="pre", activation="silu", seed=6),
    "none": Config(depth=3, class_token=True, pooling="token", seed=7),
}


def normal(generator: torch.Generator, *size: int) -> Tensor:
    return torch.randn(*size, generator=generator, dtype=torch.float64)


def drawn(seed: int, *, faint: bool = False) -> Zonotope:
    """An input in all rows, segments and balls in single rows, none in the first, few in the second."""
    generator = torch.Generator().manual_seed(seed)
    segments, some = 1e-3 * normal(generator, 2, 7, 1, ROWS, D), 1e-3 * normal(generator, 2, 2, 2, ROWS, D)
    for each in (segments, some):
        each[:, :, :, 0] = 0
        each[:, 1:, :, 1] = 0
    blocks: dict[Unknowns, Tensor] = {Unknowns("input"): normal(generator, 2, 5, 1, ROWS, D)}
    blocks |= dict([in_rows("curve", segments), in_rows("rows", some)])
    if faint:
        blocks[Unknowns("norm")] = 1e-4 * normal(generator, 2, 3, 2, ROWS, D)
    zero = torch.zeros(2, ROWS, D, dtype=torch.float64)
    return Zonotope(normal(generator, 2, ROWS, D), blocks, None, zero)


def names(zonotope: Zonotope) -> list[Unknowns]:
    return [u.everywhere if isinstance(u, LocalUnknowns) else u for u in zonotope.blocks]


@pytest.mark.parametrize("faint", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_functionals_are_bounded_as_before(seed: int, faint: bool) -> None:
    """No less; and hardly more, but for what several rows had in common."""
    before = drawn(seed, faint=faint)
    after = gathered(before)
    assert sum(isinstance(each, GatheredUnknowns) for each in names(after)) == 1
    assert len(after.blocks) == 2
    eta = normal(torch.Generator().manual_seed(seed), 2, 300, ROWS, D)
    eta[:, :100] = eta[:, :100].sign()
    eta[:, 100:112] = torch.eye(12, dtype=torch.float64).reshape(12, ROWS, D)
    least, was = lowest(after, eta), lowest(before, eta)
    assert bool((least <= was + 1e-13 * was.abs()).all())
    assert bool((after.radius >= before.radius * (1 - 1e-13)).all())
    if not faint:  # balls of two dimensions become one of three
        own = {u: x for u, x in before.blocks.items() if isinstance(u, LocalUnknowns)}
        zero = torch.zeros_like(before.centre)
        size = -lowest(Zonotope(zero, own, None, zero), eta)
        assert bool((was - least <= 0.5 * size).all())
        assert float((was - least).sum() / size.sum()) < 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-200])
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_what_was_gathered_is_in_the_ball(count: int, scale: float, dtype: torch.dtype) -> None:
    """The ball's unknowns are those that span and root say, are no longer than 1, and give the errors back."""
    if dtype is torch.float32 and scale < 1e-30:
        return
    generator = torch.Generator().manual_seed(count)
    columns, half = (normal(generator, 2, ROWS, n, D).to(dtype) * scale for n in (count, 2))
    columns[:, 0], half[:, 0], half[:, 1], columns[0, 2] = 0, 0, 0, 0
    length = torch.linalg.vector_norm(half / scale, dim=(-2, -1))
    unit = half / scale / torch.where(length > 0, length, 1.0)[..., None, None]
    others = Ellipse(unit.mT @ unit, length * scale)
    made = gathering._gathered(Segments(columns), others)
    eps = torch.finfo(dtype).eps
    factor = others.scale[..., None, None] * root(others.matrix)
    for i in range(200):
        xi = normal(generator, 2, ROWS, count, 1).to(dtype).clamp(-1, 1)
        mu = normal(generator, 2, ROWS, D, 1).to(dtype)
        mu = mu / mu.norm(dim=-2, keepdim=True)
        if i % 2:
            xi = xi.sign()
        error = (columns.mT @ xi + factor @ mu).squeeze(-1)
        nu = made.span.mT @ xi + made.root.mT @ mu
        assert bool((nu.norm(dim=-2) <= 1 + 8 * eps).all())
        known = (made.span.abs().sum((-2, -1)) > 0).unsqueeze(-1)
        off = (error - (made.columns @ nu).squeeze(-1)).abs()
        size = scale * (1 + count)
        assert bool((off <= made.slack + 64 * eps * size)[known.expand_as(off)].all())
        assert bool((made.slack <= 1e4 * eps * size).all())


def test_a_ball_that_is_not_known_by_its_parts_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_EXCESS", -1.0)
    before = drawn(0)
    after = gathered(before)
    (unknowns,) = [each for each in names(after) if isinstance(each, GatheredUnknowns)]
    assert not unknowns.span.any()
    assert bool((unknowns.root == torch.eye(D)).all())
    eta = normal(torch.Generator().manual_seed(0), 2, 100, ROWS, D)
    assert bool((lowest(after, eta) <= lowest(before, eta) + 1e-13).all())
    torch.testing.assert_close(after.slack, before.slack)


def test_what_is_large_stays_as_it_is() -> None:
    small = drawn(0)
    first, *others = small.blocks
    large = {first: small.blocks[first], **{each: 100 * small.blocks[each] for each in others}}
    few = {first: small.blocks[first], others[1]: small.blocks[others[1]][:, :1, :1]}
    bad = {**small.blocks, others[0]: torch.full_like(small.blocks[others[0]], torch.nan)}
    flat = Zonotope(small.centre[:, 0], {Unknowns("input"): small.blocks[first][..., 0, :]}, None, small.slack[:, 0])
    for zonotope in (*(dataclasses.replace(small, blocks=each) for each in (large, few, bad, {})), flat):
        assert gathered(zonotope) is zonotope
    assert gathered(small) is not small


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are gathered in networks of two blocks too."""
    monkeypatch.setattr(gathering, "FEWEST_PLACES", 1)


def test_two_blocks_gather_nothing() -> None:
    two, three = (dataclasses.replace(CONFIGS["gated"], depth=depth) for depth in (2, 3))
    assert not places_to_gather(GraphIndex(transformer(two)))
    assert len(places_to_gather(GraphIndex(transformer(three)))) == 3


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", CONFIGS)
def test_places_are_behind_each_block_and_before_the_next_attention(name: str) -> None:
    """All of the network goes through them: without the node, the output does not depend on the input."""
    graph = transformer(CONFIGS[name])
    index = GraphIndex(graph)
    places = places_to_gather(index)
    assert len(places) == CONFIGS[name].depth
    for place in places:
        reached = {graph.input} - {place}
        for node in index.nodes:
            if node is not place and any(i in reached for i in node.inputs):
                reached.add(node)
        assert graph.output not in reached or place is graph.output
        behind = [node for node in index.nodes if place in node.inputs]
        assert behind
        assert any(isinstance(node.op, MatMul) for node in index.nodes[index.position[place] :])


def question_of(graph: Graph, config: Config, radius: float) -> tuple[Question, Tensor, Tensor]:
    lower, upper = input_box(config, 2, radius)
    return Question.over(graph, BoxRegion(lower, upper)).to_first_order(), lower, upper


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("radius", [1e-3, 0.05, 0.5])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_value_is_in_its_box(name: str, radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the errors' size: at random points, at corners, and where each number is largest, to first order."""
    monkeypatch.setattr(gathering, "MOST_SHARE", 2.0)
    monkeypatch.setattr(gathering, "FAINT", 0.1)
    graph = transformer(CONFIGS[name])
    question, lower, upper = question_of(graph, CONFIGS[name], radius)
    seen = []

    def watched(x: Zonotope) -> Zonotope:
        seen.append(gathered(x) is not x)
        return gathered(x)

    monkeypatch.setattr(zonotopes, "gathered", watched)
    boxes = boxes_by_zonotopes(question)
    assert any(seen)
    last = max(places_to_gather(question.index), key=lambda node: question.index.position[node])
    middle = (lower + upper) / 2
    points = [*_drawn(lower, upper), *_attacks(graph, [last, graph.output], middle, upper - middle)]
    A = normal(torch.Generator().manual_seed(1), 2, 5, *graph.output.shape)
    least = lowest(boxes.zonotopes[graph.output], A)
    for x in points:
        for node, value in graph.values(x).items():
            box, slack = boxes[node], 1e-12 * (1 + value.abs())
            assert bool(((value >= box.lower - slack) & (value <= box.upper + slack)).all()), node
            if node is graph.output:
                assert bool(((A * value.unsqueeze(1)).flatten(2).sum(-1) >= least - 1e-12).all())


def _drawn(lower: Tensor, upper: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shares = [torch.rand(lower.shape, generator=generator, dtype=torch.float64) for _ in range(20)]
    return [lower + (upper - lower) * (share.round() if i % 2 else share) for i, share in enumerate(shares)]


def _attacks(graph: Graph, nodes: list[Node], middle: Tensor, radius: Tensor) -> list[Tensor]:
    """Both corners towards which each number of the nodes grows and falls fastest at the middle."""
    found = []
    x = middle.clone().requires_grad_(True)
    values = graph.values(x)
    for node in nodes:
        flat = values[node].flatten(1)
        for i in range(flat.shape[1]):
            (slope,) = torch.autograd.grad(flat[:, i].sum(), x, retain_graph=True)
            found += [middle + radius * slope.sign(), middle - radius * slope.sign()]
    return found


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", CONFIGS)
def test_bounds_are_hardly_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `crown`, at an ε where errors are small."""
    graph = transformer(CONFIGS[name])
    found = []
    for share in (0.02, 0.0):
        monkeypatch.setattr(gathering, "MOST_SHARE", share)
        question, _, _ = question_of(graph, CONFIGS[name], 1e-3)
        A = normal(torch.Generator().manual_seed(1), 2, 5, *graph.output.shape)
        found.append(crown(question, Objective.dense(graph.output, A), Options()).lower)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
