"""Points of input sets at which a graph is compared with the model that it was read from.

Invariant: every point lies in its input's set, and the first is the set's centre.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.sets.base import InputSet
from vertex_softmax.sets.region import placed

CALLS, MOST_POINTS = 64, 5
"""About how many calls of the original the comparison makes for a small batch (a large one needs two per input), and
the most points of one input's set at which the graph is compared with the original."""


def points_of(input_set: InputSet, shape: Sequence[int]) -> Tensor:
    """Points (batch, k, *shape) of every input's set, on the CPU.

    They are the centre, a random corner of the box around the set, its two ends and a random point of it, each
    projected onto the set; those of a box are in it already. k is at most MOST_POINTS, and smaller for a large batch;
    if all sets are single points, k = 1.
    """
    lower, upper, centre = (end.detach().cpu() for end in (input_set.lower, input_set.upper, input_set.centre))
    count = max(2, min(MOST_POINTS, CALLS // len(placed(centre, shape))))
    points = centre.unsqueeze(1)
    if bool((lower < upper).any()):
        generator = torch.Generator().manual_seed(len(placed(centre, shape)))
        share = torch.rand(centre.shape, generator=generator, dtype=torch.float64)
        side = torch.rand(centre.shape, generator=generator) < 0.5
        inside = (lower + share * (upper - lower)).clamp(lower, upper)
        others = torch.stack([torch.where(side, lower, upper), lower, upper, inside][: count - 1], 1)
        points = torch.cat([points, input_set.project(others).cpu()], 1)
    return torch.stack([placed(points[:, i], shape) for i in range(points.shape[1])], 1)
