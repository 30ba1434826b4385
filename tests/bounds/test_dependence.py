"""Numbers that are not marked do not change, whatever the inputs that are marked do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, transformer
from vertex_softmax.bounds.dependence import moving_numbers
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops.attention import Attention

CONFIGS = [
    Config(tokens=5, depth=2, heads=2, mask="causal", norm="pre", activation="gelu", pooling="mean"),
    Config(tokens=4, depth=2, mask="causal", norm="post", activation="silu", gated=True, pooling="max"),
    Config(tokens=4, depth=1, mask="causal", fused=False, pooling="token"),
    Config(tokens=4, depth=2, mask="padding", class_token=True, pooling="token"),
    Config(tokens=4, depth=2, heads=2, norm="pre"),
]


def moved(config: Config, tokens: list[int], inputs: list[int]) -> Tensor:
    """Where the input moves: some numbers of some tokens."""
    marks = torch.zeros(config.tokens, config.inputs, dtype=torch.bool)
    for token in tokens:
        marks[token, inputs] = True
    return marks


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize(("tokens", "inputs"), [([3], [0]), ([0], [1]), ([1, 3], [0, 1])])
def test_what_is_not_marked_stays(config: Config, tokens: list[int], inputs: list[int]) -> None:
    graph = transformer(config)
    marks = moved(config, tokens, inputs)
    found = moving_numbers(graph, marks)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(config.tokens, config.inputs, generator=generator, dtype=torch.float64)
    others = torch.where(marks, 10 * torch.randn(20, *x.shape, generator=generator, dtype=torch.float64), x)
    before, after = graph.values(x.expand_as(others)), graph.values(others)
    for node in graph.nodes():
        change = (after[node] - before[node]).abs().amax(0)
        assert float(torch.where(found[node], torch.zeros_like(change), change).max()) <= 1e-12, node


def test_the_rows_before_a_token_of_a_causal_network_are_not_marked() -> None:
    config = CONFIGS[0]
    graph = transformer(config)
    found = moving_numbers(graph, moved(config, [3], [0]))
    rows = [found[node] for node in graph.nodes() if isinstance(node.op, Attention)]
    assert len(rows) == 2
    for marks in rows:  # (heads, tokens, width)
        assert marks.any(-1).any(0).tolist() == [False, False, False, True, True]


def test_a_mask_by_a_large_number_hides_nothing() -> None:
    """A weight of e^−10000 is not 0: such a row has no one value."""
    x = build.source((2, 3))
    mask = torch.tensor([[False, True], [False, False]])
    op = Attention(mask, torch.where(mask, -1e4, 0.0).double())
    scores = build.matmul(x, build.transpose(x, -2, -1, "t"), "scores")
    graph = Graph(x, build.apply(op, scores, x, name="attention"))
    assert bool(moving_numbers(graph, torch.tensor([[False] * 3, [True] * 3]))[graph.output].all())


def test_attention_reads_its_values_where_its_scores_do_not_move() -> None:
    x = build.source((2, 3))
    scores = build.constant(torch.zeros(2, 2, dtype=torch.float64))
    mask = torch.tensor([[False, True], [False, False]])
    graph = Graph(x, build.apply(Attention(mask), scores, x, name="attention"))
    found = moving_numbers(graph, torch.tensor([[False] * 3, [False, True, False]]))[graph.output]
    assert found.tolist() == [[False] * 3, [False, True, False]]
