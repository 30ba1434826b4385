"""The methods in their order on random networks: joint ≥ hybrid and alpha-crown ≥ the plain ones, all ≤ samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tests.bounds.checks import asked, bounded, by_method, check_bounds, check_boxes, hard_points, objectives
from tests.bounds.networks import Config, input_box, transformer
from tests.bounds.test_backward import CONFIGS, configs, radii, usable
from tests.slowly import few
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods import joint
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import Box

QUICK = Options(
    ascent=Ascent(steps=3),
    search=Search(seconds=None, domains=6, tried=2, root=Ascent(steps=2), ascent=Ascent(steps=2, step_size=0.01)),
)
ORDER = (
    ("hybrid", "ibp"),
    ("hybrid", "crown"),
    ("hybrid", "vertex"),
    ("alpha-crown", "crown"),
    ("joint", "hybrid"),
    ("joint", "alpha-crown"),
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def check_order(
    graph: Graph, lower: Tensor, upper: Tensor, options: Options = QUICK, methods: Iterable[str] = METHODS
) -> dict[str, Tensor]:
    A = objectives(graph, len(lower))
    x = hard_points(graph, lower, upper)
    found = {}
    for method in methods:
        bound = bounded(graph, lower, upper, method, options)
        found[method] = bound.lower
        assert not bound.boxes.problems, bound.boxes.problems
        check_boxes(graph, bound.boxes, x)
        check_bounds(graph, found[method], A, x)
    for more, less in ORDER:
        worse = found[less] - found[more] - 1e-9 * (1 + found[less].abs())
        assert (worse <= 0).all(), f"{more} is {float(worse.max()):.3g} below {less}"
    return found


@settings(max_examples=3)
@given(config=configs.filter(usable), radius=radii)
def test_the_order_on_random_networks(config: Config, radius: float) -> None:
    box = input_box(config, 2, radius, config.seed)
    check_order(transformer(config), *box, methods=METHODS.keys() - {"bab"})  # which is joint, of two inputs


@pytest.mark.slow
@settings(max_examples=300)
@given(config=configs.filter(usable), radius=radii)
def test_the_order_on_many_random_networks(config: Config, radius: float) -> None:
    check_order(transformer(config), *input_box(config, 2, radius, config.seed))


VARIANTS = {
    "no tightening": Options(ascent=Ascent(steps=3), centred=False, generators=False),
    "boxes ascend": Options(ascent=Ascent(steps=2), box_ascent=Ascent(steps=2)),
    "four pieces": Options(ascent=Ascent(steps=3), pieces=4),
    "best suffix": Options(ascent=Ascent(steps=2), suffix="best"),
    "interval scores": Options(ascent=Ascent(steps=2), scores="interval"),
    "stream": Options(ascent=Ascent(steps=2), preactivations="stream"),
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("name", ["plain", pytest.param("pre norm", marks=pytest.mark.slow)])
def test_the_order_with_other_options(name: str, options: Options) -> None:
    config = dataclasses.replace(CONFIGS[name], seed=12)
    check_order(transformer(config), *input_box(config, 2, 0.3, 2), options)


GOALS = {"plain": 0.05, "two blocks": 0.03, "pre norm": 0.02, "class token": 0.1, "gated": 0.1}
"""The radii of sets some of which are verified."""
EVERY_GOAL = [(method, *goal) for method in ("alpha-crown", "hybrid", "joint") for goal in GOALS.items()]
NOW = {("alpha-crown", "two blocks"), ("hybrid", "pre norm"), ("hybrid", "gated")}
"""Beside `plain`, which every method tries."""


@pytest.mark.parametrize(
    ("method", "name", "radius"), few(EVERY_GOAL, lambda method, name, _: name == "plain" or (method, name) in NOW)
)
def test_a_goal_gives_the_same_verdicts(method: str, name: str, radius: float) -> None:
    """Stopping at 0: verified where the full run is, and never a bound above a sample."""
    config = dataclasses.replace(CONFIGS[name], seed=13)
    graph = transformer(config)
    for scale in (1.0, 6.0):
        lower, upper = input_box(config, 3, scale * radius, 5)
        labels = graph.evaluate((lower + upper) / 2).argmax(-1)
        full = certify(graph, Box(lower, upper), labels, method, options=QUICK)
        short = certify(graph, Box(lower, upper), labels, method, options=dataclasses.replace(QUICK, goal=0.0))
        for a, b in zip(full.verdicts, short.verdicts, strict=True):
            assert b is Verdict.VERIFIED or a is not Verdict.VERIFIED, (a, b)
        x = hard_points(graph, lower, upper)
        out = graph.evaluate(x)
        for b, label in enumerate(labels.tolist()):
            others = [k for k in range(config.classes) if k != label]
            least = (out[:, b, label, None] - out[:, b, others]).amin(0)
            assert (short.lower[b, others] <= least + 1e-9 * (1 + least.abs())).all()


@pytest.mark.parametrize("name", ["plain", "two blocks", "pre norm"])
def test_a_goal_stops_before_the_parts_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that are above the goal at once: joint asks no other method."""
    config = dataclasses.replace(CONFIGS[name], seed=14)
    graph, box = transformer(config), input_box(config, 2, 0.05)
    A, question = objectives(graph, 2), asked(graph, *box)
    with monkeypatch.context() as patched:
        for part in ("crown", "hybrid_over", "alpha_crown"):
            patched.setattr(joint, part, lambda *_: pytest.fail("a part runs for nothing"))
        found = by_method(question, "joint", dataclasses.replace(QUICK, goal=-1e6), A).lower
    full = bounded(graph, *box, "joint", QUICK, A).lower
    assert (found > -1e6).all()
    x = hard_points(graph, *box)
    check_bounds(graph, found, A, x)
    check_bounds(graph, full, A, x)
