"""Attention taken apart is the same function, and its bounds are below every point; where it cannot be, it says so."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bounds.networks import Config, input_box, samples, transformer
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.graph.decompose import decompose
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.elementwise import Exp, Reciprocal
from vertex_softmax.ops.softmax import Softmax
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import Box

configs = st.builds(
    Config,
    depth=st.integers(1, 2),
    heads=st.integers(1, 2),
    tokens=st.integers(1, 5),
    width=st.sampled_from([2, 4, 6]),
    inputs=st.integers(1, 3),
    classes=st.integers(2, 4),
    activation=st.sampled_from(["relu", "none"]),
    pooling=st.sampled_from(["mean", "token"]),
    class_token=st.booleans(),
    gain=st.floats(0, 3),
    seed=st.integers(0, 10_000),
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def kinds(graph: Graph) -> set[type]:
    return {type(node.op) for node in graph.nodes()}


@given(configs)
@settings(max_examples=60)
def test_it_is_the_same_function(config: Config) -> None:
    graph = transformer(config)
    lower, upper = input_box(config, 1, 0.5, config.seed)
    centre = (lower + upper)[0] / 2
    apart = decompose(graph, centre)
    assert Attention in kinds(graph)
    assert not {Attention, Softmax} & kinds(apart)
    assert {Exp, Reciprocal} <= kinds(apart)
    assert apart.output.shape == graph.output.shape
    points = samples(lower, upper, 50, config.seed)[:, 0]
    expected = graph.evaluate(points)
    assert torch.allclose(apart.evaluate(points), expected, rtol=0, atol=1e-12 * float(1 + expected.abs().max()))


@given(configs)
@settings(max_examples=30)
def test_the_score_taken_off_is_the_largest_at_the_point_given(config: Config) -> None:
    graph = transformer(config)
    x = input_box(config, 1, 0.5, config.seed)[0][0]
    for node, value in decompose(graph, x).values(x).items():
        if isinstance(node.op, Exp):
            assert torch.equal(value.amax(-1), torch.ones_like(value.amax(-1)))


@given(configs, st.sampled_from([1e-3, 0.05, 0.3]))
@settings(max_examples=60)
def test_its_bounds_are_below_every_point(config: Config, radius: float) -> None:
    graph = transformer(config)
    lower, upper = input_box(config, 1, radius, config.seed)
    centre = (lower + upper) / 2
    apart = decompose(graph, centre[0])
    label = int(graph.evaluate(centre)[0].argmax())
    found = certify(apart, Box(lower, upper), label, "crown", options=Options(product=1.0))
    points = samples(lower, upper, 2000, config.seed)[:, 0]
    chance = torch.Generator().manual_seed(config.seed)
    corners = lower + (upper - lower) * torch.randint(2, (500, *lower.shape[1:]), generator=chance)
    out = graph.evaluate(torch.cat([points, corners]))
    margins = out[:, label : label + 1] - out
    others = [j for j in range(config.classes) if j != label]
    lowest = margins.amin(0)[others]
    assert bool((found.lower[0, others] <= lowest + 1e-9 * (1 + lowest.abs())).all())
    if radius < 0.01 and config.gain < 1:
        assert bool((found.lower[0, others] > lowest - 1).all()), "sound, but says nothing"


@pytest.mark.parametrize("mask", ["causal", "padding"])
def test_masked_keys_are_refused_with_the_place(mask: str) -> None:
    config = Config(mask=mask)
    with pytest.raises(InvalidValueError, match=r"attention_\d+: an attention with masked keys cannot be taken apart"):
        decompose(transformer(config), input_box(config, 1, 0.1)[0][0])


def test_a_mask_that_masks_nothing_is_no_obstacle() -> None:
    config = Config()
    graph = transformer(config)
    x = input_box(config, 1, 0.1)[0][0]
    unmasked = torch.zeros(config.tokens, config.tokens, dtype=torch.bool)
    graph = graph.map(
        lambda node, inputs: (
            build.apply(Attention(unmasked) if isinstance(node.op, Attention) else node.op, *inputs, name=node.name)
            if inputs
            else node
        )
    )
    assert any(isinstance(node.op, Attention) and node.op.mask is not None for node in graph.nodes())
    assert torch.allclose(decompose(graph, x).evaluate(x), graph.evaluate(x), rtol=0, atol=1e-12)


def test_a_graph_without_attention_is_left_as_it_is() -> None:
    x = build.source((3,))
    graph = Graph(x, build.affine(x, torch.ones(2, 3, dtype=torch.float64), torch.zeros(2).double(), "linear"))
    assert decompose(graph, torch.zeros(3, dtype=torch.float64)) is graph
