"""Random heads are drawn as the protocol says, whatever else is drawn; their margin is what a plain loop computes."""

from __future__ import annotations

import math

import pytest
import torch

from vertex_lab.experiments.synthetic import BATCH, WIDTH, Heads, heads
from vertex_softmax.ops.attention import Attention

PARTS = ("x", "query", "key", "value", "output")


def joined(keys: int, seed: int, count: int, width: int = WIDTH) -> Heads:
    batches = list(heads(keys, seed, count, width))
    assert [len(batch) for batch in batches[:-1]] == [BATCH] * (len(batches) - 1)
    return Heads(*(torch.cat([getattr(batch, part) for batch in batches]) for part in PARTS))


def same(a: Heads, b: Heads) -> bool:
    return all(torch.equal(getattr(a, part), getattr(b, part)) for part in PARTS)


@pytest.mark.parametrize("count", [1, 3, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH, 120])
def test_a_trial_does_not_depend_on_how_many_are_drawn(count: int) -> None:
    everything, some = joined(5, 2, 130), joined(5, 2, count)
    assert len(some) == count
    assert same(some, everything.first(count))
    assert same(some.at(count - 1), everything.at(count - 1))


def test_seeds_keys_and_widths_give_other_trials() -> None:
    drawn = [joined(*which).first(1) for which in ((4, 0, 1), (4, 1, 1), (5, 0, 1), (4, 0, 1, 32), (4, 1, 1, 32))]
    numbers = {round(float(head.x.flatten()[0]), 12) for head in drawn}
    assert len(numbers) == len(drawn)
    assert len(joined(4, 0, 200).x.unique()) == 200 * 4 * WIDTH  # no batch is drawn twice
    torch.manual_seed(1)
    first = joined(4, 0, 1)
    torch.manual_seed(2)
    assert same(first, joined(4, 0, 1))  # nor does torch's own generator matter
    assert not list(heads(4, 0, 0))


@pytest.mark.parametrize("width", [16, 32])
def test_scales_are_the_protocols(width: int) -> None:
    """x ~ N(0, 1), weights ~ N(0, (0.75/√d)²), 1/√d on the scores, output ~ N(0, 1)/√d."""
    found = joined(6, 0, 400, width)
    root = math.sqrt(width)
    wanted = {"x": 1, "query": 0.75 / root / root, "key": 0.75 / root, "value": 0.75 / root, "output": 1 / root}
    for part, scale in wanted.items():
        values = getattr(found, part)
        error = scale / math.sqrt(values.numel())
        assert values.dtype == torch.float64
        assert float(values.std()) == pytest.approx(scale, abs=5 * error)
        assert float(values.mean()) == pytest.approx(0, abs=5 * error)
    assert found.x.shape == (400, 6, width)
    assert found.query.shape == found.key.shape == found.value.shape == (400, width, width)
    assert found.output.shape == (400, width)


@pytest.mark.parametrize(
    ("keys", "seed", "width", "start"), [(4, 0, 16, 4), (6, 2, 16, 2_000_012), (4, 1, 32, 1_320_231)]
)
def test_the_draws_are_those_that_are_documented(keys: int, seed: int, width: int, start: int) -> None:
    """1,000,003 · seed + K, plus 10,007 · d where d is not 16; x, queries, keys, values, output, for all of a batch."""
    generator = torch.Generator().manual_seed(start)
    shapes = {"x": (keys, width), "query": (width, width), "key": (width, width), "value": (width, width)}
    first = joined(keys, seed, BATCH, width)
    for part, shape in {**shapes, "output": (width,)}.items():
        drawn = torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64)
        found = getattr(first, part)
        assert torch.allclose(found / found.std(), drawn / drawn.std(), rtol=0, atol=1e-12), part


def by_hand(head: Heads, x: torch.Tensor) -> float:
    """Every sum written out, 1/√d taken out of the queries and put where the paper has it."""
    keys, width = x.shape
    root = math.sqrt(width)

    def row(i: int, weights: torch.Tensor) -> list[float]:
        return [sum(float(x[i, a] * weights[a, b]) for a in range(width)) for b in range(width)]

    queries, content = ([row(i, w) for i in range(keys)] for w in (head.query * root, head.value))
    against = [row(i, head.key) for i in range(keys)]
    total = 0.0
    for i in range(keys):
        scores = [sum(q * k for q, k in zip(queries[i], against[j], strict=True)) / root for j in range(keys)]
        weights = [math.exp(s) for s in scores]
        for j in range(keys):
            out = sum(v * float(o) for v, o in zip(content[j], head.output, strict=True))
            total += weights[j] / sum(weights) * out
    return total / keys


@pytest.mark.parametrize(("keys", "width"), [(1, 16), (3, 16), (4, 8)])
def test_the_margin_is_what_a_loop_computes(keys: int, width: int) -> None:
    found = joined(keys, 3, 4, width)
    moved = found.x + 0.1
    for i in range(len(found)):
        head = found.at(i)
        assert float(head.margin()) == pytest.approx(by_hand(head, head.x), abs=1e-12)
        assert float(found.margin()[i]) == pytest.approx(float(head.margin()), abs=1e-12)
        assert float(found.margin(moved)[i]) == pytest.approx(by_hand(head, moved[i]), abs=1e-12)


@pytest.mark.parametrize(("keys", "width"), [(1, 16), (4, 16), (6, 16), (4, 32)])
def test_the_graph_is_the_margin_with_class_0_positive(keys: int, width: int) -> None:
    found = joined(keys, 1, 6, width)
    generator = torch.Generator().manual_seed(5)
    for i in range(len(found)):
        head = found.at(i)
        graph = head.graph()
        assert sum(isinstance(node.op, Attention) for node in graph.nodes()) == 1
        points = head.x + torch.randn(7, keys, width, generator=generator, dtype=torch.float64)
        margins = torch.stack([head.margin(x) for x in points])
        out = graph.evaluate(points)
        assert out.shape == (7, 2)
        assert torch.allclose(out[:, 0] - out[:, 1], margins, rtol=0, atol=1e-12)
        assert torch.allclose(out.sum(1), torch.zeros(7).double(), atol=1e-12)


def test_the_sign_makes_the_margin_positive() -> None:
    found = joined(4, 0, 200)
    signs = found.sign
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert bool((signs * found.margin() > 0).all())
    nothing = Heads(*(torch.zeros_like(getattr(found.at(0), part)) for part in PARTS))
    assert float(nothing.sign) == -1.0
