"""The bisection of lab/benchmarks/radius.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def radius():
    path = Path(__file__).parents[3] / "lab" / "benchmarks" / "radius.py"
    spec = importlib.util.spec_from_file_location("radius", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_image_gets_its_own_radius(radius, jobs: int) -> None:
    images = torch.full((4, 1, 2, 2), 0.5, dtype=torch.float64)
    true = torch.tensor([1e-3, 0.03, 1e-9, 0.2], dtype=torch.float64)
    found = radius.radii((images, torch.arange(4)), lambda ball, of: ball.eps[:, 0, 0, 0] <= true[of], 12, 1e-4, jobs)
    assert found[2] == 0  # not even the least
    precision = (radius.HIGH / 1e-4) ** (0.5**12)
    for i in (0, 1, 3):
        assert found[i] <= true[i] < found[i] * precision


def test_every_method_has_a_range(radius) -> None:
    assert set(radius.LOW) == {*radius.METHODS, "attack"}
