"""Charge rounding to a zonotope: slack in proportion to the size of what was added up."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.ops.zonotope import Zonotope


def rounded(zonotope: Zonotope, size: Tensor) -> Zonotope:
    """The zonotope with slack for sums of the given size, (batch, *shape); unchanged in a precision without a share."""
    share = OUTWARD.get(size.dtype, 0.0)
    if share == 0:
        return zonotope
    return dataclasses.replace(zonotope, slack=zonotope.slack + share * size)
