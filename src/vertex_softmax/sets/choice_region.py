"""Choices of words as the bounds see them: products of finite sets, one for each token, and of their hulls.

A set is all x whose numbers `members[g]` are one of the allowed rows values[g, c], for every token g that varies, and
whose other numbers are `fixed`. A linear function is least where each token takes its least choice: the minimum of
Σ A·x over all combinations is a sum of minima over single tokens, and the same over the product of the hulls.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch
from torch import Tensor

from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.ops.choice_rows import ChoiceForm, ChoiceRows
from vertex_softmax.ops.interval import Interval
from vertex_softmax.sets.region import Region


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a node at all choices of the one token that each depends on, whatever is allowed."""

    values: Tensor
    """(1 or batch, ..., n, choices, d)"""
    group: Tensor
    """(..., n); −1: the row is fixed"""
    slack: Tensor
    """(1 or batch, ..., n, d): what the sums may have rounded"""

    def rows(self, allowed: Tensor) -> ChoiceRows:
        """With the choices that are allowed, (batch, groups, choices)."""
        first = torch.zeros(self.values.shape[-2], dtype=torch.bool, device=allowed.device)
        first[0] = True
        if not allowed.shape[1]:
            there = first.expand(allowed.shape[0], *self.group.shape, -1)
        else:
            there = torch.where((self.group >= 0).unsqueeze(-1), allowed[:, self.group.clamp(min=0)], first)
        return ChoiceRows(self.values, there, self.group, self.slack)


