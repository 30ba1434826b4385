"""Every family of models that is accepted: 1,000 random, corner and descended inputs never beat the bounds."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from tests.graph.models import FAMILIES, imported
from tests.slowly import few
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.runs.certify import bound
from vertex_softmax.sets import Box

pytestmark = pytest.mark.usefixtures("zonotopes_once")
POINTS = 1000
RADII = (1e-3, 0.05)
QUICK = Options(
    ascent=Ascent(steps=2),
    search=Search(seconds=None, domains=6, tried=2, root=Ascent(steps=2), ascent=Ascent(steps=2, step_size=0.01)),
)
SOME = {
    "crown": tuple(FAMILIES)[1::2],
    "vertex": tuple(FAMILIES)[::3],
    "hybrid": tuple(FAMILIES)[1::7],
    "alpha-crown": tuple(FAMILIES)[::9],
    "joint": ("encoder_relu", "encoder_padding", "decoder_by_hand", "by_hand_einsum_sum_tanh_product"),
    "bab": (
        "multihead_masked", "attention_pooling", "vit_mean_pooling_relu", "decoder_rms_norm",
    ),
}  # fmt: skip
"""Methods that try only some of the families, if there is little time."""


def now(name: str, method: str) -> bool:
    return name in SOME.get(method, FAMILIES)


def test_every_method_tries_several_families() -> None:
    assert all(len(set(names) & set(FAMILIES)) >= 4 for names in SOME.values())


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def attacked(graph, lower, upper, sign, steps=8):
    """A few points at which each of the first outputs, times sign, was pushed down by signed gradient steps."""
    t = torch.rand(8, *lower.shape[1:], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for _ in range(steps):
        t = t.detach().requires_grad_()
        out = graph.evaluate(lower + (upper - lower) * t).flatten(1)
        gradient = torch.autograd.grad((sign * out[:, torch.arange(8) % out.shape[1]]).diagonal().sum(), t)[0]
        t = (t - 0.3 * gradient.sign()).clamp(0, 1)
    return (lower + (upper - lower) * t).detach()


@functools.lru_cache(maxsize=1)  # the methods of one family come one after the other
def sampled(name):
    """The box of every radius, in one batch, and the outputs (radius, point, …) at points of each."""
    (_, x, arguments), _, graph = imported(name)
    generator = torch.Generator().manual_seed(0)
    centre = torch.rand(1, *graph.input.shape, generator=generator, dtype=torch.float64)
    if arguments.get("perturb") != "embedding":
        centre = x.double().reshape(1, *graph.input.shape)
    made = []
    for radius in RADII:
        lower, upper = centre - radius, centre + radius
        t = torch.rand(POINTS, *graph.input.shape, generator=generator, dtype=torch.float64)
        t[POINTS // 2 :] = (t[POINTS // 2 :] < 0.5).double()
        points = torch.cat([lower + (upper - lower) * t] + [attacked(graph, lower, upper, s) for s in (1.0, -1.0)])
        with torch.no_grad():
            made.append(torch.cat([graph.evaluate(part) for part in points.split(250)]))
    return Box(*(torch.cat([centre + sign * radius for radius in RADII]) for sign in (-1, 1))), torch.stack(made)


@pytest.mark.parametrize(("name", "method"), few(itertools.product(FAMILIES, METHODS), now))
def test_no_input_beats_the_bounds(name, method) -> None:
    _, _, graph = imported(name)
    box, outputs = sampled(name)
    several = method != "bab"  # which splits the box of one input, and is `joint` for several
    parts = [bound(graph, part, method, options=QUICK) for part in ([box] if several else [box[0], box[1]])]
    lows, highs = (torch.cat(ends) for ends in zip(*parts, strict=True))
    for radius, low, high, out in zip(RADII, lows, highs, outputs, strict=True):
        slack = 1e-9 * (1 + out.abs().amax())
        assert not (out < low - slack).any(), f"{name}: an output lies {float((low - out).max())} below the bound"
        assert not (out > high + slack).any(), f"{name}: an output lies {float((out - high).max())} above the bound"
        if radius < 0.01 and method in {"hybrid", "joint"}:
            assert bool(low.isfinite().all() and high.isfinite().all()), f"{name}: no bound at all"
