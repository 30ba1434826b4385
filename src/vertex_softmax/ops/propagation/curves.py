"""A zonotope through a function of one number: the slope of its band, and an unknown of its own for each number."""

from __future__ import annotations

import torch

from vertex_softmax.ops.lines import Band
from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.zonotope import Zonotope


def bent(x: Zonotope, band: Band) -> Zonotope:
    """slope·x + middle ± half, (batch, *shape)."""
    slope = band.slope
    blocks = {unknowns: columns * slope[:, None, None] for unknowns, columns in x.blocks.items()}
    own = band.half + slope.abs() * x.loose
    found = Zonotope(slope * x.centre + band.middle, blocks, own, torch.zeros_like(own))
    return rounded(found, slope.abs() * (x.centre.abs() + x.radius) + band.middle.abs() + band.half)
