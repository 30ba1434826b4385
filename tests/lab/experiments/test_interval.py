"""The interval experiment finds no violation, and would find one if there were one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flint
import numpy as np
import pytest

from vertex_lab.experiments import interval
from vertex_lab.experiments.request import Request


def test_quick_run_has_no_violation(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    result = interval.run(Request(tmp_path, quick=True, progress=lambda *args: seen.append(args)))
    assert sum(int(row["N"] or 0) for row in result.rows) >= 5_000
    assert all(row["Violations"] == 0 for row in result.rows)
    assert [row["N"] for row in result.rows[:2]] == [360, 1]
    assert [row["All vertices"] for row in result.rows[:2]] == [360, 1]
    assert [dict(row) for row in result.published[:3]] == [{"N": 360, "Violations": 0}, {"N": 1, "Violations": 0}, {}]
    assert max(float(row["Width, max ulps"] or 0) for row in result.rows) <= 4
    assert not result.failures
    files = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert files == {f"interval.{ending}" for ending in ("json", "md", "csv", "tex")}
    counts = [done for _, done, _ in seen]
    assert counts == sorted(counts)
    assert seen[-1][1] == seen[-1][2]


def test_full_run_is_of_at_least_100_000_boxes_and_all_sizes() -> None:
    assert sum(family.full for family in interval.FAMILIES) >= 100_000
    assert max(max(family.keys) for family in interval.FAMILIES) == 512


Change = Callable[[Any], Any]
BROKEN: tuple[tuple[str, str, Change], ...] = (
    ("softmax_box_enclosure", "enclosure", lambda ends: (np.nextafter(ends[1], np.inf), np.nextafter(ends[1], np.inf))),
    ("softmax_box_enclosure", "enclosure", lambda ends: (np.nextafter(ends[0], -np.inf),) * 2),
    ("softmax_box_min", "outward_64", lambda value: value + 1e-12 if value.dtype == np.float64 else value),
    ("softmax_box_min", "outward_32", lambda value: value + np.float32(1e-3) if value.dtype == np.float32 else value),
)


@pytest.mark.parametrize(("function", "count", "change"), BROKEN)
def test_a_broken_function_is_caught(
    function: str, count: str, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(interval, function)
    monkeypatch.setattr(interval, function, lambda *args, **options: change(original(*args, **options)))
    boxes = interval.single(interval.ordinary)(np.random.default_rng(1), 40, 6)
    found = dataclasses.asdict(interval.check(flint, boxes))
    assert found["boxes"] == 40
    assert found[count] > 30
    assert all(found[other] == 0 for other in ("enclosure", "outward_64", "outward_32") if other != count)


def test_both_oracles_agree_and_match_rational_arithmetic() -> None:
    """With scores 0 and weights e^0 = 1 the minimum is a mean, and comparisons at the mean itself are exact."""
    exact = interval.Exact(flint, [1.0, 2.0, 6.0], [0.0] * 3, [0.0] * 3)
    assert exact.at_least(3.0)
    assert exact.at_most(3.0)
    assert not exact.at_least(np.nextafter(3.0, 4.0))
    assert not exact.at_most(np.nextafter(3.0, 2.0))


def test_comparisons_below_the_working_precision_are_decided() -> None:
    """The minimum exceeds 0 by about e^−1400, far below 320 bits."""
    exact = interval.Exact(flint, [0.0, 1.0], [700.0, -700.0], [700.0, -700.0])
    assert exact.at_least(0.0)
    assert not exact.at_most(0.0)
    cancelling = interval.Exact(flint, [-1.0, 1.0, 0.0], [0.3, 0.3, 0.1], [0.3, 0.3, 0.1])
    assert cancelling.at_least(0.0)
    assert cancelling.at_most(0.0)


def test_oracles_against_floating_point_enumeration() -> None:
    rng = np.random.default_rng(2)
    for c, lower, upper in zip(*interval.ordinary(rng, 20, 5), strict=True):
        corners = np.array(list(itertools.product(*zip(lower, upper, strict=True))))
        y = np.exp(corners)
        expected = (y @ c / y.sum(-1)).min()
        row = (c.tolist(), lower.tolist(), upper.tolist())
        assert float(interval.threshold_ball(flint.arb, *row)) == pytest.approx(expected, abs=1e-13)
        assert float(interval.exhaustive_ball(flint.arb, *row)) == pytest.approx(expected, abs=1e-13)
