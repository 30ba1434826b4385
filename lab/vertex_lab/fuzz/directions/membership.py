"""Whether a residual lies in a sum of balls: the direction in which it sticks out most.

r = Σ_m G_mᵀ ν_m + e with |ν_m| ≤ 1 and |e_i| ≤ loose_i has a solution exactly if η·r ≤ Σ_m |G_m η| + Σ_i loose_i |η_i|
for every η (the support function of the set). So the least support over all η with η·r = 1 is wanted, a convex problem.
Each step replaces |G_m η| by (|G_m η|²/s_m + s_m)/2 with s_m its last value, which is at least that and equal where η
was: the support never grows, and every η on the way is a proof if its support is below 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Sums:
    """What errors of N numbers are made of: P columns in groups, each group a ball of radius 1, and intervals."""

    columns: Tensor
    """(P, N)"""
    group: Tensor
    """(P), from 0 to groups − 1"""
    groups: int
    loose: Tensor
    """(N) ≥ 0"""

    def support(self, eta: Tensor) -> Tensor:
        """η·e at most: (points, N) → (points)."""
        return self.sizes(eta).sum(1) + eta.abs() @ self.loose

    def sizes(self, eta: Tensor) -> Tensor:
        """|G_m η|, (points, groups)."""
        if self.groups == 0:
            return eta.new_zeros(eta.shape[0], 0)
        along = eta @ self.columns.mT
        most = along.abs().amax(1, keepdim=True).clamp(min=torch.finfo(eta.dtype).tiny)
        found = eta.new_zeros(eta.shape[0], self.groups)
        return found.index_add_(1, self.group, (along / most).square()).sqrt() * most

    def radius(self) -> Tensor:
        """How far each number may be off, (N)."""
        if self.groups == 0:
            return self.loose
        most = self.columns.abs().amax(0, keepdim=True).clamp(min=torch.finfo(self.loose.dtype).tiny)
        found = self.loose.new_zeros(self.groups, self.columns.shape[1])
        found.index_add_(0, self.group, (self.columns / most).square())
        return (found.sqrt() * most).sum(0) + self.loose


def sums(blocks: Sequence[Tensor], loose: Tensor) -> Sums:
    """Of blocks (balls, dimension, N) and what is loose (N); balls that do nothing are left out."""
    columns, group, count = [loose.new_zeros(0, loose.shape[0])], [torch.zeros(0, dtype=torch.long)], 0
    for block in blocks:
        live = block[(block != 0).flatten(1).any(1)]
        balls, k = live.shape[:2]
        columns.append(live.flatten(0, 1))
        group.append(count + torch.arange(balls).repeat_interleave(k))
        count += balls
    return Sums(torch.cat(columns), torch.cat(group), count, loose)


def worst_direction(residual: Tensor, errors: Sums, steps: int = 12) -> tuple[Tensor, Tensor]:
    """η (points, N) and η·r / support(η) there (points): above 1, the residual is not in the errors.

    Numbers are measured in their own radii, so that their sizes may differ by any power of ten.
    """
    radius = errors.radius()
    unit = torch.where(radius > 0, radius, torch.ones_like(radius))
    r = residual / unit
    alone = torch.where(radius > 0, r.abs(), torch.where(residual != 0, torch.inf, 0.0))
    scaled = dataclasses.replace(errors, columns=errors.columns / unit, loose=errors.loose / unit)
    best, at = alone.max(1)
    eta = torch.zeros_like(r).scatter_(1, at.unsqueeze(1), torch.sign(r.gather(1, at.unsqueeze(1)))) / unit
    if not bool(r.isfinite().all()) or not bool((radius > 0).any()):
        return eta, best
    now = r.clone()
    for _ in range(steps):
        along, own = scaled.sizes(now), now.abs() * scaled.loose
        floor = 1e-7 * (along.sum(1) + own.sum(1)).clamp(min=1e-300).unsqueeze(1)
        floor = floor / (scaled.groups + r.shape[1])
        weights = 1 / torch.maximum(along, floor)
        square = torch.einsum("pi,qp,pj->qij", scaled.columns, weights[:, scaled.group], scaled.columns)
        square = square + torch.diag_embed(scaled.loose**2 / torch.maximum(own, floor))
        trace = square.diagonal(dim1=1, dim2=2).sum(1)
        eye = torch.eye(r.shape[1], dtype=r.dtype)
        square = square + (1e-15 * trace + 1e-300)[:, None, None] * eye
        now, _ = torch.linalg.solve_ex(square, r)
        now = torch.where(now.isfinite(), now, 0.0)
        ahead = (now * r).sum(1)
        now = now / torch.where(ahead > 0, ahead, torch.ones_like(ahead)).unsqueeze(1)
        ratio = torch.where(ahead > 0, 1 / scaled.support(now).clamp(min=1e-300), 0.0)
        better = ratio > best
        eta = torch.where(better.unsqueeze(1), now / unit, eta)
        best = torch.maximum(best, ratio)
    return eta, best
