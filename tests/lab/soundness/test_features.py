"""No point of a box of numbers has a feature outside the extremes that the candidates give."""

from __future__ import annotations

import pytest
import torch

from vertex_lab.soundness.features import FEATURES, Feature, candidates

ROUNDING = 1e-12


def boxes(feature: Feature, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, numbers) each, as networks.py draws them: within the domain, `alike` where that is asked for."""
    g = torch.Generator().manual_seed(seed)
    low, high = feature.domain
    t = torch.rand(2, count, feature.numbers, generator=g, dtype=torch.float64).sort(0).values
    lower, upper = low + t * (high - low)
    if feature.alike:
        radius = (upper - lower)[:, :1] / 2
        lower[:, 1:], upper[:, 1:] = lower[:, :1], upper[:, :1]
        lower[:, :1], upper[:, :1] = lower[:, :1] + radius / 2, upper[:, :1] + radius / 2
    return lower, upper


@pytest.mark.parametrize("name", FEATURES)
def test_nothing_is_outside(name: str) -> None:
    feature = FEATURES[name]
    lower, upper = boxes(feature, 40, 1)
    values = feature.apply(candidates(feature, lower, upper))
    g = torch.Generator().manual_seed(2)
    t = torch.rand(4000, *lower.shape, generator=g, dtype=torch.float64)
    t[::3] = t[::3].round()
    t[1::3] = (4 * t[1::3]).round() / 4
    seen = feature.apply(lower + t * (upper - lower))
    assert (seen.amin(0) >= values.amin(0) - ROUNDING).all()
    assert (seen.amax(0) <= values.amax(0) + ROUNDING).all()
    assert (seen.amin(0) - values.amin(0)).median() < 0.2 * (values.amax(0) - values.amin(0)).max()


@pytest.mark.parametrize("name", ["gelu", "silu", "square", "abs", "mish", "gate"])
def test_without_the_turning_point_it_would_be_wrong(name: str) -> None:
    feature = FEATURES[name]
    lower, upper = (torch.full((1, feature.numbers), end, dtype=torch.float64) for end in (-1.9, 1.9))
    ends = feature._replace(turning=None)
    least = [f.apply(candidates(f, lower, upper)).amin() for f in (feature, ends)]
    assert least[0] < least[1] - 0.01