@dataclasses.dataclass(frozen=True, eq=False)
class ChoiceRegion(Region):
    """A batch of sets that share the rows of their choices; each may allow others of them."""

    fixed: Tensor
    """(1 or batch, *shape): the numbers that do not vary, and 0 where they do"""
    values: Tensor
    """(1 or batch, groups, choices, size): finite everywhere, also where a choice is not allowed"""
    allowed: Tensor
    """(batch, groups, choices), bool: at least one choice of every group"""
    members: Tensor
    """(groups, size), int64: which numbers of an input, counted flat, are those of each group"""
    kept: dict[tuple[int, tuple[int, ...]], tuple[Tensor, _Rows | None, _Rows | None]] = dataclasses.field(
        default_factory=dict, repr=False
    )
    """rows and columns of nodes at all choices, with the matrix they were made by: the same for all parts of a set"""

    @functools.cached_property
    def box(self) -> Interval:
        """The smallest box around each set: the least and the largest of every number among the allowed choices."""
        out = ~self.allowed.unsqueeze(-1)
        least = self.values.masked_fill(out, torch.inf).amin(2)
        most = self.values.masked_fill(out, -torch.inf).amax(2)
        return Interval(self._placed(least), self._placed(most))

    def _placed(self, moving: Tensor) -> Tensor:
        """Numbers (batch, groups, size) of the groups among the fixed ones, (batch, *shape)."""
        batch = self.allowed.shape[0]
        whole = self.fixed.flatten(1).expand(batch, -1).clone()
        whole[:, self.members.flatten()] = moving.flatten(1)
        return whole.reshape(batch, *self.fixed.shape[1:])

    def by_choice(self, A: Tensor) -> Tensor:
        """Σ A·x of each group at each choice, inf where it is not allowed: (batch, S, groups, choices)."""
        taken = A.flatten(2)[..., self.members].transpose(1, 2)  # (batch, groups, S, size)
        found = (taken @ self.values.mT).transpose(1, 2)
        return found.masked_fill(~self.allowed.unsqueeze(1), torch.inf)

    def support(self, A: Tensor, constant: Tensor | float = 0.0) -> Tensor:
        """The sum over tokens of their least choices."""
        rest = (A.flatten(2) @ self.fixed.flatten(1).unsqueeze(-1)).squeeze(-1)
        return constant + rest + self.by_choice(A).amin(-1).sum(-1)

    def minimise(self, A: Tensor, constant: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        """The least values, and the combinations that attain them; among equals the first choice."""
        least, which = self.by_choice(A).min(-1)
        rest = (A.flatten(2) @ self.fixed.flatten(1).unsqueeze(-1)).squeeze(-1)
        return constant + rest + least.sum(-1), self.points(which)

    def points(self, which: Tensor) -> Tensor:
        """The combinations with these choices: (batch, S, groups) → (batch, S, *shape)."""
        batch, count = which.shape[:2]
        index = which.transpose(1, 2).unsqueeze(-1).expand(-1, -1, -1, self.values.shape[-1])
        rows = self.values.expand(batch, *self.values.shape[1:]).gather(2, index)  # (batch, groups, S, size)
        whole = self.fixed.flatten(1).unsqueeze(1).expand(batch, count, -1).clone()
        whole[..., self.members.flatten()] = rows.transpose(1, 2).flatten(2)
        return whole.reshape(batch, count, *self.fixed.shape[1:])

    @property
    def middle(self) -> Tensor:
        """The means of the allowed choices."""
        return self._placed(self._mean())

    def _mean(self) -> Tensor:
        share = self.allowed.to(self.values) / self.allowed.sum(-1, keepdim=True)
        return (share.unsqueeze(-1) * self.values).sum(2)

    def columns(self) -> Tensor:
        """A ball for each token: the ellipsoid around the simplex of its choices.

        A point of the hull of v_1 … v_m is mean + Σ (λ_c − 1/m)(v_c − mean) with λ ≥ 0, Σ λ = 1. Since
        Σ λ_c² ≤ Σ λ_c = 1, Σ (λ_c − 1/m)² = Σ λ_c² − 1/m ≤ (m − 1)/m: the hull lies in mean + Σ_c r (v_c − mean) ξ_c,
        |ξ| ≤ 1, r = √((m − 1)/m). Of all ellipsoids it is the smallest around a simplex; for two choices it is the
        segment between them, written with one unknown if no token has more.
        """
        count = self.allowed.sum(-1, keepdim=True)
        apart = (self.values - self._mean().unsqueeze(2)).masked_fill(~self.allowed.unsqueeze(-1), 0.0)
        live = (count > 1).any(0).squeeze(-1).nonzero().flatten()
        if bool((count <= 2).all()):
            first = self.allowed.to(torch.int8).argmax(-1)[..., None, None]
            rows = apart.gather(2, first.expand(-1, -1, 1, apart.shape[-1]))
        else:
            rows = ((count - 1) / count).to(apart).sqrt().unsqueeze(-1) * apart
        batch, _, dimension, _ = rows.shape
        found = rows.new_zeros(batch, len(live), dimension, self._numbers)
        place = self.members[live][:, None].expand(-1, dimension, -1).expand(batch, -1, -1, -1)
        found.scatter_(3, place, rows[:, live])
        return found.reshape(batch, len(live), dimension, *self.fixed.shape[1:])

    @property
    def _numbers(self) -> int:
        return math.prod(self.fixed.shape[1:])

    def form(self, matrix: Tensor, constant: Tensor, shape: tuple[int, ...]) -> ChoiceForm:
        """Rows and columns at all choices of the one token that each depends on, and the exact box."""
        key = (id(matrix), shape)
        if key not in self.kept:
            rows = columns = None
            if len(shape) >= 2:
                order = torch.arange(len(matrix), device=matrix.device).reshape(shape).mT
                turned = order.flatten()
                rows = self._rows(matrix, constant.flatten(), shape)
                columns = self._rows(matrix[turned], constant.flatten()[turned], tuple(order.shape))
            self.kept[key] = (matrix, rows, columns)
        _, rows, columns = self.kept[key]
        mine = [None if each is None else each.rows(self.allowed) for each in (rows, columns)]
        if mine[0] is not None:
            return ChoiceForm(mine[0].box, *mine)
        if mine[1] is not None:
            return ChoiceForm(Interval(*(end.mT for end in mine[1].box)), *mine)
        A, share = matrix.reshape(1, -1, *self.fixed.shape[1:]), OUTWARD.get(matrix.dtype, 0.0)
        slack = share * (A.flatten(2).abs() @ self._largest().flatten(1).unsqueeze(-1)).squeeze(-1)
        slack = slack + share * constant.abs().reshape(1, -1)
        lower = self.support(A, constant.reshape(1, -1)) - slack
        upper = slack - self.support(-A, -constant.reshape(1, -1))
        return ChoiceForm(Interval(lower.reshape(-1, *shape), upper.reshape(-1, *shape)), None, None)

    def _largest(self) -> Tensor:
        """The largest absolute value of every number over all choices, allowed or not, (1 or batch, *shape)."""
        whole = self.fixed.abs().flatten(1).expand(len(self.values), -1).clone()
        whole[:, self.members.flatten()] = self.values.abs().amax(2).flatten(1)
        return whole.reshape(-1, *self.fixed.shape[1:])

    def _rows(self, matrix: Tensor, constant: Tensor, shape: tuple[int, ...]) -> _Rows | None:
        """The rows of a node at all choices of the one token that each depends on; None if one depends on several."""
        lead, width = shape[:-1], shape[-1]
        count = math.prod(lead)
        used = matrix.reshape(count, width, -1)[..., self.members]  # (rows, width, groups, size)
        depends = (used != 0).any(-1).any(1)  # (rows, groups)
        if bool((depends.sum(1) > 1).any()):
            return None
        rest = (self.fixed.flatten(1) @ matrix.mT + constant).reshape(-1, count, 1, width)
        moving = depends.any(1)
        share = OUTWARD.get(matrix.dtype, 0.0)
        slack = share * (self._largest().flatten(1) @ matrix.abs().mT + constant.abs()).reshape(-1, *shape)
        group = depends.to(torch.int8).argmax(1) if depends.shape[1] else torch.zeros_like(moving, dtype=torch.long)
        values = rest.expand(-1, -1, self.values.shape[2] if depends.shape[1] else 1, -1)
        if depends.shape[1]:
            own = used[torch.arange(count, device=matrix.device), :, group]  # (rows, width, size)
            values = rest + self.values[:, group] @ own.mT  # (1 or batch, rows, choices, width)
        return _Rows(values.unflatten(1, lead), torch.where(moving, group, -1).reshape(lead), slack)

    def at(self, which: slice | Tensor) -> ChoiceRegion:
        """The sets of some inputs."""
        fixed, values = (x if x.shape[0] == 1 else x[which] for x in (self.fixed, self.values))
        kept = self.kept if values is self.values else {}
        return ChoiceRegion(fixed, values, self.allowed[which], self.members, kept)

    def restricted(self, allowed: Tensor) -> ChoiceRegion:
        """Parts of the set of one input: those choices of each part that are allowed, (parts, groups, choices)."""
        return dataclasses.replace(self, allowed=allowed)

    def rearranged(self, numbers: Tensor) -> ChoiceRegion:
        """The fixed numbers rearranged, and the groups' members found again."""
        flat = numbers.flatten()
        place = torch.empty_like(flat)
        place[flat] = torch.arange(len(flat), device=flat.device)
        fixed = self.fixed.flatten(1)[:, flat].reshape(-1, *numbers.shape)
        return ChoiceRegion(fixed, self.values, self.allowed, place[self.members])
