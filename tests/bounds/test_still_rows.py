"""Rows that do not move are left out: the same bounds, and no value of the old network is outside those of the new."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import vertex_softmax as vx
from tests.bounds.checks import QUICK
from tests.bounds.networks import Config, descend, samples, transformer
from vertex_softmax.bounds import still_rows
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.still_rows import without_still_rows
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.methods.registry import lower_bounds
from vertex_softmax.ops.enclosed import Enclosed
from vertex_softmax.sets.region import BoxRegion

CAUSAL = Config(tokens=6, depth=2, heads=2, width=4, mask="causal", norm="pre", activation="gelu", pooling="mean")
"""Its mean is over all rows, still ones too."""
CONFIGS = [
    CAUSAL,
    dataclasses.replace(CAUSAL, norm="post", activation="silu", gated=True),
    dataclasses.replace(CAUSAL, norm="none", activation="relu", pooling="max"),
    dataclasses.replace(CAUSAL, fused=False, norm="pre", pooling="mean"),
    dataclasses.replace(CAUSAL, mask="none", depth=1, norm="pre"),
]


def box(config: Config, tokens: list[int], radius: float = 0.02) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    centre = torch.randn(1, config.tokens, config.inputs, generator=generator, dtype=torch.float64)
    wide = torch.zeros_like(centre)
    wide[:, tokens] = radius
    return centre - wide, centre + wide


def bound(graph: Graph, lower: Tensor, upper: Tensor, method: str) -> Tensor:
    A = torch.eye(graph.output.shape[-1], dtype=lower.dtype)
    A = torch.cat([A, -A]).unsqueeze(0)
    question = Question.over(graph, BoxRegion(lower, upper))
    with torch.no_grad():
        return lower_bounds(question, Objective.dense(graph.output, A), method, QUICK).lower


@pytest.mark.parametrize(
    "config", [CONFIGS[0], *(pytest.param(c, marks=pytest.mark.slow) for c in CONFIGS[1:])], ids=str
)
@pytest.mark.parametrize("tokens", [[5], [1, 4], pytest.param([3], marks=pytest.mark.slow)], ids=str)
def test_the_same_bounds_and_none_is_above_a_value(
    config: Config, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(still_rows, "LEAST_SHARE", 0.0)
    graph = simplify(transformer(config))
    lower, upper = box(config, tokens)
    new = without_still_rows(graph, BoxRegion(lower, upper))
    assert any(isinstance(node.op, Enclosed) for node in new.nodes()) or config.mask == "none"
    A = torch.eye(graph.output.shape[-1], dtype=lower.dtype)
    A = torch.cat([A, -A]).unsqueeze(0)
    points = torch.cat([samples(lower, upper, 60), descend(graph, graph.output, A, lower, upper)])
    values = torch.cat([graph.evaluate(points), -graph.evaluate(points)], -1)  # (points, 1, 2 · classes)
    torch.testing.assert_close(new.evaluate(points), graph.evaluate(points), rtol=1e-9, atol=1e-9)
    for method in ("crown", "joint"):
        before, after = (bound(each, lower, upper, method) for each in (graph, new))
        assert bool((after <= values.amin(0) + 1e-9).all())
        torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tokens", [[5], [2, 4]], ids=str)
def test_what_is_known_holds_the_values_of_the_rows_it_stands_for(
    tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the node's name: every value of the old network, at any input, lies between the ends."""
    monkeypatch.setattr(still_rows, "LEAST_SHARE", 0.0)
    graph = simplify(transformer(CAUSAL))
    lower, upper = box(CAUSAL, tokens, radius=3.0)
    new = without_still_rows(graph, BoxRegion(lower, upper))
    values = graph.values(samples(lower, upper, 40)[:, 0])
    known = [node for node in new.nodes() if isinstance(node.op, Enclosed)]
    assert known
    for node in known:
        found = [value for old, value in values.items() if old.name == node.name]
        assert any(_some_rows_lie_in(value, node.op.lower, node.op.upper) for value in found), node


def _some_rows_lie_in(values: Tensor, lower: Tensor, upper: Tensor) -> bool:
    """Whether some rows along one dimension of values (points, *shape) are the ones between the ends."""
    if values.dim() != lower.dim() + 1:
        return False
    differ = [d for d in range(lower.dim()) if values.shape[1 + d] != lower.shape[d]]
    if len(differ) > 1:
        return False
    if not differ:
        return bool(((lower <= values) & (values <= upper)).all())
    dim = differ[0]
    still = (values.amax(0) - values.amin(0)).movedim(dim, 0).flatten(1).amax(1) < 1e-12
    rows = still.nonzero().flatten()
    picked = values.index_select(1 + dim, rows)
    return picked.shape[1 + dim] == lower.shape[dim] and bool(((lower <= picked) & (picked <= upper)).all())


def test_fewer_numbers_are_computed() -> None:
    graph = simplify(transformer(CAUSAL))
    new = without_still_rows(graph, BoxRegion(*box(CAUSAL, [5])))

    def rows(of: Graph) -> int:
        return sum(node.shape[0] for node in of.nodes() if "gelu" in node.name)

    assert rows(graph) == 12
    assert rows(new) == 2


def test_what_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = simplify(transformer(CAUSAL))
    lower, upper = box(CAUSAL, [5])
    single = BoxRegion(lower.float(), upper.float())
    assert without_still_rows(graph.to(torch.float32), single).dtype == torch.float32
    unchanged = {
        "all tokens move": BoxRegion(lower - 0.1, upper),
        "a point": BoxRegion(lower, lower),
        "several sets": BoxRegion(lower.expand(2, -1, -1), upper.expand(2, -1, -1)),
        "few rows are still": BoxRegion(*box(CAUSAL, [0])),
    }
    for region in unchanged.values():
        assert without_still_rows(graph, region) is graph
    overflowing = simplify(transformer(dataclasses.replace(CAUSAL, norm="none", activation="none", gated=True)))
    assert without_still_rows(overflowing, BoxRegion(1e200 * lower, 1e200 * upper)) is overflowing


@pytest.mark.parametrize("method", ["crown", pytest.param("bab", marks=pytest.mark.slow)])
def test_certify_of_a_model_with_a_fixed_prompt(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = simplify(transformer(CAUSAL))
    lower, upper = box(CAUSAL, [4, 5], radius=0.3)
    label = graph.evaluate((lower + upper)[0] / 2).argmax()
    found = vx.certify(graph, vx.Box(lower, upper), label, method)
    monkeypatch.setattr(still_rows, "LEAST_SHARE", 2.0)
    plain = vx.certify(graph, vx.Box(lower, upper), label, method)
    assert found.verdicts == plain.verdicts
    if method == "crown":
        torch.testing.assert_close(found.lower, plain.lower, rtol=1e-6, atol=1e-6)


class OfWhatComesBack(nn.Module):
    """(1.5, the first token) for tokens ≥ 0: they are multiplied by small numbers and divided again."""

    def forward(self, x: Tensor) -> Tensor:
        back = x
        for factor in [1e-28] * 12 + [1e28] * 12:
            back = torch.relu(back * factor)
        return torch.cat([1.5 + 0 * back[:, 1], back[:, 0]], -1)


def test_what_underflowed_in_a_still_row_is_not_forgotten() -> None:
    """The second output is 2; its box at a point would be [0, 0]."""
    x = torch.tensor([[[2.0], [1.0]]], dtype=torch.float64)
    found = vx.certify(OfWhatComesBack().eval(), vx.Box(x, x + torch.tensor([[0.0], [0.1]])), 0, "ibp", attack=None)
    assert found.verdict == "unknown"
