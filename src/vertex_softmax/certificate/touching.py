"""Where lines touch a curve: the points of tangency that a certificate names, sought in floats."""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.certificate.checker import curves
from vertex_softmax.ops.elementwise import Elementwise

BISECTIONS = 60


def touching(name: str, op: Elementwise, sign: int, slope: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Where sign·(f(x) − slope·x) is least on the first and on the last piece where sign·f is convex, (2, *shape)."""
    curve = curves.CURVES.get("Softplus" if name == "SoftplusTorch" else name)
    pieces = () if curve is None else curve.convex if sign > 0 else curve.concave
    found = []
    for start, stop in (pieces[0], pieces[-1]) if pieces else ():
        lo, hi = lower.clamp(min=start), upper.clamp(max=stop)
        hi = torch.maximum(lo, hi)
        for _ in range(BISECTIONS):
            at = (lo + hi) / 2
            falling = sign * (op.derivative(at) - slope) < 0
            lo, hi = torch.where(falling, at, lo), torch.where(falling, hi, at)
        found.append((lo + hi) / 2)
    return torch.stack(found) if found else torch.stack([lower, lower])
