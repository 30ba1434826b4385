"""Attacks stay in the set, keep the lowest margins they saw, and find what is there to find."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.search import attack
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import Box, LinfBall, LpBall, TokenBall


def weights(classes: int = 4, inputs: int = 6) -> torch.Tensor:
    return torch.randn(classes, inputs, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def images(batch: int = 5, *shape: int) -> torch.Tensor:
    return torch.rand(batch, *(shape or (6,)), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(scope="module")
def network() -> PatchTransformer:
    return PatchTransformer(patch=4, dim=8, heads=2, mlp=8, seed=2).double().eval()


def margins_at(model, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits = model(x)
    return logits.gather(1, labels[:, None]) - logits


def test_a_linear_function_is_minimised_exactly() -> None:
    W, x, labels = weights(), images(), torch.tensor([0, 1, 2, 3, 0])
    ball = LinfBall(x, 0.25, clip=(0, 1))
    found = pgd(lambda z: z @ W.T, ball, labels)
    difference = W[labels][:, None] - W[None]  # (batch, targets, inputs)
    least = (difference.clamp(min=0) * ball.lower[:, None] + difference.clamp(max=0) * ball.upper[:, None]).sum(-1)
    least[torch.arange(5), labels] = torch.inf
    torch.testing.assert_close(found.margins, least, rtol=0, atol=1e-12)
    assert torch.equal(found.worst, found.margins.amin(1))
    fooled = int((least.amin(1) < 0).sum())
    assert repr(found) == f"Attack({fooled} of 5 inputs misclassified, least margin {float(least.amin()):.4g})"


def test_margins_belong_to_inputs_that_lie_in_the_set(network) -> None:
    x, labels = images(4, 1, 8, 8), torch.tensor([3, 1, 4, 1])
    ball = LinfBall(x, torch.tensor([0.3, 0.0, 0.01, 0.1]), clip=(0, 1))
    found = pgd(network, ball, labels, steps=10)
    assert found.inputs.shape == (4, 10, 1, 8, 8)
    for t in range(10):
        assert ball.contains(found.inputs[:, t]).all()
        beside = margins_at(network, found.inputs[:, t], labels)[:, t]
        torch.testing.assert_close(found.margins[:, t], beside.where(labels != t, torch.inf), rtol=0, atol=1e-12)
    assert torch.equal(found.inputs[torch.arange(4), labels], x)
    assert torch.equal(found.inputs[1], x[1].expand(10, -1, -1, -1))  # the point alone
    worst = margins_at(network, found.counterexamples, labels)
    worst[torch.arange(4), labels] = torch.inf
    torch.testing.assert_close(worst.amin(1), found.worst, rtol=0, atol=1e-12)


def test_it_beats_random_search_and_the_centre(network) -> None:
    x, labels = images(6, 1, 8, 8), torch.arange(6)
    ball = LinfBall(x, 0.1, clip=(0, 1))
    found = pgd(network, ball, labels)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        u = torch.rand(x.shape, generator=generator, dtype=torch.float64)
        for point in (ball.lower + u * (ball.upper - ball.lower), torch.where(u < 0.5, ball.lower, ball.upper)):
            seen = margins_at(network, point, labels)
            seen[torch.arange(6), labels] = torch.inf
            assert (found.margins <= seen).all()


def test_more_work_is_never_worse_than_the_centre_alone(network) -> None:
    x, labels = images(3, 1, 8, 8), torch.tensor([0, 1, 2])
    ball = LinfBall(x, 0.05, clip=(0, 1))
    centre = margins_at(network, x, labels)
    centre[torch.arange(3), labels] = torch.inf
    alone = pgd(network, ball, labels, steps=0, restarts=1)
    torch.testing.assert_close(alone.margins, centre, rtol=0, atol=1e-12)
    some = pgd(network, ball, labels, steps=5, restarts=1)
    assert (some.margins <= alone.margins + 1e-12).all()
    assert (pgd(network, ball, labels, steps=5, restarts=6).margins <= some.margins + 1e-12).all()


def test_the_seed_decides_and_torchs_own_generator_is_left_alone() -> None:
    W, ball = weights(), LinfBall(images(), 0.5)
    before = torch.random.get_rng_state()
    first, again, other = (pgd(lambda z: (20 * z @ W.T).sin(), ball, 3, steps=2, restarts=6, seed=s) for s in (7, 7, 8))
    assert torch.equal(first.margins, again.margins)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    assert torch.equal(before, torch.random.get_rng_state())


def test_images_in_turn_give_what_they_give_together(network, monkeypatch) -> None:
    ball, labels = LinfBall(images(5, 1, 8, 8), 0.1, clip=(0, 1)), torch.arange(5)
    together = pgd(network, ball, labels, steps=10)
    monkeypatch.setattr(attack, "POINTS", 80)  # two images at a time
    torch.testing.assert_close(pgd(network, ball, labels, steps=10).margins, together.margins, rtol=0, atol=1e-6)
    assert pgd(network, ball[[]], torch.arange(0)).margins.shape == (0, 10)


def test_a_graph_is_attacked_like_the_function_it_is() -> None:
    W = weights()
    x = build.source((1, 6))
    graph = Graph(x, build.affine(x, W, None, "linear"))
    ball = LinfBall(images(), 0.2)
    found = pgd(graph, ball, 2)
    torch.testing.assert_close(found.margins, pgd(lambda z: z @ W.T, ball, 2).margins, rtol=0, atol=1e-12)


def test_a_float32_module_is_attacked_in_float64_and_not_changed() -> None:
    model = PatchTransformer(patch=4, dim=8, seed=2).eval()
    found = pgd(model, LinfBall(images(2, 1, 8, 8), 0.1), 0, steps=3)
    assert found.margins.dtype == torch.float64
    assert model.embed.weight.dtype == torch.float32
    assert all(p.grad is None for p in model.parameters())


def test_tokens_that_may_not_move_do_not() -> None:
    embeddings = images(2, 3, 4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double().eval()
    ball = TokenBall(embeddings, 0.5, tokens=[1])
    found = pgd(model, ball, 0, steps=3)
    moved = (found.inputs != embeddings[:, None]).any(-1)
    assert not moved[:, :, [0, 2]].any()
    assert moved[:, 1:, 1].all()


def test_flat_and_steep_functions_are_no_trouble() -> None:
    ball = Box(torch.zeros(1, 2), torch.ones(1, 2))
    constant = pgd(lambda z: torch.ones(len(z), 3, dtype=torch.float64), ball, 1, steps=2)
    assert constant.margins.tolist() == [[0.0, torch.inf, 0.0]]
    # NaN away from the centre is never taken for a low margin
    holes = pgd(lambda z: torch.stack([z[:, 0] - 0.25, (0.7 - z[:, 0]).sqrt() * 0], 1), ball, 0, steps=5)
    assert holes.margins[0, 1] == -0.25
    assert holes.margins[0, 0] == torch.inf


def test_the_step_is_the_one_asked_for() -> None:
    W, ball = weights(2), LinfBall(images(1), 0.5)
    found = pgd(lambda z: z @ W.T, ball, 0, steps=3, step_size=0.01, restarts=1)
    torch.testing.assert_close((found.inputs[0, 1] - ball.centre[0]).abs(), torch.full((6,), 0.03, dtype=torch.float64))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"steps": -1}, InvalidValueError, "steps is -1"),
        ({"restarts": 0}, InvalidValueError, "restarts is 0"),
        ({"step_size": 0.0}, InvalidValueError, "step_size is 0.0"),
        ({"label": 10}, InvalidValueError, "label 10 of input 0 is not a class: they are 0 to 9"),
        ({"label": torch.tensor([0, -1])}, InvalidValueError, "label -1 of input 1"),
        ({"label": [0, 1, 2]}, InvalidValueError, r"label has shape \(3,\); pass one label, or one for each of 2"),
        ({"label": 0.5}, InvalidTypeError, "labels are integers"),
        ({"model": lambda z: z}, InvalidValueError, r"gives \(2, 1, 8, 8\) for 2 inputs"),
        ({"model": lambda z: z.flatten(1).float()}, InvalidTypeError, "gives torch.float32"),
        ({"model": lambda z: z.flatten(1) / 0}, InvalidValueError, "centre of input 0 are not finite"),
        ({"model": PatchTransformer()}, InvalidValueError, r"call model.eval\(\)"),
    ],
)
def test_refused(network, change, error, message) -> None:
    arguments = {"model": network, "input_set": LinfBall(images(2, 1, 8, 8), 0.1), "label": 0, **change}
    with pytest.raises(error, match=message):
        pgd(**arguments)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("clip", [None, (0, 1)])
@pytest.mark.parametrize("p", [1, 2, torch.inf])
def test_every_ball_is_attacked_from_inside(network, p, clip, per_token) -> None:
    """No point outside is ever returned, and the centre is beaten, in balls of every norm."""
    x, labels = images(3, 1, 8, 8), torch.tensor([3, 1, 4])
    eps = {1: 1.0, 2: 0.8, torch.inf: 0.1}[p]
    ball = LpBall(x, torch.tensor([eps, 0.0, eps / 3]), p, clip=clip, per_token=per_token)
    found = pgd(network, ball, labels, steps=8, restarts=5)
    for t in range(10):
        assert ball.contains(found.inputs[:, t]).all()
        beside = margins_at(network, found.inputs[:, t], labels)[:, t]
        torch.testing.assert_close(found.margins[:, t], beside.where(labels != t, torch.inf), rtol=0, atol=1e-12)
    centre = margins_at(network, x, labels)
    centre[torch.arange(3), labels] = torch.inf
    assert (found.worst[[0, 2]] < centre.amin(1)[[0, 2]]).all()
    generator = torch.Generator().manual_seed(5)
    for point in ball.sample(50, generator).unbind(1):
        seen = margins_at(network, point, labels)
        seen[torch.arange(3), labels] = torch.inf
        assert (found.worst <= seen.amin(1) + 1e-12).all()


@pytest.mark.parametrize("p", [1, 2, torch.inf])
def test_a_linear_function_is_minimised_over_balls(p) -> None:
    W, labels = weights(), torch.tensor([0, 1, 2, 3, 0])
    ball = LpBall(images(), 0.25, p)
    found = pgd(lambda z: z @ W.T, ball, labels)
    difference = W[labels][:, None] - W[None]
    least = ball.support(difference)
    least[torch.arange(5), labels] = torch.inf
    torch.testing.assert_close(found.margins, least, rtol=0, atol=1e-9)


def test_only_targets_count() -> None:
    W, ball = weights(), LinfBall(images(), 0.25)
    everything = pgd(lambda z: z @ W.T, ball, 0)
    some = pgd(lambda z: z @ W.T, ball, 0, targets=[2])
    assert torch.equal(some.margins, pgd(lambda z: z @ W.T, ball, 0, targets=2).margins)
    assert some.margins.isinf().tolist() == [[True, True, False, True]] * 5
    torch.testing.assert_close(some.margins[:, 2], everything.margins[:, 2])
    assert torch.equal(some.inputs[:, 1], ball.centre)
    rows = pgd(lambda z: z @ W.T, ball, 0, targets=torch.tensor([[1], [2], [3], [1], [2]]))
    assert rows.margins.isfinite().long().argmax(1).tolist() == [1, 2, 3, 1, 2]
    for bad in ([], [0], [4], [-1], [0.5], [[1]], [True]):
        with pytest.raises(InvalidValueError, match="target"):
            pgd(lambda z: z @ W.T, ball, 0, targets=bad)
