"""Whether a residual lies in a sum of balls: the direction in which it sticks out most.

r = Σ_m G_mᵀ ν_m + e with |ν_m| ≤ 1 and |e_i| ≤ loose_i has a solution exactly if η·r ≤ Σ_m |G_m η| + Σ_i loose_i |η_i|
for every η (the support function of the set). So the least support over all η with η·r = 1 is wanted, a convex one:
Newton's steps on Σ_m √(|G_m η|² + μ²) with μ from large to next to nothing. Every η on the way is a proof if its
support is below 1.
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


MU = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4)
"""How large μ is, in mean terms of the support."""
LENGTHS = (1.0, 0.5, 0.2, 0.05)
"""of the steps that are tried along Newton's direction"""


def worst_direction(residual: Tensor, errors: Sums, steps: int = 2) -> tuple[Tensor, Tensor]:
    """η (points, N) and η·r / support(η) there (points): above 1, the residual is not in the errors.

    Numbers are measured in their own radii, so that their sizes may differ by any power of ten. `steps`: for each μ.
    """
    radius = errors.radius()
    unit = torch.where(radius > 0, radius, torch.ones_like(radius))
    r = residual / unit
    alone = torch.where(radius > 0, r.abs(), torch.where(residual != 0, torch.inf, 0.0))
    best, at = alone.max(1)
    eta = torch.zeros_like(r).scatter_(1, at.unsqueeze(1), torch.sign(r.gather(1, at.unsqueeze(1)))) / unit
    if not bool(r.isfinite().all()) or not bool((r != 0).any()):
        return eta, best
    own = torch.diag(errors.loose / unit)[errors.loose > 0]
    every = Sums(
        torch.cat([errors.columns / unit, own]),
        torch.cat([errors.group, errors.groups + torch.arange(len(own))]),
        errors.groups + len(own),
        torch.zeros_like(radius),
    )
    now = r / r.square().sum(1, keepdim=True).clamp(min=1e-300)
    for mu in MU:
        for _ in range(steps):
            now = _step(now, r, every, mu)
            ahead = (now * r).sum(1)
            ratio = torch.where(ahead > 0, ahead / every.support(now).clamp(min=1e-300), 0.0)
            better = ratio > best
            eta = torch.where(better.unsqueeze(1), now / unit, eta)
            best = torch.maximum(best, ratio)
    return eta, best


def crude_direction(residual: Tensor, errors: Sums) -> Tensor:
    """Two steps with weights by the sizes of all terms: not the worst, but another way for points to go."""
    radius = errors.radius()
    unit = torch.where(radius > 0, radius, torch.ones_like(radius))
    r = torch.where(radius > 0, residual / unit, 0.0)
    columns, found = errors.columns / unit, r
    for _ in range(2):
        scaled = dataclasses.replace(errors, columns=columns, loose=errors.loose / unit)
        size, own = scaled.sizes(found), found.abs() * scaled.loose
        floor = 1e-7 * (size.sum(1) + own.sum(1) + 1e-300).unsqueeze(1)
        weights = (1 / torch.maximum(size, floor))[:, errors.group]
        curved = torch.einsum("pi,qp,pj->qij", columns, weights, columns)
        curved = curved + torch.diag_embed(scaled.loose.square() / torch.maximum(own, floor) + 1e-12)
        found, _ = torch.linalg.solve_ex(curved, r)
        found = found.nan_to_num(0.0, 0.0, 0.0)
        found = found / found.abs().amax(1, keepdim=True).clamp(min=1e-300)
    return found / unit


def _smooth(eta: Tensor, every: Sums, mu: Tensor) -> Tensor:
    """√(|G_m η|² + μ²), (points, groups)."""
    return (every.sizes(eta).square() + mu.square()).sqrt()


def _step(eta: Tensor, r: Tensor, every: Sums, share: float) -> Tensor:
    """One of Newton's, with η·r kept at 1."""
    mu = share * every.sizes(eta).mean(1, keepdim=True) + 1e-300
    size = _smooth(eta, every, mu)
    columns, weights = every.columns, 1 / size
    along = (eta @ columns.mT) * weights[:, every.group]  # parts of unit vectors, (points, P)
    spread = torch.zeros(eta.shape[0], every.groups, eta.shape[1], dtype=eta.dtype)
    spread.index_add_(1, every.group, along.unsqueeze(-1) * columns)  # the gradient of each term
    slope = spread.sum(1)
    above = torch.einsum("pi,qp,pj->qij", columns, weights[:, every.group], columns)
    trace = above.diagonal(dim1=1, dim2=2).sum(1)
    above = above + torch.diag_embed((1e-14 * trace + 1e-300).unsqueeze(1).expand_as(eta))
    curved = above - torch.einsum("qmi,qm,qmj->qij", spread, weights, spread)
    curved = curved + torch.diag_embed((1e-12 * trace).unsqueeze(1).expand_as(eta))
    solved, _ = torch.linalg.solve_ex(curved, torch.stack([slope, r], -1))
    down, back = solved.unbind(-1)
    factor = (r * down).sum(1) / (r * back).sum(1)
    step = (factor.unsqueeze(1) * back - down).nan_to_num(0.0, 0.0, 0.0)
    # (|G_m η|²/s_m + s_m)/2 is at least each term, and equal where η was: its minimum is never worse
    whole, _ = torch.linalg.solve_ex(above, r)
    whole = whole / (whole * r).sum(1, keepdim=True)
    tried = torch.stack([eta, whole.nan_to_num(0.0, 0.0, 0.0), *(eta + length * step for length in LENGTHS)])
    cost = torch.stack([_smooth(each, every, mu).sum(1) / (each * r).sum(1).clamp(min=1e-200) for each in tried])
    found = tried[cost.argmin(0), torch.arange(len(eta))]
    return found / (found * r).sum(1, keepdim=True).clamp(min=1e-300)
