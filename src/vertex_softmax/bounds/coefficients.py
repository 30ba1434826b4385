"""Coefficients of many objectives on one node, stored densely or diagonally along a dimension.

Invariant: `Coefficients(A, t)` stands for the dense coefficients of S · n objectives, where n is the size of dimension
t. Objective (s, i), which has number s · n + i, has the entries of A[:, s] at index i of dimension t, and 0 elsewhere.

Objectives that differ only in which token they look at (every pre-activation of a layer, every row of scores) have
non-zero coefficients at that token alone, until an attention mixes the tokens. Stored diagonally, the coefficients for
all tokens take as much memory as dense ones for a single token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.contract import Step


class Coefficients(NamedTuple):
    """Coefficients A (batch, S, *shape) on a node; `diagonal` is a dimension of the shape, or None if A is dense."""

    A: Tensor
    diagonal: int | None = None

    @property
    def objectives(self) -> int:
        """The number of objectives: S, or S · n if the coefficients are diagonal."""
        count = self.A.shape[1]
        return count if self.diagonal is None else count * self.A.shape[2 + self.diagonal]

    def dense(self) -> Tensor:
        """The dense coefficients, (batch, S, *shape), or of diagonal ones (batch, S · n, *shape)."""
        if self.diagonal is None:
            return self.A
        n = self.A.shape[2 + self.diagonal]
        spread = self.A.new_zeros(self.A.shape[0], self.A.shape[1], n, *self.A.shape[2:])
        _diagonal_of(spread, self.diagonal).copy_(self.A.movedim(2 + self.diagonal, -1))
        return spread.flatten(1, 2)


class Objective(NamedTuple):
    """Linear functions Σ A·node of one node's value, each of which is to be bounded from below."""

    node: Node
    coefficients: Coefficients

    @staticmethod
    def dense(node: Node, A: Tensor) -> Objective:
        """An objective from dense coefficients (batch, S, *shape of the node)."""
        return Objective(node, Coefficients(A))


def total(parts: Sequence[Coefficients]) -> Coefficients:
    """The sum of coefficients on one node: diagonal if all are diagonal along the same dimension, else dense."""
    kinds = {part.diagonal for part in parts}
    if len(kinds) == 1:
        whole = parts[0].A
        for part in parts[1:]:
            whole = whole + part.A
        return Coefficients(whole, parts[0].diagonal)
    full = [part for part in parts if part.diagonal is None]
    whole = full[0].A.clone() if full else parts[0].dense()
    for part in full[1:] if full else []:
        whole += part.A
    for part in parts[0 if full else 1 :]:
        if part.diagonal is not None:
            n = part.A.shape[2 + part.diagonal]
            shaped = whole.view(whole.shape[0], -1, n, *whole.shape[2:])
            _diagonal_of(shaped, part.diagonal).add_(part.A.movedim(2 + part.diagonal, -1))
    return Coefficients(whole)


def fitting(node: Node, parts: Sequence[Coefficients]) -> list[Coefficients]:
    """The coefficients on a node in the forms that its op accepts.

    An affine op gets one sum for each kind of storage, any other op a single sum. Coefficients are made dense where the
    op cannot carry their diagonal to its inputs.
    """
    pieces = list(parts) if node.op.affine else [total(parts)]
    if len(pieces) > 1:
        # in a fixed order, so that sums round alike in every run: diagonal ones first, then the dense
        kinds = sorted({part.diagonal for part in pieces}, key=lambda kind: (kind is None, kind))
        pieces = [total([part for part in pieces if part.diagonal == kind]) for kind in kinds]
    return [
        part
        if part.diagonal is None or node.op.carries_diagonal(part.diagonal, node.shape) is not None
        else Coefficients(part.dense())
        for part in pieces
    ]


def hand_on(step: Step, node: Node, given: Coefficients, waiting: dict[Node, list[Coefficients]]) -> None:
    """Append a step's coefficients on the node's inputs to `waiting`, which collects them for each node."""
    carried = node.op.carries_diagonal(given.diagonal, node.shape) if given.diagonal is not None else None
    for i, A, diagonal in zip(node.inputs, step.coefficients, carried or (None,) * len(node.inputs), strict=True):
        if A is not None:
            waiting.setdefault(i, []).append(Coefficients(A, diagonal))


def diagonal_dimension(shape: tuple[int, ...]) -> int | None:
    """The dimension along which unit objectives are stored diagonally: the longest but the last; None if that has size
    1.
    """
    sizes = shape[:-1]
    if not sizes or max(sizes) == 1:
        return None
    return max(range(len(sizes)), key=sizes.__getitem__)


def _diagonal_of(spread: Tensor, dimension: int) -> Tensor:
    """The view (batch, S, rest..., n) of (batch, S, n, *shape) in which the objective's index equals that of the
    dimension.
    """
    return torch.diagonal(spread, dim1=2, dim2=3 + dimension)
