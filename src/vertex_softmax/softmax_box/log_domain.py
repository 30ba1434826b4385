"""The same minimum where weights would underflow or products overflow: every round is a stable softmax of its own.

Invariant: a finite result for every valid row, however wide its box. Always in float64; rows are few, so clarity wins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.softmax_box import outward as proof
from vertex_softmax.softmax_box.torch_backend import descend

CHUNK = 1 << 22
HUGE = 2.0**800
SHRINK = 2.0**-200


def minimum(c: Tensor, lower: Tensor, upper: Tensor, *, outward: bool = False) -> Tensor:
    """min over the box of c · softmax(s) for valid rows (rows, K), to (rows), in the dtype of c; chunked."""
    rows = max(1, CHUNK // c.shape[-1])
    parts = [
        _solve(c[i : i + rows].double(), lower[i : i + rows].double(), upper[i : i + rows].double(), outward)
        for i in range(0, c.shape[0], rows)
    ]
    result = torch.cat(parts) if parts else c.new_empty(0, dtype=torch.float64)
    return proof.round_down(result, c.dtype) if outward else result.to(c.dtype)


def _solve(c: Tensor, lower: Tensor, upper: Tensor, outward: bool) -> Tensor:
    scale = torch.where(c.abs().amax(-1, keepdim=True) >= HUGE, SHRINK, 1.0)  # a power of two: exact but for underflow
    scaled = c * scale

    def at_vertex(t: Tensor) -> Tensor:
        return (scaled * torch.where(scaled < t, upper, lower).softmax(-1)).sum(-1, keepdim=True)

    t = descend(at_vertex, scaled)
    if outward:  # an underflow in `scaled` moves Σ (c − t) y by less than the K · UNDERFLOW the proof allows for
        t = proof.lower_bound(scaled, lower, upper, t, None)
        low = c.amin(-1, keepdim=True)
        return torch.where(t > scaled.amin(-1, keepdim=True), t / scale, low).squeeze(-1)
    return (t / scale).squeeze(-1)
