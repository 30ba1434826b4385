"""The sweep's rows are bounds of the same networks, computed as published; its table counts what the journals hold."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vertex_lab.baselines import SCORE_BOX_METHODS
from vertex_lab.experiments import head_bounds, sweep
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.synthetic import Heads, heads
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.interval import Interval
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import LinfBall
from vertex_softmax.softmax_box import reference


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps of ascent instead of sixty: each gives a bound, and how near it comes is not asked here."""
    monkeypatch.setattr(head_bounds, "certify", functools.partial(certify, options=Options(ascent=Ascent(steps=10))))


def batch(keys: int = 5, count: int = 3, seed: int = 0) -> Heads:
    return next(heads(keys, seed, count))


def sampled(found: Heads, epsilon: float, points: int = 400) -> torch.Tensor:
    """The lowest signed margin of random points and corners, trial by trial with plain loops."""
    generator = torch.Generator().manual_seed(1)
    lowest = []
    for i in range(len(found)):
        head = found.at(i)
        moves = 2 * torch.rand(points, *head.x.shape, generator=generator, dtype=torch.float64) - 1
        moves[: points // 2] = moves[: points // 2].sign()
        margins = [float(head.sign * head.margin(head.x + epsilon * move)) for move in moves]
        lowest.append(min(margins))
    return torch.tensor(lowest)


def test_score_boxes_are_the_extreme_corners() -> None:
    x = Interval(torch.tensor([[[0.0, -1.0]]]), torch.tensor([[[2.0, 1.0]]]))
    y = Interval(torch.tensor([[[0.0, -3.0]]]), torch.tensor([[[2.0, 1.0]]]))
    found = sweep._products(x, y)
    assert (found.lower.item(), found.upper.item()) == (-3.0, 7.0)


def test_components_by_a_plain_loop() -> None:
    """Row by row and component by component with the numpy reference, as the docstring says."""
    drawn = batch()
    boxes = sweep.Boxes.of(drawn, 0.03)
    found = sweep.by_component(boxes, "vertex")
    for i in range(len(drawn)):
        head = drawn.at(i)
        low, high = head.x - 0.03, head.x + 0.03

        def interval(W: torch.Tensor, low: torch.Tensor = low, high: torch.Tensor = high) -> list[np.ndarray]:
            up, down = W.clamp(min=0), W.clamp(max=0)
            return [(low @ up + high @ down).numpy(), (high @ up + low @ down).numpy()]

        q, k, v = (interval(W) for W in (head.query, head.key, head.value))
        corners = np.stack([a[:, None] * b[None] for a in q for b in k])
        lower, upper = corners.min(0).sum(-1), corners.max(0).sum(-1)
        w = (head.sign * head.output).numpy()
        total = 0.0
        for row in range(len(lower)):
            for d in range(len(w)):
                c = v[0][:, d] if w[d] > 0 else -v[1][:, d]
                total += abs(w[d]) * reference.exhaustive_min(c, lower[row], upper[row])
        assert float(found[i]) == pytest.approx(total / len(lower), abs=1e-10)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("epsilon", [0.005, 0.05])
def test_every_row_is_a_bound_and_in_order(epsilon: float) -> None:
    drawn = batch(6, 4, seed=2)
    boxes = sweep.Boxes.of(drawn, epsilon)
    found = {method: sweep.bounded(boxes, method) for method in sweep.methods(6)}
    assert set(found) == {*sweep.COMPONENTS, sweep.OBJECTIVE}
    lowest = sampled(drawn, epsilon)
    attacks = sweep.attack(drawn, epsilon)
    clean = drawn.margin().abs()
    for i in range(len(drawn)):
        network = head_bounds.head_bounds(drawn.at(i), epsilon)
        for method, bound in {
            **{m: float(b[i]) for m, b in found.items()},
            **{m: n["worst"] for m, n in network.items()},
        }.items():
            assert bound <= float(lowest[i]) + 1e-9, method
            assert all(bound <= float(worst[i]) + 1e-9 for worst in attacks.values()), method
    for worst in attacks.values():
        assert bool((worst <= clean + 1e-12).all())
    for lower, upper in (
        ("ibp", "simplex"),
        ("simplex", "softmax-lp"),
        ("wei-lse", "vertex"),
        ("galileo", "vertex"),
        ("vertex", "objective"),
    ):
        assert bool((found[lower] <= found[upper] + 1e-9).all()), (lower, upper)


def test_at_a_point_every_row_is_the_margin() -> None:
    drawn = batch(4, 3)
    boxes = sweep.Boxes.of(drawn, 0.0)
    for method in sweep.methods(4):
        assert torch.allclose(sweep.bounded(boxes, method), drawn.margin().abs(), atol=1e-7), method


def test_the_objective_is_the_librarys_vertex_on_interval_scores() -> None:
    drawn = batch(6, 3)
    found = sweep.objective(sweep.Boxes.of(drawn, 0.02))
    for i in range(len(drawn)):
        head = drawn.at(i)
        ball = LinfBall(head.x[None], 0.02)
        label = int(head.sign < 0)
        vertex = certify(head.graph(), ball, label, "vertex", options=Options(scores="interval")).worst.item()
        assert float(found[i]) == pytest.approx(vertex, abs=0.03)  # the library's boxes of products may be wider


def test_the_attack_uses_each_trials_own_network() -> None:
    drawn = batch(4, 3)
    together = sweep.attack(drawn, 0.02)
    for i in range(len(drawn)):
        alone = Heads(*(part[i : i + 1] for part in (drawn.x, drawn.query, drawn.key, drawn.value, drawn.output)))
        for name, worst in sweep.attack(alone, 0.02).items():
            assert float(worst[0]) == pytest.approx(float(together[name][i]), abs=1e-9)


def test_sizes_are_the_protocols() -> None:
    full = sweep.sizes(Request(Path("out")))
    assert {(size.keys, size.epsilon) for size in full} == {(K, e) for K in sweep.KEYS for e in sweep.EPSILONS}
    assert all(size.trials == 200 for size in full)
    assert all(
        SCORE_BOX_METHODS[name].most_keys is None or most <= SCORE_BOX_METHODS[name].most_keys
        for name, most in sweep.MOST_KEYS.items()
    )


@pytest.mark.usefixtures("few_steps")
def test_a_run_its_journal_and_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "sizes", lambda _request: (sweep.Size(4, 0.02, 3, 2),))
    request = Request(tmp_path, quick=True, seeds=(0, 1))
    result = sweep.run(request)
    lines = [json.loads(line) for line in (tmp_path / "journals" / "sweep.jsonl").read_text().splitlines()]
    trials = [line for line in lines if "bounds" in line]
    assert len({line["key"] for line in trials}) == len(trials) == 6
    rows = {row["Method"]: row for row in result.rows}
    for method in sweep.methods(4):
        bounds = [line["bounds"][method] for line in trials]
        row = rows[sweep.LABELS[method]]
        assert row["N"] == 6
        assert row["Mean lower"] == pytest.approx(math.fsum(bound["worst"] for bound in bounds) / 6)
        assert row["Cert. rate"] == sum(bound["certified"] for bound in bounds) / 6
        gap = math.fsum(min(line["attack"].values()) - line["bounds"][method]["worst"] for line in trials) / 6
        assert row["Gap"] == pytest.approx(gap)
    assert rows["joint (ours)"]["N"] == rows["crown (ours)"]["N"] == 4
    assert rows["joint (ours)"]["Mean lower"] >= rows["crown (ours)"]["Mean lower"]
    assert not result.failures
    published = dict(zip([row["Method"] for row in result.rows], result.published, strict=True))
    assert published["Vertex"]["Mean lower"] == -0.2020
    assert not published["joint (ours)"]
    monkeypatch.setattr(sweep, "measure", None)
    monkeypatch.setattr(sweep, "head_bounds", None)
    monkeypatch.setattr(sweep, "timed", None)
    again = sweep.run(request)  # nothing is measured twice
    assert again.rows == result.rows


def test_what_is_broken_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial: dict[str, Any] = {
        "key": "k",
        "attack": {"strong": 0.1},
        "bounds": {"joint": {"worst": 0.2, "certified": True}},
    }
    assert "joint 0.2 above the attack's 0.1" in sweep._violations({(4, 0.02): [trial]})[0]
    assert sweep._violations({(4, 0.02): [{**trial, "attack": {"strong": 0.3}}]}) == []
    far = {"Method": "Vertex", "K": 16, "z rate": 0.5, "z lower": -2.5}
    assert sweep._far([far]) == ["Vertex at K = 16: z lower -2.50"]
    slow = {"Method": "Wei-LSE", "K": 16, "ε": 0.02, "Time / Vertex": 2.0}
    assert sweep._slow([slow, {**slow, "K": 8}, {**slow, "Time / Vertex": 3.5}]) == [
        "Wei-LSE takes only 2.0 times as long as Vertex at K = 16"
    ]
    assert dataclasses.is_dataclass(sweep.Size)
