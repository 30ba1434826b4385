"""The paper's CROWN as auto_LiRPA has it: equal to its recorded bounds, and sound; Hybrid the larger per target."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from vertex_lab.experiments import published
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.sets import LinfBall

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "lab" / "benchmarks"))  # scripts, not a package

import anchors  # noqa: E402

needs_anchors = pytest.mark.skipif(not anchors.DATA.is_dir(), reason=f"no anchor files at {anchors.DATA}")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@needs_anchors
@pytest.mark.parametrize("count", [3, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", anchors.FILES)
def test_it_equals_the_recorded_bounds_of_auto_lirpa(name: str, count: int) -> None:
    model, images, labels, anchor = anchors.read(anchors.DATA, name)
    rows = anchor["rows"][:count]
    which = [row["image"] for row in rows]
    ball = LinfBall(images[which], anchor["epsilon"], clip=(0, 1))
    found = published.crown_published(load(model, ball[:1]), ball, labels[which]).amin(1)
    recorded = torch.tensor([row["crown_exp_reciprocal"] for row in rows], dtype=torch.float64)
    assert torch.allclose(found, recorded, rtol=1e-6, atol=1e-6)


def model_and_ball(epsilon: float, seed: int = 0) -> tuple[PatchTransformer, LinfBall, torch.Tensor]:
    model = PatchTransformer(patch=4, dim=8, heads=2, mlp=8, classes=3, seed=seed).double().eval()
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return model, LinfBall(images, epsilon, clip=(0, 1)), model(images).argmax(-1)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.1])
def test_it_is_sound(epsilon: float) -> None:
    model, ball, labels = model_and_ball(epsilon)
    found = published.crown_published(load(model, ball), ball, labels)
    assert bool((found[torch.arange(3), labels] == torch.inf).all())
    generator = torch.Generator().manual_seed(7)
    for i in range(len(ball)):
        low, high = ball.lower[i], ball.upper[i]
        share = torch.rand(2000, *low.shape, generator=generator, dtype=torch.float64)
        share[:1000] = share[:1000].round()
        with torch.no_grad():
            logits = model(low + share * (high - low))
        margins = (logits[:, labels[i]].unsqueeze(1) - logits).amin(0)
        for target in range(3):
            if target != int(labels[i]):
                assert float(found[i, target]) <= float(margins[target]) + 1e-9
    if epsilon == 0:
        with torch.no_grad():
            logits = model(ball.centre)
        clean = logits.gather(1, labels[:, None]) - logits
        others = torch.arange(3)[None] != labels[:, None]
        assert torch.allclose(found[others], clean[others], atol=1e-9)


def test_hybrid_is_the_larger_per_target() -> None:
    model, ball, labels = model_and_ball(0.05, seed=3)
    graph = load(model, ball)
    crown = published.crown_published(graph, ball, labels)
    vertex = certify(graph, ball, labels, "vertex").lower
    for i, entry in enumerate(published.published_bounds(graph, ball, labels)):
        assert entry[published.CROWN]["worst"] == pytest.approx(float(crown[i].amin()), abs=1e-12)
        best = float(torch.maximum(crown[i], vertex[i]).amin())
        assert entry[published.HYBRID]["worst"] == pytest.approx(best, abs=1e-12)
        assert entry[published.HYBRID]["certified"] == (best > 0)
        assert best >= float(vertex[i].amin())


def test_no_bound_is_not_certified() -> None:
    """A ball so wide that the boxes alone break: CROWN says None, Hybrid falls back on Vertex."""
    model, ball, labels = model_and_ball(0.9)
    for value in model.parameters():
        value.data.mul_(6)
    graph = load(model, ball)
    for entry in published.published_bounds(graph, ball, labels):
        assert entry[published.CROWN]["certified"] is False
        assert entry[published.HYBRID]["worst"] is not None
